"""An account's messages: list, search, read, cancel and resend: /v1/emails.

Long lists and timelines are read and encoded off the event loop.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import Response, request

from appliance.concurrency.fair_share import ON_LOOP
from appliance.errors import Code, Refused, invalid
from appliance.intake.account_rules import searched_recipient, searched_sender
from appliance.message.limits import MAILBOX_LENGTH, RECIPIENTS, TAG_LENGTH
from appliance.message.search_words import QUERY_LENGTH, QUERY_WORDS, TERM_LENGTH, query_words
from appliance.model.accounts import KeyPrincipal, Principal
from appliance.model.dashboard import MailFilter, MailPage, MessageFacts
from appliance.model.mail import Message, MessageStatus, Recipient, RecipientOutcome, RecipientStatus, Source
from appliance.times import microseconds
from appliance.web.answer import CreatedAt, NextPage, RequestId, object_from
from appliance.web.api.message_body import OCTETS, RAW_MESSAGE, BodyAnswer
from appliance.web.api.message_objects import (
    BareAddress,
    CreditsReserved,
    MessageDetails,
    MessageId,
    MessageSource,
    MessageState,
    Outcome,
    RecipientCount,
    RecipientState,
    Sender,
    Subject,
    Tags,
    encoded_details,
)
from appliance.web.app import Routes, choice, page_limit, request_id
from appliance.web.auth import sees
from appliance.web.body import idempotency_key
from appliance.web.operations import (
    KEY_PARAMETER,
    MESSAGE_ID,
    PAGING_BACK,
    Json,
    Limited,
    Tag,
    for_customers,
    parameter,
)

CANCEL_REASON = "given up by the account's owner"
_UNDELIVERED = (RecipientStatus.BOUNCED, RecipientStatus.FAILED)
_WAITING = (RecipientStatus.QUEUED, RecipientStatus.DEFERRED)
MESSAGE_COST = 50  # microseconds to read and list a message with the longest subject and tags
ATTEMPT_COST = 400  # microseconds to encode an attempt with the longest stored transcript


class ListedRecipientObject(msgspec.Struct):
    """One of a message's first recipients."""

    email: BareAddress
    status: RecipientState
    outcome: Outcome


class ListedMessageObject(msgspec.Struct, rename={"sender": "from"}):
    """A message in a list."""

    id: MessageId
    status: MessageState
    source: MessageSource
    sender: Sender
    subject: Subject
    tags: Tags
    recipient_count: RecipientCount
    recipients: Annotated[list[ListedRecipientObject], Meta(description="The first three recipients.")]
    created_at: CreatedAt


class EmailsAnswer(msgspec.Struct):
    """A page of messages, newest first. Pass `next` as `before` to get the next page."""

    emails: Annotated[list[ListedMessageObject], Meta(description="Messages, newest first.")]
    next: NextPage
    request_id: RequestId


class ResendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The recipients that get the message again."""

    recipients: (
        Annotated[
            list[str], Meta(min_length=1, max_length=RECIPIENTS, description="Default: all that bounced or failed.")
        ]
        | UnsetType
    ) = UNSET


class ResentAnswer(msgspec.Struct):
    """The new message and the original."""

    id: Annotated[str, Meta(description="Id of the new message, `msg_…`.")]
    repeats: Annotated[str, Meta(description="Id of the original message.")]
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved
    request_id: RequestId


class CancelledAnswer(msgspec.Struct):
    """The number of cancelled recipients."""

    cancelled: Annotated[int, Meta(description="Number of cancelled recipients.")]
    request_id: RequestId


_MAILBOX: Json = {"type": "string", "minLength": 1, "maxLength": MAILBOX_LENGTH}
_SAME_CASE = "Case-insensitive."
_WORDS = (
    f"Only messages with all of these words: at most {QUERY_WORDS}, separated by spaces. Each must start a "
    "word of a recipient, the sender, the subject, the message or request id, a tag, the template or the "
    f"last SMTP reply. Case-insensitive; only the first {TERM_LENGTH} characters of a word count."
)
# Letters and digits of other scripts work too.
_PART = r"[^\s\u0000-\u001f\u007f-\u00bf\u02b0-\u036f]"
_QUERY = rf"^{_PART}*[0-9A-Za-zÀ-ÖØ-öø-ɏА-я一-鿿가-힣]{_PART}*( {_PART}+){{0,{QUERY_WORDS - 1}}}$"
_MOMENTS: Json = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}]}
_MOMENT = "a time (RFC 3339), or a date (midnight UTC)."
EMAIL_FILTERS = (
    parameter("status", "query", "Filter by status.", {"type": "string", "enum": list(MessageStatus)}),
    parameter("source", "query", "Filter by source.", {"type": "string", "enum": list(Source)}),
    parameter("recipient", "query", f"Filter by recipient address or domain. {_SAME_CASE}", _MAILBOX),
    parameter("from", "query", f"Filter by sender address or domain. {_SAME_CASE}", _MAILBOX),
    parameter("tag", "query", "Filter by tag.", {"type": "string", "minLength": 1, "maxLength": TAG_LENGTH}),
    parameter("q", "query", _WORDS, {"type": "string", "maxLength": QUERY_LENGTH, "pattern": _QUERY}),
    parameter(
        "outcome",
        "query",
        "Only messages with at least one recipient in this state.",
        {"type": "string", "enum": list(RecipientOutcome)},
    ),
    parameter("since", "query", f"Only messages accepted at or after this time: {_MOMENT}", _MOMENTS),
    parameter("until", "query", f"Only messages accepted before this time: {_MOMENT}", _MOMENTS),
)


FILE_NUMBER = parameter(
    "number",
    "path",
    "Index of the file in `attachments`, starting at 0.",
    {"type": "string", "pattern": "^[0-9]{1,3}$"},
)


class EmailRoutes(Routes):
    tag = Tag.MESSAGES

    async def _visible(self, principal: Principal, message_id: str) -> tuple[Message, MessageFacts]:
        """A message that the principal may see. Raises not_found for any other."""
        message = await self.store.messages.read(principal.account_id, message_id)
        facts = await self.store.mail_log.facts(principal.account_id, message_id)
        key = principal if isinstance(principal, KeyPrincipal) else None
        if message is None or facts is None or not sees(key, message):
            raise _unknown()
        return message, facts

    @for_customers("GET /v1/emails", EmailsAnswer, parameters=(*EMAIL_FILTERS, *PAGING_BACK), limited=Limited.NARROWED)
    async def list_emails(self, user: Principal) -> bytes:
        """List the account's messages, newest first.

        Filters are combined. A page may be incomplete while the search continues; `next` is null only at the end. An
        API key that is limited to a domain sees only messages from that domain.
        """
        limit = page_limit()
        filters = MailFilter(
            status=choice("status", MessageStatus),
            source=choice("source", Source),
            recipient=_text("recipient", MAILBOX_LENGTH, searched_recipient),
            sender=_text("from", MAILBOX_LENGTH, searched_sender),
            tag=_text("tag", TAG_LENGTH, str),
            words=_words(),
            outcome=choice("outcome", RecipientOutcome),
            since=_moment("since"),
            until=_moment("until"),
        )
        if isinstance(user, KeyPrincipal) and user.domain is not None:
            if filters.sender is None:
                filters = replace(filters, sender=user.domain)
            elif not user.reaches(searched_recipient(filters.sender).rpartition("@")[2]):
                return _encoded_page(MailPage((), None), request_id())
        account_id, before, cost = user.account_id, request.args.get("before"), MESSAGE_COST * limit
        page = await self.store.mail_log.page(account_id, filters, before, limit, off_loop=cost > ON_LOOP)
        cost = MESSAGE_COST * len(page.messages)
        return await self.services.intake.workers.run(account_id, cost, _encoded_page, page, request_id())

    @for_customers(
        "GET /v1/emails/{id:not_test}",
        MessageDetails,
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
        limited=Limited.NARROWED,
    )
    async def get_email_details(self, user: Principal, message_id: str) -> bytes:
        """Read a message with every delivery attempt and the next step."""
        store, account_id = self.store, user.account_id
        message, facts = await self._visible(user, message_id)
        cost = ATTEMPT_COST * sum(recipient.attempt_count for recipient in message.recipients)
        read = store.records
        record = await read.of(message_id, account_id, off_loop=cost > ON_LOOP)
        if record is None:
            raise _unknown()
        config, now = self.services.config, self.services.env.now()
        pools = await store.pools.views({tried.domain for tried in record.recipients}, config.warmup, account_id)
        most = len(config.delivery.retry_delays) + 1  # attempts
        shown = record, facts, pools, now, most, request_id()
        return await self.services.intake.workers.run(account_id, cost, encoded_details, *shown)

    @for_customers(
        "GET /v1/emails/{id:not_test}/body",
        BodyAnswer,
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
        limited=Limited.NARROWED,
    )
    async def get_email_body(self, user: Principal, message_id: str) -> Response:
        """Read the content of a message, while its body is stored."""
        _, facts = await self._visible(user, message_id)
        return await self.services.bodies.answer(user.account_id, message_id, facts.size, request_id())

    @for_customers(
        "POST /v1/emails/{id:not_test}/cancel",
        CancelledAnswer,
        Code.NOT_FOUND,
        Code.CONFLICT,
        parameters=(MESSAGE_ID,),
        action="email.cancelled",
        limited=Limited.NARROWED,
    )
    async def cancel_email(self, user: Principal, message_id: str) -> CancelledAnswer:
        """Cancel the queued recipients of a message.

        Queued recipients fail, their credits are returned and their events are posted.
        """
        await self._visible(user, message_id)
        count = await self.store.queue_control.cancel(message_id, CANCEL_REASON, user.account_id)
        return CancelledAnswer(count, request_id())

    @for_customers(
        "GET /v1/emails/{id:not_test}/raw",
        (200, bytes, "The stored message, before signing."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID,),
        media=RAW_MESSAGE,
        limited=Limited.NARROWED,
    )
    async def get_email_raw(self, user: Principal, message_id: str) -> Response:
        """Download a message as an `.eml` file, while its body is stored."""
        _, facts = await self._visible(user, message_id)
        return await self.services.bodies.raw(user.account_id, message_id, facts.size)

    @for_customers(
        "GET /v1/emails/{id:not_test}/attachments/{number}",
        (200, bytes, "The file."),
        Code.NOT_FOUND,
        parameters=(MESSAGE_ID, FILE_NUMBER),
        media=OCTETS,
        limited=Limited.NARROWED,
    )
    async def get_email_attachment(self, user: Principal, message_id: str, number: str) -> Response:
        """Download an attachment of a message, while its body is stored.

        The response type is always `application/octet-stream`. `attachments` has the declared type.
        """
        _, facts = await self._visible(user, message_id)
        if not (number.isascii() and number.isdigit() and len(number) <= 3):
            raise _unknown()
        return await self.services.bodies.attachment(user.account_id, message_id, facts.size, int(number))

    @for_customers(
        "POST /v1/emails/{id:not_test}/resend",
        (202, ResentAnswer, "Stored on disk."),
        Code.NOT_FOUND,
        *(code for code in Code if code is not Code.INTERNAL_ERROR),
        body=ResendRequest,
        parameters=(MESSAGE_ID, KEY_PARAMETER),
        limited=Limited.NARROWED,
    )
    async def resend_email(self, user: Principal, message_id: str, body: ResendRequest) -> ResentAnswer:
        """Send a message again, as a new message, to recipients that did not get it.

        By default it goes to the recipients that bounced (also after delivery) or failed. It is checked, charged and
        delivered like any message. It has its own id and date, and names the original in `X-Service-Repeats`. Retrying
        with the same `Idempotency-Key` and body is safe: it returns the first result.
        """
        keys = [value.encode("utf-8") for value in request.headers.getlist("Idempotency-Key")]
        key = idempotency_key(keys[0] if keys else None, doubled=len(keys) > 1)
        message, facts = await self._visible(user, message_id)
        addresses = [recipient.email for recipient in _to_repeat(message, body)]
        intake, own_id = self.services.intake, request_id()
        caller = await self.caller_of(user)
        if facts.simulated and not intake.sandbox:  # a copy of test mail is test mail
            caller = msgspec.structs.replace(caller, test=True)
        named = body.recipients is not UNSET
        made = await intake.resend(caller, message_id, facts, addresses, named=named, key=key, request_id=own_id)
        new = await self.store.messages.read(user.account_id, made.message_id)
        assert new is not None  # noqa: S101 - it has just been written
        return ResentAnswer(new.id, message_id, new.recipient_count, new.credits_reserved, own_id)


def _to_repeat(message: Message, body: ResendRequest) -> list[Recipient]:
    if body.recipients is UNSET:
        undelivered = [
            recipient
            for recipient in message.recipients
            if recipient.status in _UNDELIVERED
            or (recipient.late_bounce is not None and recipient.status is RecipientStatus.DELIVERED)
        ]
        if not undelivered:
            raise Refused(
                Code.CONFLICT, "No recipient of this message bounced or failed. Name the recipients to send to."
            )
        return undelivered
    ids = set(body.recipients)
    recipients = [recipient for recipient in message.recipients if recipient.id in ids]
    if len(recipients) < len(ids):
        raise invalid("recipients", "must be recipient ids of this message")
    if any(recipient.status in _WAITING for recipient in recipients):
        raise Refused(
            Code.CONFLICT, "One of these recipients is still queued. Cancel it first, or wait for its result."
        )
    return recipients


def _encoded_page(page: MailPage, request_id: str) -> bytes:
    emails = [
        object_from(
            ListedMessageObject,
            message,
            tags=list(message.tags),
            recipients=[object_from(ListedRecipientObject, recipient) for recipient in message.recipients],
        )
        for message in page.messages
    ]
    return msgspec.json.encode(EmailsAnswer(emails, page.next, request_id))


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "No message has this id.")


def _text(name: str, most: int, spelled: Callable[[str], str]) -> str | None:
    text = request.args.get(name)
    if text is None:
        return None
    if not 1 <= len(text.strip()) <= most:
        raise invalid(name, f"must have 1 to {most} characters")
    return spelled(text.strip())


def _words() -> tuple[str, ...]:
    query = request.args.get("q")
    return () if query is None else query_words(query)


def _moment(name: str) -> int | None:
    text = request.args.get(name)
    if text is None:
        return None
    try:
        return microseconds(text)
    except ValueError:
        raise invalid(name, "must be a time such as 2026-11-15T13:00:00Z, or a date such as 2026-11-15") from None
