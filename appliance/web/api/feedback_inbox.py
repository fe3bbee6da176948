"""Mail to fbl@, postmaster@ and abuse@ of the account's return paths: /v1/feedback/inbox."""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import Code, Refused
from appliance.feedback.mime import open_mail
from appliance.message.characters import cost_of_size
from appliance.model.accounts import Permission, Principal
from appliance.model.feedback import InboxMail
from appliance.store.engine import NEWEST
from appliance.times import rfc3339
from appliance.web.answer import NextPage, RequestId, Time
from appliance.web.app import Routes, page_limit, request_id
from appliance.web.operations import PAGING_BACK, Tag, for_customers, parameter


class InboxMailObject(msgspec.Struct):
    """A message in the feedback inbox."""

    id: Annotated[str, Meta(description="Message id, `msg_…`.")]
    kind: Annotated[str, Meta(description="Local part of the address: `fbl`, `postmaster` or `abuse`.")]
    address: Annotated[str, Meta(description="Recipient address.")]
    sender: Annotated[str, Meta(description="From header. Not authenticated.")]
    subject: Annotated[str, Meta(description="Subject header.")]
    result: Annotated[str, Meta(description="`not_understood`, `not_verified`, `kept` or `forwarded`.")]
    received_at: Annotated[Time, Meta(description="Time of receipt.")]
    size: Annotated[int, Meta(description="Size of the whole message in bytes.")]


class InboxAnswer(msgspec.Struct):
    """A page of messages, newest first. Pass `next` as `before` to get the next page."""

    mails: Annotated[list[InboxMailObject], Meta(description="Messages, newest first.")]
    next: NextPage
    request_id: RequestId


class InboxMailAnswer(msgspec.Struct):
    """One message and the start of its content."""

    mail: Annotated[InboxMailObject, Meta(description="The message, as in the list.")]
    text: Annotated[str, Meta(description="First text part, or the HTML as text, up to 64 KiB.")]
    source: Annotated[str, Meta(description="Start of the raw message, up to 64 KiB.")]
    truncated: Annotated[bool, Meta(description="Whether the message is longer than the stored part.")]
    request_id: RequestId


class FeedbackInboxRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/feedback/inbox", InboxAnswer, parameters=PAGING_BACK)
    async def list_feedback_inbox(self, user: Principal) -> InboxAnswer:
        """List mail to fbl@, postmaster@ and abuse@ of the account's return paths that needs a human.

        The newest 100 of each kind are kept, as long as message records. Administrators also see mail of return paths
        that belong to no account or to several.
        """
        limit, before = page_limit(), request.args.get("before", NEWEST)
        shared = _sees_shared(user)
        mails = await self.store.feedback_inbox.newest(user.account_id, limit + 1, before=before, shared=shared)
        following = mails[limit - 1].id if len(mails) > limit else None
        return InboxAnswer([shown_mail(mail) for mail in mails[:limit]], following, request_id())

    @for_customers(
        "GET /v1/feedback/inbox/{id}",
        InboxMailAnswer,
        Code.NOT_FOUND,
        parameters=(parameter("id", "path", "Id from the list.", {"type": "string"}),),
    )
    async def get_feedback_mail(self, user: Principal, mail_id: str) -> bytes:
        """Read a message of the feedback inbox as text."""
        mail = await self.store.feedback_inbox.find(user.account_id, mail_id, shared=_sees_shared(user))
        if mail is None:
            raise Refused(Code.NOT_FOUND, "The feedback inbox has no message with this id.")
        work = cost_of_size(2 * len(mail[1]))
        return await self.services.intake.workers.run(user.account_id, work, encoded_mail, *mail, request_id())


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
    """The InboxMailAnswer as JSON. Pure."""
    return msgspec.json.encode(
        InboxMailAnswer(
            mail=shown_mail(mail),
            text=open_mail(mime).text,
            source=mime.decode("utf-8", "replace"),
            truncated=mail.size > len(mime),
            request_id=asked_by,
        )
    )
