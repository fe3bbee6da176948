"""In charge of an account's messages as its owner looks at them: /v1/emails."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

import msgspec
from quart import Blueprint, Response, request

from appliance.concurrency.workers import ON_LOOP, Workers
from appliance.config.settings import WarmupSettings
from appliance.errors import Code, Refused, invalid
from appliance.intake.account_rules import domain_name
from appliance.message.limits import MAILBOX_LENGTH
from appliance.model.dashboard import ListedMessage, MailFilter, MailPage, MessageFacts
from appliance.model.mail import MessageRecord, MessageStatus, RecipientStatus, Source
from appliance.model.queue import PoolView
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.message_body import BodyAnswer, MessageBodies
from appliance.web.api.timeline import MessageDetails, details
from appliance.web.app import Services, answer, page_limit, request_id
from appliance.web.message_json import MESSAGE_ID
from appliance.web.operations import PAGING_BACK, for_customers, parameter

CANCELLED = "given up by the account's owner"
TAG_LENGTH = 64
MESSAGE_COST = 50  # microseconds to read and to list a message with the longest subject and tags
ATTEMPT_COST = 400  # microseconds to show an attempt with the longest dialogue that is kept

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


def blueprint(services: Services, workers: Workers, attempts: int, warmup: WarmupSettings) -> Blueprint:
    """The routes; `attempts` is how many a recipient may have."""
    routes = Blueprint("mail_log", __name__)
    store = services.store
    bodies = MessageBodies(store)

    @routes.get("/v1/emails")
    async def page() -> Response:
        user, limit, wanted = await services.customer(), page_limit(), _filter()
        account_id, before, cost = user.account_id, request.args.get("before"), MESSAGE_COST * limit
        found = await store.mail_log.page(account_id, wanted, before, limit, off_loop=cost > ON_LOOP)
        shown = await workers.run(account_id, MESSAGE_COST * len(found.messages), _encoded_page, found, request_id())
        return Response(shown, content_type="application/json")

    @routes.get("/v1/emails/<not_test:message_id>")
    async def show(message_id: str) -> Response:
        user = await services.customer()
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
        pools = store.pools.views({tried.domain for tried in record.recipients}, warmup, account_id)
        now = services.outside.now()
        shown = await workers.run(account_id, cost, _encoded, record, facts, pools, now, attempts, request_id())
        return Response(shown, content_type="application/json")

    @routes.get("/v1/emails/<not_test:message_id>/body")
    async def body(message_id: str) -> Response:
        user = await services.customer()
        facts = store.mail_log.facts(user.account_id, message_id)
        if facts is None:
            raise _unknown()
        return await bodies.answer(user.account_id, message_id, facts.size, request_id())

    @routes.post("/v1/emails/<not_test:message_id>/cancel")
    async def cancel(message_id: str) -> Response:
        user = await services.customer()
        if store.mail_log.facts(user.account_id, message_id) is None:
            raise _unknown()
        count = await store.queue_control.cancel(message_id, CANCELLED, user.account_id)
        return answer(CancelledAnswer(count, request_id()))

    return routes


def _encoded_page(found: MailPage, request_id: str) -> bytes:
    return msgspec.json.encode(EmailsAnswer([_listed(each) for each in found.messages], found.next, request_id))


def _encoded(
    record: MessageRecord, facts: MessageFacts, pools: Mapping[str, PoolView], now: int, attempts: int, request_id: str
) -> bytes:
    return msgspec.json.encode(details(record, facts, pools, now, attempts, request_id))


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "There is no message with this id.")


# ---- what is asked for


def _filter() -> MailFilter:
    """The filter of the current request."""
    return MailFilter(
        status=_choice("status", MessageStatus),
        source=_choice("source", Source),
        recipient=_text("recipient", MAILBOX_LENGTH, _in_a_labels),
        sender=_text("from", MAILBOX_LENGTH, _in_lower_case),
        tag=_text("tag", TAG_LENGTH, str),
    )


def _in_lower_case(text: str) -> str:
    """As the store compares: ASCII letters only."""
    return text.encode().lower().decode()


def _in_a_labels(text: str) -> str:
    """The same for a recipient, whose domain the store knows in A-labels; what is no domain is nobody's."""
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


# ---- what is answered


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

OPERATIONS = (
    for_customers(
        "get",
        "/v1/emails",
        "List the account's messages, newest first. A page may be short while the search is not over: see `next`.",
        (200, EmailsAnswer, "A page of messages."),
        Code.INVALID_REQUEST,
        parameters=(*_FILTERS, *PAGING_BACK),
    ),
    for_customers(
        "get",
        "/v1/emails/{id}",
        "Read a message with every attempt to deliver it, and what happens next.",
        (200, MessageDetails, "The message."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
    ),
    for_customers(
        "get",
        "/v1/emails/{id}/body",
        "Read what a message says, while its body is kept.",
        (200, BodyAnswer, "Header, texts and attached files."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
    ),
    for_customers(
        "post",
        "/v1/emails/{id}/cancel",
        "Give up what still waits of a message: it fails, its credits go back, its events are sent.",
        (200, CancelledAnswer, "Cancelled."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        parameters=(MESSAGE_ID,),
    ),
)
