"""An account's messages: list, search, count, export, read, retry, cancel and resend: /v1/emails.

Long lists and timelines are read and encoded off the event loop.
"""

import re
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace
from quart import Response, request

from appliance.concurrency.fair_share import ON_LOOP
from appliance.environment import identifier_time
from appliance.errors import Code, Refused, invalid
from appliance.intake.account_rules import searched_recipient, searched_sender
from appliance.intake.resend import resend
from appliance.message.addresses import parse as parse_address
from appliance.message.labels import metadata_entry
from appliance.message.limits import MAILBOX_LENGTH, METADATA_VALUE_LENGTH, RECIPIENTS, STREAM_LENGTH, TAG_LENGTH
from appliance.message.schema import METADATA_KEY
from appliance.message.search_words import QUERY_LENGTH, QUERY_WORDS, TERM_LENGTH, query_words
from appliance.model.accounts import KeyPrincipal, Principal
from appliance.model.dashboard import MailFilter, MailPage, MessageFacts
from appliance.model.mail import Message, MessageStatus, Recipient, RecipientOutcome, RecipientStatus, Source, lists_of
from appliance.model.ramp import sources_in_use
from appliance.web.api.message_body import (
    ATTACHED_FILE,
    JSON,
    OCTETS,
    RAW_FILE,
    RAW_MESSAGE,
    BodyAnswer,
    encoded_attachment,
    encoded_body,
)
from appliance.web.api.message_export import exported
from appliance.web.api.message_objects import EmailsAnswer, MessageDetails, ResentAnswer, encoded_details, encoded_page
from appliance.web.api.templates import LINE
from appliance.web.app import Flag, Routes, choice, flag, moment, page_limit, text_filter
from appliance.web.auth import sees
from appliance.web.exchange import ApiAnswer, idempotency_key, request_id
from appliance.web.operations import (
    BEFORE_PARAMETER,
    KEY_PARAMETER,
    MESSAGE_ID,
    PAGING_BACK,
    STREAM_FILTER,
    Json,
    Limited,
    Operation,
    Success,
    Tag,
    choice_parameter,
    for_customers,
    identifier,
    parameter,
)

_UNDELIVERED = (RecipientStatus.BOUNCED, RecipientStatus.FAILED)
_WAITING = (RecipientStatus.QUEUED, RecipientStatus.DEFERRED)
_MAY_BE_SUPPRESSED = (
    RecipientOutcome.BOUNCED,
    RecipientOutcome.SUPPRESSED,
    RecipientOutcome.LATE_BOUNCED,
    RecipientOutcome.COMPLAINED,
)
MESSAGE_COST = 50  # microseconds to read and list a message with the longest subject and tags
ATTEMPT_COST = 400  # microseconds to encode an attempt with the longest stored transcript


_REPEATED = Meta(min_length=1, max_length=RECIPIENTS, description="Default: all that bounced or failed.")


class ResendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The recipients that get the message again."""

    recipients: Annotated[list[str], _REPEATED] | UnsetType = UNSET


class CountAnswer(ApiAnswer):
    """The number of matching messages. Pass `next` as `before` to count older messages, and add the numbers."""

    count: Annotated[int, Meta(description="Number of matching messages in this part.")]
    next: Annotated[str | None, Meta(description="Cursor of the next part; null if all messages are counted.")]


class RetriedAnswer(ApiAnswer):
    """The number of recipients that are due now."""

    retried: Annotated[int, Meta(description="Number of recipients whose next attempt is due now.")]


class CancelledAnswer(ApiAnswer):
    """The number of cancelled recipients."""

    cancelled: Annotated[int, Meta(description="Number of cancelled recipients.")]


_MAILBOX: Json = {"type": "string", "pattern": r"\S", "maxLength": MAILBOX_LENGTH}
_SAME_CASE = "Case-insensitive."
_WORDS = (
    f"Only messages with all of these words: at most {QUERY_WORDS}, separated by spaces. Each must start a "
    "word of a recipient, the sender, the subject, the message or request id, a tag, the template or the "
    f"last SMTP reply. Case-insensitive; only the first {TERM_LENGTH} characters of a word count."
)
_VALUE = LINE["pattern"].removeprefix("^").replace("*$", f"{{0,{METADATA_VALUE_LENGTH}}}$")
_ENTRY: Json = {"type": "string", "pattern": f"{METADATA_KEY.removesuffix('$')}:{_VALUE}"}
# Letters and digits of other scripts work too.
_PART = r"[^\s\u0000-\u001f\u007f-\u00bf\u02b0-\u036f]"
_QUERY = rf"^{_PART}*[0-9A-Za-zÀ-ÖØ-öø-ɏА-я一-鿿가-힣]{_PART}*( {_PART}+){{0,{QUERY_WORDS - 1}}}$"
_MOMENTS: Json = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}]}
_MOMENT = "a time (RFC 3339), or a date (midnight UTC)."
EMAIL_FILTERS = (
    choice_parameter("status", "Filter by status.", MessageStatus),
    choice_parameter("source", "Filter by source.", Source),
    parameter("recipient", "query", f"Filter by recipient address or domain. {_SAME_CASE}", _MAILBOX),
    parameter("from", "query", f"Filter by sender address or domain. {_SAME_CASE}", _MAILBOX),
    parameter("address", "query", f"Filter by a part of a recipient's address. {_SAME_CASE}", _MAILBOX),
    parameter("tag", "query", "Filter by tag.", {"type": "string", "pattern": r"\S", "maxLength": TAG_LENGTH}),
    parameter("provider", "query", "Filter by the provider pool of a recipient's domain, such as `google`.", _MAILBOX),
    parameter("key", "query", "Filter by API key id or SMTP username that sent the message.", _MAILBOX),
    parameter("metadata", "query", "Filter by an entry of the metadata, `KEY:VALUE`. Case-sensitive.", _ENTRY),
    STREAM_FILTER,
    parameter("q", "query", _WORDS, {"type": "string", "maxLength": QUERY_LENGTH, "pattern": _QUERY}),
    choice_parameter("outcome", "Only messages with at least one recipient of this outcome.", RecipientOutcome),
    choice_parameter("waiting", "Only messages with at least one queued or deferred recipient.", Flag),
    parameter("since", "query", f"Only messages accepted at or after this time: {_MOMENT}", _MOMENTS),
    parameter("until", "query", f"Only messages accepted before this time: {_MOMENT}", _MOMENTS),
)


_NEWER = "Id of a message: list those that were accepted next after it. `next` then continues towards newer messages."
_ID = "^msg_[0-9a-f]{32}$"
_AFTER = parameter("after", "query", _NEWER, {"type": "string", "pattern": _ID})
FILE_NUMBER = identifier("Index of the file in `attachments`, starting at 0.", "^[0-9]{1,3}$", "number")


def for_email(name: str, success: type | Success, *declared: Code | Json, action: str = "") -> Operation:
    """An operation on one message, which a key limited to a domain may call for messages from that domain."""
    return for_customers(name, success, MESSAGE_ID, *declared, action=action, limited=Limited.NARROWED)


class EmailRoutes(Routes):
    tag = Tag.MESSAGES

    async def visible(self, principal: Principal, message_id: str) -> tuple[Message, MessageFacts]:
        message = await self.store.messages.read(principal.account_id, message_id)
        facts = await self.store.mail_log.facts(principal.account_id, message_id)
        key = principal if isinstance(principal, KeyPrincipal) else None
        if message is None or facts is None or not sees(key, message):
            raise _unknown()
        return message, facts

    @for_customers("GET /v1/emails", EmailsAnswer, *EMAIL_FILTERS, *PAGING_BACK, _AFTER, limited=Limited.NARROWED)
    async def list_emails(self, user: Principal) -> bytes | Response:
        """List the account's messages, newest first.

        Filters are combined. A page may be incomplete while the search continues; `next` is null only at the end. An
        API key that is limited to a domain sees only messages from that domain. With `Accept: text/csv` or
        `format=csv`, the response is CSV with one line per recipient of the newest 100,000 matching messages.
        """
        limit, filters = page_limit(), mail_filters(user)
        account_id, before, cost = user.account_id, request.args.get("before"), MESSAGE_COST * limit
        if request.headers.get("Accept", "").startswith("text/csv") or request.args.get("format") == "csv":
            lines = exported(self.store.mail_log, self.services.intake.workers, account_id, filters, before)
            disposition = {"Content-Disposition": 'attachment; filename="messages.csv"'}
            return Response(lines, 200, disposition, content_type="text/csv; charset=utf-8")
        if filters is None:
            return encoded_page(MailPage((), None), request_id())
        if "after" in request.args:
            page = await self._page_above(account_id, filters, request.args["after"], limit)
            return await self.services.intake.workers.run(account_id, cost, encoded_page, page, request_id())
        page = await self.store.mail_log.page(account_id, filters, before, limit, off_loop=cost > ON_LOOP)
        cost = MESSAGE_COST * len(page.messages)
        return await self.services.intake.workers.run(account_id, cost, encoded_page, page, request_id())

    async def _page_above(self, account_id: str, filters: MailFilter, after: str, limit: int) -> MailPage:
        if "before" in request.args or not re.fullmatch(_ID, after):
            raise invalid("after", "expected the id of a message, without before")
        ids = await self.store.records.ids_above(account_id, after, limit + 1)
        before = ids[limit] if len(ids) > limit else None
        since = max(filters.since or 0, identifier_time(after))
        page = await self.store.mail_log.page(account_id, replace(filters, since=since), before, limit, off_loop=True)
        newer = tuple(message for message in page.messages if message.id > after)
        return MailPage(newer, None if before is None else ids[limit - 1])

    @for_customers("GET /v1/emails/count", CountAnswer, *EMAIL_FILTERS, BEFORE_PARAMETER, limited=Limited.NARROWED)
    async def count_emails(self, user: Principal) -> CountAnswer:
        """Count the account's messages, with the filters of `GET /v1/emails`.

        A request counts for at most 50 ms. If `next` is not null, continue from there and add the numbers.
        """
        filters = mail_filters(user)
        if filters is None:
            return CountAnswer(0, None)
        counted = await self.store.mail_log.count(user.account_id, filters, request.args.get("before"))
        return CountAnswer(counted.count, counted.next)

    @for_email("GET /v1/emails/{id:not_test}", MessageDetails)
    async def get_email_details(self, user: Principal, message_id: str) -> bytes:
        """Read a message with every delivery attempt and the next step."""
        store, account_id = self.store, user.account_id
        message, facts = await self.visible(user, message_id)
        cost = ATTEMPT_COST * sum(recipient.attempt_count for recipient in message.recipients)
        read = store.records
        record = await read.of(message_id, account_id, off_loop=cost > ON_LOOP)
        if record is None:
            raise _unknown()
        config, now = self.services.config, self.services.env.now()
        domains, table = {tried.domain for tried in record.recipients}, sources_in_use(config, store.ramping.plan)
        pools = await store.pools.views(domains, config.warmup, account_id, message.stream, table)
        most = len(config.delivery.retry_delays) + 1  # attempts
        returned = {
            recipient.id: parse_address(recipient.email, "to").key
            for recipient in message.recipients
            if recipient.outcome in _MAY_BE_SUPPRESSED
        }
        lists = lists_of(facts.tags, facts.template_alias, facts.stream)
        origins = await store.suppressions.origins(account_id, list(returned.values()), lists)
        suppressed = {recipient_id: origins[key] for recipient_id, key in returned.items() if key in origins}
        shown = record, facts, pools, suppressed, now, most, request_id()
        return await self.services.intake.workers.run(account_id, cost, encoded_details, *shown)

    @for_email("GET /v1/emails/{id:not_test}/body", BodyAnswer)
    async def get_email_body(self, user: Principal, message_id: str) -> Response:
        """Read the content of a message, while its body is stored."""
        _, facts = await self.visible(user, message_id)
        read = partial(encoded_body, request_id())
        return await self.services.bodies.answer(user.account_id, message_id, facts.size, read, JSON)

    @for_email("POST /v1/emails/{id:not_test}/cancel", CancelledAnswer, Code.CONFLICT, action="email.cancelled")
    async def cancel_email(self, user: Principal, message_id: str) -> CancelledAnswer:
        """Cancel the queued recipients of a message.

        Queued recipients fail, their credits are returned and their events are posted.
        """
        await self.visible(user, message_id)
        count = await self.store.queue_control.cancel(message_id, f"by {_named(user)}", user.account_id)
        return CancelledAnswer(count)

    @for_email("POST /v1/emails/{id:not_test}/retry", RetriedAnswer, Code.CONFLICT, action="email.retried")
    async def retry_email(self, user: Principal, message_id: str) -> RetriedAnswer:
        """Try the queued recipients of a message now instead of at their next attempt.

        The attempt counts like any other, and the limits of the provider pool apply. A recipient that was tried within
        the last minute keeps its time.
        """
        await self.visible(user, message_id)
        return RetriedAnswer(await self.store.queue_control.retry_own_message(message_id, user.account_id))

    @for_email("GET /v1/emails/{id:not_test}/raw", RAW_FILE)
    async def get_email_raw(self, user: Principal, message_id: str) -> Response:
        """Download a message as an `.eml` file, while its body is stored."""
        _, facts = await self.visible(user, message_id)
        file = RAW_MESSAGE, f"{message_id}.eml"
        return await self.services.bodies.answer(user.account_id, message_id, facts.size, bytes, *file)

    @for_email("GET /v1/emails/{id:not_test}/attachments/{number}", ATTACHED_FILE, FILE_NUMBER)
    async def get_email_attachment(self, user: Principal, message_id: str, number: str) -> Response:
        """Download an attachment of a message, while its body is stored.

        The response type is always `application/octet-stream`. `attachments` has the declared type.
        """
        _, facts = await self.visible(user, message_id)
        if not (number.isascii() and number.isdigit() and len(number) <= 3):
            raise _unknown()
        # Always a download: a stranger chose its type and name.
        read, file = partial(encoded_attachment, int(number)), (OCTETS, f"{message_id}-{int(number)}")
        return await self.services.bodies.answer(user.account_id, message_id, facts.size, read, *file)

    @for_email("POST /v1/emails/{id:not_test}/resend", (202, ResentAnswer, "Stored on disk."), *Code, KEY_PARAMETER)
    async def resend_email(self, user: Principal, message_id: str, body: ResendRequest) -> ResentAnswer:
        """Send a message again, as a new message, to recipients that did not get it.

        By default it goes to the recipients that bounced (also after delivery) or failed. It is checked, charged and
        delivered like any message. It has its own id and date, and names the original in `X-Service-Repeats`. Retrying
        with the same `Idempotency-Key` and body is safe: it returns the first result.
        """
        keys = [value.encode("utf-8") for value in request.headers.getlist("Idempotency-Key")]
        key = idempotency_key(keys[0] if keys else None, doubled=len(keys) > 1)
        message, facts = await self.visible(user, message_id)
        addresses = [recipient.email for recipient in _to_repeat(message, body)]
        intake, own_id = self.services.intake, request_id()
        caller = await self.caller_of(user)
        if facts.simulated and not intake.sandbox:  # a copy of test mail is test mail
            caller = msgspec.structs.replace(caller, test=True)
        named = body.recipients is not UNSET
        made = await resend(intake, caller, message_id, facts, addresses, named=named, key=key, request_id=own_id)
        new = await self.store.messages.read(user.account_id, made.message_id)
        assert new is not None  # noqa: S101 - it has just been written
        return ResentAnswer(new.id, message_id, new.recipient_count, new.credits_reserved)


def mail_filters(user: Principal) -> MailFilter | None:
    """Read the filters of a request; None: the principal can see no message that matches."""
    filters = MailFilter(
        status=choice("status", MessageStatus),
        source=choice("source", Source),
        recipient=text_filter("recipient", MAILBOX_LENGTH, searched_recipient),
        sender=text_filter("from", MAILBOX_LENGTH, searched_sender),
        tag=text_filter("tag", TAG_LENGTH),
        words=query_words(request.args["q"]) if "q" in request.args else (),
        outcome=choice("outcome", RecipientOutcome),
        waiting=flag("waiting"),
        address_part=text_filter("address", MAILBOX_LENGTH, searched_sender),
        provider=text_filter("provider", MAILBOX_LENGTH),
        credential=text_filter("key", MAILBOX_LENGTH),
        since=moment("since"),
        until=moment("until"),
        metadata=metadata_entry(request.args["metadata"]) if "metadata" in request.args else None,
        stream=text_filter("stream", STREAM_LENGTH),
    )
    if isinstance(user, KeyPrincipal) and user.domain is not None:
        if filters.sender is None:
            return replace(filters, sender=user.domain)
        if not user.reaches(searched_recipient(filters.sender).rpartition("@")[2]):
            return None
    return filters


def _to_repeat(message: Message, body: ResendRequest) -> list[Recipient]:
    if body.recipients is UNSET:
        undelivered = [
            recipient
            for recipient in message.recipients
            if recipient.status in _UNDELIVERED
            or (recipient.late_bounce is not None and recipient.status is RecipientStatus.DELIVERED)
        ]
        if not undelivered:
            text = "No recipient of this message bounced or failed. Name the recipients to send to."
            raise Refused(Code.CONFLICT, text)
        return undelivered
    ids = set(body.recipients)
    recipients = [recipient for recipient in message.recipients if recipient.id in ids]
    if len(recipients) < len(ids):
        raise invalid("recipients", "must be recipient ids of this message")
    if any(recipient.status in _WAITING for recipient in recipients):
        text = "One of these recipients is still queued. Cancel it first, or wait for its result."
        raise Refused(Code.CONFLICT, text)
    return recipients


def _named(principal: Principal) -> str:
    if not isinstance(principal, KeyPrincipal):
        return principal.email
    return f"the API key {principal.name} ({principal.id})" if principal.name else f"the API key {principal.id}"


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "No message has this id.")
