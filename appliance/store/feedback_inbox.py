"""The feedback inbox: the last mails to `fbl@`, `postmaster@` and `abuse@` of return paths that a person has to read.

Mail belongs to the only account that has proven a domain with that return path. Without one, or with several, only
administrators and the operator's commands see it. The inbox keeps the newest mails of each account and kind, and the
beginning of each: new mail removes only older mail of the same kind.
"""

from functools import partial

from appliance.environment import Environment, identifier_from
from appliance.message.addresses import parse
from appliance.message.system_mail import forwarded_mail, forwarded_subject
from appliance.model.feedback import NO_SINGLE_OWNER, FeedbackResult, InboxMail, KeptMail
from appliance.store.body_parts import add as count_bytes
from appliance.store.body_parts import write_system_message
from appliance.store.engine import NEWEST, Slice, StorePart, Tx, rows, run
from appliance.store.feedback import FeedbackStep
from appliance.store.suppressions import suppressed

INBOX_MAILS = 100  # per account and kind
INBOX_BYTES = 64 * 1024  # per mail
SENDER_NAME = "Mail server"

_OWNERS = """SELECT d.account_id, min(d.name), max(a.suspended) FROM domains d JOIN accounts a ON a.id = d.account_id
    WHERE coalesce(d.return_path, 'bounces.' || d.name) = :name AND d.usable = 1 AND d.removed_at IS NULL
    GROUP BY d.account_id LIMIT 2"""
_ADD = """INSERT INTO feedback_inbox (account_id, kind, id, address, sender, subject, result, received_at, size, mime)
    VALUES (:account_id, :kind, :id, :address, :sender, :subject, :result, :received_at, :size, :mime)
    ON CONFLICT (account_id, kind, id) DO NOTHING"""
_TRIM = """DELETE FROM feedback_inbox WHERE account_id = :account_id AND kind = :kind AND id <=
    (SELECT id FROM feedback_inbox WHERE account_id = :account_id AND kind = :kind ORDER BY id DESC LIMIT 1
        OFFSET :most)"""
_COLUMNS = "id, account_id, kind, address, sender, subject, result, received_at, size"
_PAGE = f"SELECT {_COLUMNS} FROM feedback_inbox WHERE {{whose}} id < :before ORDER BY id DESC LIMIT :most"
_FIND = f"SELECT {_COLUMNS}, mime FROM feedback_inbox WHERE {{whose}} id = :id ORDER BY account_id LIMIT 1"
# With all kinds, so that an index is used.
_OF_ACCOUNT = "account_id IN (:account_id, :shared) AND kind IN ('fbl', 'postmaster', 'abuse') AND"
_ANY_OLD = "SELECT EXISTS (SELECT 1 FROM feedback_inbox WHERE id < :before)"
_FORGET = """DELETE FROM feedback_inbox WHERE (account_id, kind, id) IN
    (SELECT account_id, kind, id FROM feedback_inbox WHERE id < :before ORDER BY id LIMIT :most)"""


class FeedbackInbox(StorePart):
    def keep(self, mail: KeptMail, result: FeedbackResult, forward_to: str = "") -> FeedbackStep:
        """A step that keeps a mail in the inbox, and forwards a copy if there is an address."""
        return partial(_keep, env=self.env, mail=mail, result=result, forward_to=forward_to)

    async def newest(
        self, account_id: str | None, most: int, *, before: str = NEWEST, shared: bool = False
    ) -> list[InboxMail]:
        """The newest mails of an account, with `shared` also those of no single account; None: of all accounts."""
        bindings = {**_whose(account_id, shared), "before": before, "most": most}
        return await self.engine.all(InboxMail, _PAGE.format(whose="" if account_id is None else _OF_ACCOUNT), bindings)

    async def find(
        self, account_id: str | None, mail_id: str, *, shared: bool = False
    ) -> tuple[InboxMail, bytes] | None:
        query = _FIND.format(whose="" if account_id is None else _OF_ACCOUNT)
        selected = await self.engine.rows(query, {**_whose(account_id, shared), "id": mail_id})
        return (InboxMail(*selected[0][:-1]), bytes(selected[0][-1])) if selected else None

    async def forget(self, before: int, most: int) -> Slice:
        return await self.delete_slice(_ANY_OLD, [_FORGET], {"before": identifier_from("fbm", before), "most": most})


def _whose(account_id: str | None, shared: bool) -> dict[str, str | None]:
    return {"account_id": account_id, "shared": NO_SINGLE_OWNER if shared else account_id}


def _keep(tx: Tx, *, env: Environment, mail: KeptMail, result: FeedbackResult, forward_to: str) -> tuple[str, set[str]]:
    owners = rows(tx, _OWNERS, {"name": mail.address.rpartition("@")[2]})
    account_id, domain, is_suspended = owners[0] if len(owners) == 1 else (NO_SINGLE_OWNER, "", 1)
    if forward_to and not is_suspended and _forward(tx, env, mail, account_id, domain, forward_to):
        result = FeedbackResult.FORWARDED
    row = {"account_id": account_id, "kind": mail.kind, "id": mail.id, "address": mail.address, "sender": mail.sender}
    row |= {"subject": mail.subject, "result": result.value, "received_at": mail.received_at}
    run(tx, _ADD, row | {"size": len(mail.mime), "mime": mail.mime[:INBOX_BYTES]})
    run(tx, _TRIM, {"account_id": account_id, "kind": mail.kind, "most": INBOX_MAILS})
    return result, set()


def _forward(tx: Tx, env: Environment, mail: KeptMail, account_id: str, domain: str, forward_to: str) -> bool:
    """Queue a copy for the operator as free mail of the domain's owner; False if the account may not send it."""
    recipient = parse(forward_to, "inbound.forward_to")
    if suppressed(tx, [(account_id, recipient.key)]):
        return False
    sender, message_id, now = parse(f"{SENDER_NAME} <postmaster@{domain}>", "from"), env.identifier("msg"), env.now()
    about = {"address": mail.address, "subject": mail.subject}
    mime = forwarded_mail(message_id, sender, recipient, mime=mail.mime, now=now, **about)
    subject = forwarded_subject(**about)
    size = write_system_message(
        tx, env, account_id, message_id, sender=sender.text, recipient=recipient, subject=subject, mime=mime, now=now
    )
    count_bytes(tx, account_id, size)
    return True
