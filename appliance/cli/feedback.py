"""`appliance feedback`: the mails to the addresses of return paths that a person has to read."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.messages import MOST_LISTED
from appliance.cli.options import PRINTABLE, CommandGroup, common, listing, number_option
from appliance.cli.output import printable, record, show, show_list

if TYPE_CHECKING:
    from appliance.model.feedback import InboxMail
    from appliance.store import Store

INBOX_COLUMNS = {"id": "ID", "received_at": "TIME (UTC)", "account": "ACCOUNT", "address": "TO", "sender": "FROM"}
INBOX_COLUMNS |= {"subject": "SUBJECT", "result": "RESULT"}
INBOX_FIELDS = ("id", "kind", "address", "sender", "subject", "result", "received_at", "size")

feedback = CommandGroup("feedback", "Mail about the mail of this installation.", {"inbox": "list"}, default="list")


@feedback.command("list", reads=True)
@click.argument("mail_id", metavar="", type=PRINTABLE, required=False)
@number_option("--limit", 100, MOST_LISTED, "Number of mails to list.")
@listing
def list_feedback(mail_id: str | None, limit: int) -> None:
    """List the newest mails to fbl@, postmaster@ and abuse@ of all return paths.

    Use it to register a feedback loop: the provider sends its verification mail to fbl@.
    """
    if mail_id is not None:  # as before `feedback show`
        _show_mail(mail_id)
        return

    async def read(store: "Store") -> "tuple[list[InboxMail], dict[str, str]]":
        names = {account.id: account.name for account in await store.accounts.all()}
        return await store.feedback_inbox.newest(None, limit), names

    mails, names = database.run(read, or_nothing=lambda: ([], {}))
    rows = [_inbox_row(mail, names) for mail in mails]
    show_list({"mails": rows}, INBOX_COLUMNS, "The feedback inbox is empty.", ("result", "account", "address"))


@feedback.command("show", reads=True)
@click.argument("mail_id", metavar="MAIL", type=PRINTABLE)
@common
def show_feedback(mail_id: str) -> None:
    """Show MAIL of the feedback inbox as text."""
    _show_mail(mail_id)


def _inbox_row(mail: "InboxMail", names: dict[str, str]) -> dict[str, Any]:
    return {"account": names.get(mail.account_id, mail.account_id) or None, **record(mail, *INBOX_FIELDS)}


def _show_mail(mail_id: str) -> None:
    from appliance.feedback.mime import open_mail

    async def read(store: "Store") -> "tuple[InboxMail, bytes, dict[str, str]]":
        stored = await store.feedback_inbox.find(None, mail_id)
        if stored is None:
            text = f"no mail {mail_id} in the feedback inbox: list them with appliance feedback list"
            raise click.ClickException(text)
        return *stored, {account.id: account.name for account in await store.accounts.all()}

    mail, mime, names = database.run(read)
    text, source = open_mail(mime).text, mime.decode("utf-8", "replace")
    head = f"From: {mail.sender}\nTo: {mail.address}\nSubject: {mail.subject}\n\n"
    shown = "\n".join(map(printable, (head + (text or source)).splitlines()))
    show({"mail": _inbox_row(mail, names), "text": text, "source": source}, shown)
