"""`appliance feedback inbox`: mail to fbl@, postmaster@ and abuse@ of return paths, for people to read."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common, number_option
from appliance.cli.output import printable, printable_row, record, show, show_list

if TYPE_CHECKING:
    from appliance.model.feedback import InboxMail

INBOX_COLUMNS = {"received_at": "TIME (UTC)", "id": "ID", "account": "ACCOUNT", "address": "TO", "sender": "FROM"}
INBOX_COLUMNS |= {"subject": "SUBJECT", "result": "RESULT"}
INBOX_FIELDS = ("id", "kind", "address", "sender", "subject", "result", "received_at", "size")
MOST_MAILS = 1_000
NO_MAIL = "The feedback inbox is empty."


@click.group()
def feedback() -> None:
    """Mail about the mail of this installation."""


@feedback.command()
@click.argument("mail_id", metavar="[ID]", type=PRINTABLE, required=False)
@number_option("--limit", 100, MOST_MAILS, "Number of mails to list.")
@common
def inbox(mail_id: str | None, limit: int, as_json: bool) -> None:
    """List the newest mails to fbl@, postmaster@ and abuse@ of all return paths, or show the mail ID as text.

    Use it to register a feedback loop: the provider sends its verification mail to fbl@.

    \b
    Examples:
      appliance feedback inbox
      appliance feedback inbox fbm_0192f0c1d2e3f4a5b6c7d8e9f0a1b2c3
    """
    from appliance.store import Store

    if mail_id is not None:
        _show_mail(mail_id, as_json)
        return

    async def read(store: Store) -> tuple[list["InboxMail"], dict[str, str]]:
        names = {account.id: account.name for account in await store.accounts.all()}
        return await store.feedback_inbox.newest(None, limit), names

    nothing: tuple[list[InboxMail], dict[str, str]] = ([], {})
    mails, names = database.run(read, or_nothing=nothing)
    rows = [_row(mail, names) for mail in mails]
    show_list(as_json, "mails", rows if as_json else [*map(printable_row, rows)], INBOX_COLUMNS, NO_MAIL)


def _row(mail: "InboxMail", names: dict[str, str]) -> dict[str, Any]:
    return {"account": names.get(mail.account_id, mail.account_id) or None, **record(mail, *INBOX_FIELDS)}


def _show_mail(mail_id: str, as_json: bool) -> None:
    from appliance.feedback.mime import open_mail
    from appliance.store import Store

    async def read(store: Store) -> tuple["InboxMail", bytes, dict[str, str]]:
        stored = await store.feedback_inbox.find(None, mail_id)
        if stored is None:
            text = f"no mail {mail_id} in the feedback inbox: list them with appliance feedback inbox"
            raise click.ClickException(text)
        return *stored, {account.id: account.name for account in await store.accounts.all()}

    mail, mime, names = database.run(read)
    text, source = open_mail(mime).text, mime.decode("utf-8", "replace")
    head = f"From: {mail.sender}\nTo: {mail.address}\nSubject: {mail.subject}\n\n"
    shown = "\n".join(map(printable, (head + (text or source)).splitlines()))
    show(as_json, {"mail": _row(mail, names), "text": text, "source": source}, shown)
