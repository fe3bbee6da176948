"""Mail to fbl@, postmaster@ and abuse@ of the account's return paths, as text: /v1/feedback/inbox."""

import msgspec
from quart import request

from appliance.errors import Code, Refused
from appliance.feedback.mime import open_mail
from appliance.message.cost import of_size
from appliance.model.accounts import Permission, Principal
from appliance.model.feedback import InboxMail
from appliance.store.engine import NEWEST
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.app import Routes, page_limit, request_id
from appliance.web.operations import PAGING_BACK, for_customers, parameter


class InboxMailObject(msgspec.Struct):
    """A mail in the feedback inbox."""

    id: str
    kind: str
    address: str
    sender: str
    subject: str
    result: str
    received_at: Time
    size: int


class InboxAnswer(msgspec.Struct):
    """A page of mails, newest first; `next` goes into `before` for the page that follows."""

    mails: list[InboxMailObject]
    next: str | None
    request_id: str


class InboxMailAnswer(msgspec.Struct):
    """One mail, with the beginning of what it says."""

    mail: InboxMailObject
    text: str
    source: str
    truncated: bool
    request_id: str


class FeedbackInboxRoutes(Routes):
    @for_customers("GET /v1/feedback/inbox", (200, InboxAnswer, "A page of mails."), parameters=PAGING_BACK)
    async def list_feedback_inbox(self, user: Principal) -> InboxAnswer:
        """List the mails to fbl@, postmaster@ and abuse@ of the account's return paths that a person has to read.

        The newest 100 of each kind are kept, as long as the records of messages. Administrators also see the mail of
        return paths that no account, or several accounts, have.
        """
        limit, before = page_limit(), request.args.get("before", NEWEST)
        shared = _sees_shared(user)
        mails = await self.store.feedback_inbox.newest(user.account_id, limit + 1, before=before, shared=shared)
        following = mails[limit - 1].id if len(mails) > limit else None
        return InboxAnswer([shown_mail(mail) for mail in mails[:limit]], following, request_id())

    @for_customers(
        "GET /v1/feedback/inbox/{id}",
        (200, InboxMailAnswer, "The mail."),
        Code.NOT_FOUND,
        parameters=(parameter("id", "path", "The `id` of the mail in the list.", {"type": "string"}),),
    )
    async def get_feedback_mail(self, user: Principal, mail_id: str) -> bytes:
        """Read a mail of the feedback inbox as text."""
        found = await self.store.feedback_inbox.find(user.account_id, mail_id, shared=_sees_shared(user))
        if found is None:
            raise Refused(Code.NOT_FOUND, "There is no mail with this id in the feedback inbox.")
        work = of_size(2 * len(found[1]))
        return await self.services.intake.workers.run(user.account_id, work, encoded_mail, *found, request_id())


def _sees_shared(user: Principal) -> bool:
    return Permission.ADMINISTER in user.permissions


def shown_mail(mail: InboxMail) -> InboxMailObject:
    return InboxMailObject(
        id=mail.id,
        kind=mail.kind,
        address=mail.address,
        sender=mail.sender,
        subject=mail.subject,
        result=mail.result,
        received_at=rfc3339(mail.received_at),
        size=mail.size,
    )


def encoded_mail(mail: InboxMail, mime: bytes, asked_by: str) -> bytes:
    """The InboxMailAnswer to a request, as JSON. Pure."""
    return msgspec.json.encode(
        InboxMailAnswer(
            mail=shown_mail(mail),
            text=open_mail(mime).text,
            source=mime.decode("utf-8", "replace"),
            truncated=mail.size > len(mime),
            request_id=asked_by,
        )
    )
