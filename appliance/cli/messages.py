"""`appliance messages`: searches the messages of one account or of all, newest first, within a bounded time."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, TIME_AGO, common, number_option, text_option
from appliance.cli.output import printable, record, show, show_list
from appliance.times import rfc3339

if TYPE_CHECKING:
    from appliance.model.dashboard import FoundMail, ListedMessage
    from appliance.store import Store

MESSAGE_COLUMNS = {"id": "ID", "account": "ACCOUNT", "status": "STATUS", "from": "FROM", "to": "TO"}
MESSAGE_COLUMNS |= {"subject": "SUBJECT", "created_at": "ACCEPTED (UTC)"}
MESSAGES_LISTED, MOST_LISTED = 50, 1_000
SEARCH_SECONDS = 10.0  # enough for a few million messages
STATUSES = ("queued", "delivered", "partial", "failed")
OUTCOMES = ("queued", "deferred", "delivered", "bounced", "failed", "suppressed", "cancelled")


@click.command()
@click.argument("words", type=PRINTABLE, nargs=-1, metavar="[WORD]...")
@text_option("--account", "NAME", "Filter by account.")
@text_option("--to", "ADDRESS|DOMAIN", "Filter by recipient address or domain.")
@text_option("--from", "ADDRESS|DOMAIN", "Filter by sender address or domain.", "sender")
@click.option("--status", type=click.Choice(STATUSES), help="Filter by message status.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Filter by the outcome of any recipient.")
@click.option("--since", type=TIME_AGO, metavar="2d|DATE", help="Only messages accepted from this time on.")
@click.option("--until", type=TIME_AGO, metavar="2d|DATE", help="Only messages accepted before this time.")
@number_option("--limit", MESSAGES_LISTED, MOST_LISTED, "Number of messages to show.")
@common
def messages(
    words: tuple[str, ...],
    account: str | None,
    to: str | None,
    sender: str | None,
    status: str | None,
    outcome: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """List messages of one account or of all, newest first.

    Each WORD must be a prefix of a word in the message: in a recipient's or the sender's address or name, the subject,
    an id, a tag, the template or a mail server's reply. A message must match all words and options. A time is a span
    before now (30m, 12h, 2d), a date (2026-11-15) or a UTC time (2026-11-15T13:00). A search stops after ten seconds;
    the last line then says how far back it got, and the same command with --until continues from there. To see the
    history of one message: appliance explain ID

    \b
    Examples:
      appliance messages
      appliance messages --to ada@example.net --since 2d
      appliance messages invoice ada@example
      appliance messages --account acme --outcome bounced --limit 10
      appliance messages --to example.net --until 2026-11-15 --json
    """
    from appliance.intake.account_rules import searched_recipient, searched_sender
    from appliance.message.search_words import query_words
    from appliance.model.dashboard import FoundMail, MailFilter
    from appliance.model.mail import MessageStatus, RecipientOutcome

    with database.refusals():
        searched = query_words(" ".join(words)) if words else ()
    mail_filter = MailFilter(
        words=searched,
        outcome=RecipientOutcome(outcome) if outcome else None,
        since=since,
        until=until,
        status=MessageStatus(status) if status else None,
        recipient=searched_recipient(to.strip()) if to else None,
        sender=searched_sender(sender.strip()) if sender else None,
    )

    async def work(store: "Store") -> "tuple[dict[str, str], FoundMail]":
        chosen = await store.accounts.all() if account is None else [await store.accounts.named(account)]
        names = {one.id: one.name for one in chosen}
        return names, await store.mail_log.newest(names, mail_filter, limit, SEARCH_SECONDS)

    nothing: tuple[dict[str, str], FoundMail] = ({}, FoundMail((), None))
    names, mail = database.run(work, or_nothing=nothing)
    rows = [_row(names[account_id], message) for account_id, message in mail.messages]
    # Rounded up to milliseconds, so that a search that continues from there omits nothing.
    back_to = None if mail.searched_to is None else rfc3339(mail.searched_to + 999)
    if as_json:
        show(True, {"messages": rows, "searched_to": back_to}, "")
        return
    show_list(False, "messages", [_worded(row) for row in rows], MESSAGE_COLUMNS, "No message matches.")
    if back_to is not None:
        click.echo(f"Searched back to {back_to} only. To continue, add --until {back_to}")


def _row(account: str, message: "ListedMessage") -> dict[str, Any]:
    recipients = [
        {"email": one.email, "status": one.status.value, "outcome": one.outcome.value} for one in message.recipients
    ]
    row: dict[str, Any] = {"id": message.id, "account": account, "status": message.status.value}
    row |= {"source": message.source.value, "from": message.sender, "recipients": recipients}
    return row | record(message, "recipient_count", "subject", "created_at")


def _worded(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row for a table, with the first recipient and the number of others."""
    more = row["recipient_count"] - 1
    to = row["recipients"][0]["email"] if row["recipients"] else ""
    texts = {"from": printable(row["from"]), "subject": printable(row["subject"])}
    return row | texts | {"to": printable(to) + (f" and {more} more" if more else "")}
