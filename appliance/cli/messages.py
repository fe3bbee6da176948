"""`appliance messages`: finds messages of one account or of all by words, newest first, within a bounded time."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, TIME_AGO, common
from appliance.cli.output import printable, record, show, show_list
from appliance.times import rfc3339

if TYPE_CHECKING:
    from appliance.model.dashboard import FoundMail, ListedMessage
    from appliance.store import Store

MESSAGE_COLUMNS = {"id": "ID", "account": "ACCOUNT", "status": "STATUS", "from": "FROM", "to": "TO"}
MESSAGE_COLUMNS |= {"subject": "SUBJECT", "created_at": "ACCEPTED (UTC)"}
MESSAGES_LISTED, MOST_LISTED = 50, 1_000
SEARCH_SECONDS = 10.0  # of searching: some millions of messages
STATUSES = ("queued", "delivered", "partial", "failed")
OUTCOMES = ("queued", "deferred", "delivered", "bounced", "failed", "suppressed", "cancelled")


@click.command()
@click.argument("words", type=PRINTABLE, nargs=-1, metavar="[WORD]...")
@click.option("--account", type=PRINTABLE, metavar="NAME", help="Only messages of this account.")
@click.option("--to", type=PRINTABLE, metavar="ADDRESS|DOMAIN", help="Only messages to this address or domain.")
@click.option("--from", "sender", type=PRINTABLE, metavar="ADDRESS|DOMAIN", help="Only messages from it.")
@click.option("--status", type=click.Choice(STATUSES), help="Only messages that stand so as a whole.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only messages with a recipient that stands so.")
@click.option("--since", type=TIME_AGO, metavar="2d|DATE", help="Only messages accepted from then on.")
@click.option("--until", type=TIME_AGO, metavar="2d|DATE", help="Only messages accepted before.")
@click.option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED),
    default=MESSAGES_LISTED,
    show_default=True,
    help="How many, the newest first.",
)
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
    """List messages, the newest first, of one account or of all.

    Each WORD has to begin a word of the message: of a recipient's or the sender's address or name, of the subject, an
    id, a tag, the template, or what a mail server has answered. A message has to pass all options, too. A time is a
    span until now (30m, 12h, 2d), a date (2026-11-15) or a time of UTC (2026-11-15T13:00). The search takes about ten
    seconds at most: the last line then tells how far back it came, and the same command with --until goes on from
    there. What became of one message: appliance explain ID

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
    wanted = MailFilter(
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
        names = {each.id: each.name for each in chosen}
        return names, await store.mail_log.newest(names, wanted, limit, SEARCH_SECONDS)

    nothing: tuple[dict[str, str], FoundMail] = ({}, FoundMail((), None))
    names, found = database.run(work, or_nothing=nothing)
    rows = [_row(names[account_id], each) for account_id, each in found.messages]
    back_to = None if found.searched_to is None else _rounded_up(found.searched_to)
    if as_json:
        show(True, {"messages": rows, "searched_to": back_to}, "")
        return
    show_list(False, "messages", [_worded(row) for row in rows], MESSAGE_COLUMNS, "No such message.")
    if back_to is not None:
        click.echo(f"Searched back to {back_to} only. To go on: the same with --until {back_to}")


def _rounded_up(microseconds: int) -> str:
    """Written with milliseconds, so that a search that goes on from there leaves nothing out."""
    return rfc3339(microseconds + 999)


def _row(account: str, message: "ListedMessage") -> dict[str, Any]:
    recipients = [
        {"email": each.email, "status": each.status.value, "outcome": each.outcome.value} for each in message.recipients
    ]
    row: dict[str, Any] = {"id": message.id, "account": account, "status": message.status.value}
    row |= {"source": message.source.value, "from": message.sender, "recipients": recipients}
    return row | record(message, "recipient_count", "subject", "created_at")


def _worded(row: dict[str, Any]) -> dict[str, Any]:
    """The row for a table: its first recipient, and how many more there are."""
    more = row["recipient_count"] - 1
    to = row["recipients"][0]["email"] if row["recipients"] else ""
    texts = {"from": printable(row["from"]), "subject": printable(row["subject"])}
    return row | texts | {"to": printable(to) + (f" and {more} more" if more else "")}
