"""The messages of an account: list and search them, read one, cancel what still waits: /v1/emails.

Long lists and long timelines are read and encoded off the event loop.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec
from quart import Response, request

from appliance.concurrency.workers import ON_LOOP
from appliance.errors import Code, Refused, invalid
from appliance.intake.account_rules import searched_recipient, searched_sender
from appliance.message.limits import MAILBOX_LENGTH, TAG_LENGTH
from appliance.model.dashboard import MailFilter, MailPage
from appliance.model.mail import MessageStatus, RecipientStatus, Source, User
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.message_body import BodyAnswer, MessageBodies
from appliance.web.api.timeline import MessageDetails, encoded_details
from appliance.web.app import ApiServices, Routes, page_limit, request_id
from appliance.web.message_json import MESSAGE_ID
from appliance.web.operations import PAGING_BACK, Json, for_customers, parameter

CANCEL_REASON = "given up by the account's owner"
MESSAGE_COST = 50  # microseconds to read and to list a message with the longest subject and tags
ATTEMPT_COST = 400  # microseconds to show an attempt with the longest transcript that is kept

Choice = TypeVar("Choice", bound=StrEnum)


class ListedRecipientObject(msgspec.Struct):
    """One of a message's first recipients."""

    email: str
    status: RecipientStatus


class ListedMessageObject(msgspec.Struct, rename={"sender": "from"}):
    """A message in a list; `recipients` are the first three."""

    id: str
    status: MessageStatus
    source: Source
    sender: str
    subject: str
    tags: list[str]
    recipient_count: int
    recipients: list[ListedRecipientObject]
    created_at: Time


class EmailsAnswer(msgspec.Struct):
    """A page of messages, newest first; `next` goes into `before` to look further back."""

    emails: list[ListedMessageObject]
    next: str | None
    request_id: str


class CancelledAnswer(msgspec.Struct):
    """How many recipients were cancelled."""

    cancelled: int
    request_id: str


_MAILBOX: Json = {"type": "string", "minLength": 1, "maxLength": MAILBOX_LENGTH}
_SAME_CASE = "upper and lower case are the same."
_FILTERS = (
    parameter("status", "query", "Only of this status.", {"type": "string", "enum": list(MessageStatus)}),
    parameter("source", "query", "Only from this source.", {"type": "string", "enum": list(Source)}),
    parameter("recipient", "query", f"Only to this address, or to this domain; {_SAME_CASE}", _MAILBOX),
    parameter("from", "query", f"Only from this address, or from this domain; {_SAME_CASE}", _MAILBOX),
    parameter("tag", "query", "Only with this tag.", {"type": "string", "minLength": 1, "maxLength": TAG_LENGTH}),
)


class EmailRoutes(Routes):
    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.bodies = MessageBodies(services.store)

    @for_customers("GET /v1/emails", (200, EmailsAnswer, "A page of messages."), parameters=(*_FILTERS, *PAGING_BACK))
    async def list_emails(self, user: User) -> bytes:
        """List the account's messages, newest first.

        Filters are combined: a message has to pass all of them. A page may hold fewer messages than asked for while the
        search is not over; `next` is null only at its end.
        """
        limit = page_limit()
        wanted = MailFilter(
            status=_choice("status", MessageStatus),
            source=_choice("source", Source),
            recipient=_text("recipient", MAILBOX_LENGTH, searched_recipient),
            sender=_text("from", MAILBOX_LENGTH, searched_sender),
            tag=_text("tag", TAG_LENGTH, str),
        )
        account_id, before, cost = user.account_id, request.args.get("before"), MESSAGE_COST * limit
        found = await self.store.mail_log.page(account_id, wanted, before, limit, off_loop=cost > ON_LOOP)
        cost = MESSAGE_COST * len(found.messages)
        return await self.services.intake.workers.run(account_id, cost, _encoded_page, found, request_id())

    @for_customers(
        "GET /v1/emails/{id:not_test}", (200, MessageDetails, "The message."), Code.NOT_FOUND, parameters=(MESSAGE_ID,)
    )
    async def get_email_details(self, user: User, message_id: str) -> bytes:
        """Read a message with every attempt to deliver it, and what happens next."""
        store, account_id = self.store, user.account_id
        message = await store.messages.read(account_id, message_id)
        facts = await store.mail_log.facts(account_id, message_id)
        if message is None or facts is None:
            raise _unknown()
        cost = ATTEMPT_COST * sum(recipient.attempt_count for recipient in message.recipients)
        read = store.records
        record = await (read.of if cost <= ON_LOOP else read.off_loop)(message_id, account_id)
        if record is None:
            raise _unknown()
        config, now = self.services.config, self.services.outside.now()
        pools = await store.pools.views({tried.domain for tried in record.recipients}, config.warmup, account_id)
        most = len(config.delivery.retry_delays) + 1  # attempts
        shown = record, facts, pools, now, most, request_id()
        return await self.services.intake.workers.run(account_id, cost, encoded_details, *shown)

    @for_customers(
        "GET /v1/emails/{id:not_test}/body",
        (200, BodyAnswer, "Header, texts and attached files."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
    )
    async def get_email_body(self, user: User, message_id: str) -> Response:
        """Read what a message says, while its body is kept."""
        if (facts := await self.store.mail_log.facts(user.account_id, message_id)) is None:
            raise _unknown()
        return await self.bodies.answer(user.account_id, message_id, facts.size, request_id())

    @for_customers(
        "POST /v1/emails/{id:not_test}/cancel",
        (200, CancelledAnswer, "Cancelled."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        parameters=(MESSAGE_ID,),
        action="email.cancelled",
    )
    async def cancel_email(self, user: User, message_id: str) -> CancelledAnswer:
        """Give up what still waits of a message.

        Recipients that are still queued fail, their credits are returned, and their events are posted.
        """
        if await self.store.mail_log.facts(user.account_id, message_id) is None:
            raise _unknown()
        count = await self.store.queue_control.cancel(message_id, CANCEL_REASON, user.account_id)
        return CancelledAnswer(count, request_id())


def _encoded_page(found: MailPage, request_id: str) -> bytes:
    shown = []
    for each in found.messages:
        recipients = [ListedRecipientObject(one.email, one.status) for one in each.recipients]
        own = each.id, each.status, each.source, each.sender, each.subject, list(each.tags), each.recipient_count
        shown.append(ListedMessageObject(*own, recipients, rfc3339(each.created_at)))
    return msgspec.json.encode(EmailsAnswer(shown, found.next, request_id))


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "There is no message with this id.")


def _choice(name: str, choices: type[Choice]) -> Choice | None:
    given = request.args.get(name)
    if given is None:
        return None
    try:
        return choices(given)
    except ValueError:
        raise invalid(name, f"must be one of {', '.join(choices)}") from None


def _text(name: str, most: int, spelled: Callable[[str], str]) -> str | None:
    given = request.args.get(name)
    if given is None:
        return None
    if not 1 <= len(given.strip()) <= most:
        raise invalid(name, f"must have 1 to {most} characters")
    return spelled(given.strip())
