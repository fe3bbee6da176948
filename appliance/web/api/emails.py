"""The messages of an account: list and search them, read one, cancel what still waits: /v1/emails.

Long lists and long timelines are read and encoded off the event loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec
from quart import Response, request

from appliance.concurrency.workers import ON_LOOP, Workers
from appliance.config.settings import WarmupSettings
from appliance.errors import Code, Refused, invalid
from appliance.intake.account_rules import domain_name
from appliance.message.limits import MAILBOX_LENGTH, TAG_LENGTH
from appliance.model.dashboard import ListedMessage, MailFilter, MailPage, MessageFacts
from appliance.model.mail import MessageRecord, MessageStatus, RecipientStatus, Source, User
from appliance.model.queue import PoolView
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.message_body import BodyAnswer, MessageBodies
from appliance.web.api.timeline import MessageDetails, details
from appliance.web.app import ApiServices, answer, page_limit, request_id
from appliance.web.message_json import MESSAGE_ID
from appliance.web.operations import PAGING_BACK, for_customers, parameter

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


_FILTERS = (
    parameter("status", "query", "Only of this status.", {"type": "string", "enum": list(MessageStatus)}),
    parameter("source", "query", "Only from this source.", {"type": "string", "enum": list(Source)}),
    parameter(
        "recipient",
        "query",
        "Only to this address, or to this domain; upper and lower case are the same.",
        {"type": "string", "minLength": 1, "maxLength": MAILBOX_LENGTH},
    ),
    parameter(
        "from",
        "query",
        "Only from this address, or from this domain; upper and lower case are the same.",
        {"type": "string", "minLength": 1, "maxLength": MAILBOX_LENGTH},
    ),
    parameter("tag", "query", "Only with this tag.", {"type": "string", "minLength": 1, "maxLength": TAG_LENGTH}),
)


@dataclass(frozen=True, slots=True)
class EmailRoutes:
    services: ApiServices
    bodies: MessageBodies
    workers: Workers
    warmup: WarmupSettings
    max_attempts: int  # of a recipient

    @for_customers(
        "GET /v1/emails",
        "List the account's messages, newest first. A page may be short while the search is not over: see `next`.",
        (200, EmailsAnswer, "A page of messages."),
        parameters=(*_FILTERS, *PAGING_BACK),
    )
    async def page(self, user: User) -> Response:
        limit, wanted = page_limit(), _filter()
        account_id, before, cost = user.account_id, request.args.get("before"), MESSAGE_COST * limit
        found = await self.services.store.mail_log.page(account_id, wanted, before, limit, off_loop=cost > ON_LOOP)
        shown = await self.workers.run(
            account_id, MESSAGE_COST * len(found.messages), _encoded_page, found, request_id()
        )
        return Response(shown, content_type="application/json")

    @for_customers(
        "GET /v1/emails/{id:not_test}",
        "Read a message with every attempt to deliver it, and what happens next.",
        (200, MessageDetails, "The message."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
    )
    async def show(self, user: User, message_id: str) -> Response:
        store = self.services.store
        account_id = user.account_id
        message, facts = store.messages.read(account_id, message_id), store.mail_log.facts(account_id, message_id)
        if message is None or facts is None:
            raise _unknown()
        cost = ATTEMPT_COST * sum(recipient.attempt_count for recipient in message.recipients)
        record = (
            store.records.of(message_id, account_id)
            if cost <= ON_LOOP
            else await store.records.off_loop(message_id, account_id)
        )
        if record is None:
            raise _unknown()
        pools = store.pools.views({tried.domain for tried in record.recipients}, self.warmup, account_id)
        now = self.services.outside.now()
        shown = await self.workers.run(
            account_id, cost, _encoded, record, facts, pools, now, self.max_attempts, request_id()
        )
        return Response(shown, content_type="application/json")

    @for_customers(
        "GET /v1/emails/{id:not_test}/body",
        "Read what a message says, while its body is kept.",
        (200, BodyAnswer, "Header, texts and attached files."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
    )
    async def body(self, user: User, message_id: str) -> Response:
        facts = self.services.store.mail_log.facts(user.account_id, message_id)
        if facts is None:
            raise _unknown()
        return await self.bodies.answer(user.account_id, message_id, facts.size, request_id())

    @for_customers(
        "POST /v1/emails/{id:not_test}/cancel",
        "Give up what still waits of a message: it fails, its credits go back, its events are sent.",
        (200, CancelledAnswer, "Cancelled."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        parameters=(MESSAGE_ID,),
    )
    async def cancel(self, user: User, message_id: str) -> Response:
        if self.services.store.mail_log.facts(user.account_id, message_id) is None:
            raise _unknown()
        count = await self.services.store.queue_control.cancel(message_id, CANCEL_REASON, user.account_id)
        return answer(CancelledAnswer(count, request_id()))


def _encoded_page(found: MailPage, request_id: str) -> bytes:
    return msgspec.json.encode(EmailsAnswer([_listed(each) for each in found.messages], found.next, request_id))


def _encoded(
    record: MessageRecord, facts: MessageFacts, pools: Mapping[str, PoolView], now: int, attempts: int, request_id: str
) -> bytes:
    return msgspec.json.encode(details(record, facts, pools, now, attempts, request_id))


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "There is no message with this id.")


def _filter() -> MailFilter:
    return MailFilter(
        status=_choice("status", MessageStatus),
        source=_choice("source", Source),
        recipient=_text("recipient", MAILBOX_LENGTH, _in_a_labels),
        sender=_text("from", MAILBOX_LENGTH, _in_lower_case),
        tag=_text("tag", TAG_LENGTH, str),
    )


def _in_lower_case(text: str) -> str:
    """Lower case of ASCII letters only, as the store compares."""
    return text.encode().lower().decode()


def _in_a_labels(text: str) -> str:
    """A recipient as the store has it: its domain in A-labels."""
    local, at, domain = text.rpartition("@")
    try:
        domain = domain_name(domain)
    except Refused:
        domain = _in_lower_case(domain)
    return _in_lower_case(local) + at + domain


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


def _listed(message: ListedMessage) -> ListedMessageObject:
    return ListedMessageObject(
        message.id,
        message.status,
        message.source,
        message.sender,
        message.subject,
        list(message.tags),
        message.recipient_count,
        [ListedRecipientObject(each.email, each.status) for each in message.recipients],
        rfc3339(message.created_at),
    )
