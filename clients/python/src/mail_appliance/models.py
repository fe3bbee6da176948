"""Requests and answers, as frozen dataclasses.

Answers are read leniently, so that a newer appliance does not break an older library: unknown fields are ignored,
statuses and types are plain strings, and a field that is missing or of another type is None.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Self

from mail_appliance.errors import ConfigurationError

FINAL_STATUSES = frozenset({"delivered", "partial", "failed"})


class ByteStream(Protocol):
    """What `Attachment.from_stream` reads: any file opened in binary mode."""

    def read(self) -> bytes:
        """All that is left of it."""
        ...


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to send. Without a `content_type` the appliance takes it from the name's extension.

    With a `content_id` it is an inline image, which the HTML shows with `<img src="cid:…">`.
    """

    filename: str
    content: bytes
    content_type: str | None = None
    content_id: str | None = None

    @classmethod
    def from_path(
        cls,
        path: str | PathLike[str],
        filename: str | None = None,
        *,
        content_type: str | None = None,
        content_id: str | None = None,
    ) -> Self:
        """Read a file now. Its name is the last part of the path unless another is given."""
        file = Path(path)
        try:
            content = file.read_bytes()
        except OSError as cause:
            raise ConfigurationError(f"the attachment {file} cannot be read: {cause.strerror}") from cause
        return cls(filename or file.name, content, content_type, content_id)

    @classmethod
    def from_stream(
        cls, stream: ByteStream, filename: str, *, content_type: str | None = None, content_id: str | None = None
    ) -> Self:
        """Read a binary stream to its end, now and once."""
        return cls(filename, stream.read(), content_type, content_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """A message to send. `send` takes the same fields as arguments, `send_batch` a list of these.

    `scheduled_at` is a datetime with a time zone, or RFC 3339 text. `metadata` comes back in `Message` and in events.
    """

    from_: str
    to: str | Iterable[str]
    cc: str | Iterable[str] | None = None
    bcc: str | Iterable[str] | None = None
    reply_to: str | None = None
    subject: str | None = None
    text: str | None = None
    html: str | None = None
    template: str | None = None
    variables: Mapping[str, str | int | float | bool] | None = None
    headers: Mapping[str, str] | None = None
    tags: str | Iterable[str] | None = None
    attachments: Iterable[Attachment] | None = None
    scheduled_at: datetime | str | None = None
    metadata: Mapping[str, str] | None = None

    def as_fields(self) -> dict[str, Any]:
        """The fields by the names of the interface."""
        return {"from" if item.name == "from_" else item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, slots=True)
class AttachmentInfo:
    """What the appliance says of an attachment; `size` is in bytes, before base64."""

    filename: str | None
    content_type: str | None
    size: int | None
    content_id: str | None


@dataclass(frozen=True, slots=True)
class SendResult:
    """An accepted message. `replayed` means that an earlier send with this key had been accepted already."""

    id: str
    status: str | None
    source: str | None
    request_id: str | None
    from_: str | None
    to: tuple[str, ...]
    cc: tuple[str, ...]
    bcc: tuple[str, ...]
    reply_to: str | None
    subject: str | None
    billing_status: str | None
    recipient_count: int | None
    credits_reserved: int | None
    headers: Mapping[str, str] | None
    tags: tuple[str, ...]
    attachments: tuple[AttachmentInfo, ...]
    idempotency_key: str
    replayed: bool
    scheduled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """The result of one message of a batch: `id` if it was accepted, else `error` and `code`."""

    index: int | None
    id: str | None
    status: str | None
    recipient_count: int | None
    credits_reserved: int | None
    error: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """An accepted batch: one result per message, in order. `replayed` means that it had been accepted before."""

    results: tuple[BatchItem, ...]
    accepted: int | None
    refused: int | None
    request_id: str | None
    idempotency_key: str
    replayed: bool


@dataclass(frozen=True, slots=True)
class Recipient:
    """One recipient's delivery state: `scheduled`, `queued`, `deferred`, `delivered`, `bounced` or `failed`."""

    id: str | None
    email: str | None
    status: str | None
    billing_status: str | None
    attempt_count: int | None
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: datetime | None
    bounced_at: datetime | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message and its recipients: `queued`, and in the end `delivered`, `partial` or `failed`."""

    id: str
    status: str | None
    source: str | None
    from_: str | None
    subject: str | None
    billing_status: str | None
    recipient_count: int | None
    credits_reserved: int | None
    created_at: datetime | None
    recipients: tuple[Recipient, ...]
    request_id: str | None
    scheduled_at: datetime | None = None
    metadata: Mapping[str, str] | None = None

    @property
    def is_final(self) -> bool:
        """Whether every recipient has its result."""
        return self.status in FINAL_STATUSES


@dataclass(frozen=True, slots=True)
class EventData:
    """The data of an event. A field that it did not have is None, `tags` is empty."""

    email_id: str | None
    recipient_id: str | None
    to: str | None
    from_: str | None
    subject: str | None
    smtp_code: int | None
    smtp_response: str | None
    test: bool | None
    bounce_class: str | None = None  # only in events of bounces and delays
    message_id: str | None = None  # the Message-ID header, without brackets
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] | None = None
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file attached to a received email. Its `url` is valid for an hour from the event."""

    number: int | None
    filename: str | None
    content_type: str | None
    size: int | None
    url: str | None


@dataclass(frozen=True, slots=True)
class AnsweredEmail:
    """The message of yours that a received email answers."""

    id: str | None
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class ReceivedEmail:
    """An email that the appliance received. Trust `from_` only if `dmarc` is `pass`.

    Do not answer one that is `auto_submitted`. `raw_url` is valid for an hour from the event.
    """

    inbound_id: str | None
    envelope_from: str | None  # empty for a bounce
    envelope_to: tuple[str, ...]
    from_: str | None
    to: tuple[str, ...]
    cc: tuple[str, ...]
    reply_to: tuple[str, ...]
    subject: str | None
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]  # name and value
    message_id: str | None
    in_reply_to: str | None
    in_reply_to_email: AnsweredEmail | None
    attachments: tuple[ReceivedFile, ...]
    spf: str | None
    dkim: str | None
    dmarc: str | None
    size: int | None
    raw_url: str | None
    truncated: bool  # a body was cut
    auto_submitted: bool


@dataclass(frozen=True, slots=True)
class Event:
    """A verified webhook event. Retries and replays have the same `id`: handle each once."""

    id: str
    type: str
    created_at: datetime | None
    data: EventData
    received: ReceivedEmail | None = None  # only in `email.received`


# ---- reading JSON


def send_result(answer: Mapping[str, Any], *, idempotency_key: str, replayed: bool) -> SendResult | None:
    """Read the answer of `POST /emails`; None if it has no `id`."""
    identifier = _text(answer.get("id"))
    if identifier is None:
        return None
    return SendResult(
        id=identifier,
        status=_text(answer.get("status")),
        source=_text(answer.get("source")),
        request_id=_text(answer.get("request_id")),
        from_=_text(answer.get("from")),
        to=_texts(answer.get("to")),
        cc=_texts(answer.get("cc")),
        bcc=_texts(answer.get("bcc")),
        reply_to=_text(answer.get("reply_to")),
        subject=_text(answer.get("subject")),
        billing_status=_text(answer.get("billing_status")),
        recipient_count=_number(answer.get("recipient_count")),
        credits_reserved=_number(answer.get("credits_reserved")),
        headers=_map(answer.get("headers")),
        tags=_texts(answer.get("tags")),
        attachments=tuple(map(_attachment_info, _objects(answer.get("attachments")))),
        idempotency_key=idempotency_key,
        replayed=replayed,
        scheduled_at=_time(answer.get("scheduled_at")),
    )


def batch_result(answer: Mapping[str, Any], *, idempotency_key: str, replayed: bool) -> BatchResult | None:
    """Read the answer of `POST /emails/batch`; None if it has no `results`."""
    if not isinstance(answer.get("results"), list):
        return None
    return BatchResult(
        results=tuple(map(_batch_item, _objects(answer["results"]))),
        accepted=_number(answer.get("accepted")),
        refused=_number(answer.get("refused")),
        request_id=_text(answer.get("request_id")),
        idempotency_key=idempotency_key,
        replayed=replayed,
    )


def message(answer: Mapping[str, Any]) -> Message | None:
    """Read the answer of `GET /emails/{id}`; None if it has no `id`."""
    identifier = _text(answer.get("id"))
    if identifier is None:
        return None
    return Message(
        id=identifier,
        status=_text(answer.get("status")),
        source=_text(answer.get("source")),
        from_=_text(answer.get("from")),
        subject=_text(answer.get("subject")),
        billing_status=_text(answer.get("billing_status")),
        recipient_count=_number(answer.get("recipient_count")),
        credits_reserved=_number(answer.get("credits_reserved")),
        created_at=_time(answer.get("created_at")),
        recipients=tuple(map(_recipient, _objects(answer.get("recipients")))),
        request_id=_text(answer.get("request_id")),
        scheduled_at=_time(answer.get("scheduled_at")),
        metadata=_map(answer.get("metadata")),
    )


def event(body: Any) -> Event | None:
    """Read the body of a webhook; None if it is not an event."""
    if not isinstance(body, dict):
        return None
    identifier, kind, data = body.get("id"), body.get("type"), body.get("data", {})
    if not isinstance(identifier, str) or not isinstance(kind, str) or not isinstance(data, dict):
        return None
    test = data.get("test")
    return Event(
        id=identifier,
        type=kind,
        created_at=_time(body.get("created_at")),
        data=EventData(
            email_id=_text(data.get("email_id")),
            recipient_id=_text(data.get("recipient_id")),
            to=_text(data.get("to")),
            from_=_text(data.get("from")),
            subject=_text(data.get("subject")),
            smtp_code=_number(data.get("smtp_code")),
            smtp_response=_text(data.get("smtp_response")),
            test=test if isinstance(test, bool) else None,
            bounce_class=_text(data.get("bounce_class")),
            message_id=_text(data.get("message_id")),
            tags=_texts(data.get("tags")),
            metadata=_map(data.get("metadata")),
            stream=_text(data.get("stream")),
        ),
        received=_received(data) if kind == "email.received" else None,
    )


def _received(data: Mapping[str, Any]) -> ReceivedEmail:
    envelope, answered = _object(data.get("envelope")), data.get("in_reply_to_email")
    headers = [(_text(item.get("name")), _text(item.get("value"))) for item in _objects(data.get("headers"))]
    return ReceivedEmail(
        inbound_id=_text(data.get("inbound_id")),
        envelope_from=_text(envelope.get("from")),
        envelope_to=_texts(envelope.get("to")),
        from_=_text(data.get("from")),
        to=_texts(data.get("to")),
        cc=_texts(data.get("cc")),
        reply_to=_texts(data.get("reply_to")),
        subject=_text(data.get("subject")),
        text=_text(data.get("text")),
        html=_text(data.get("html")),
        headers=tuple([(name, value) for name, value in headers if name is not None and value is not None]),
        message_id=_text(data.get("message_id")),
        in_reply_to=_text(data.get("in_reply_to")),
        in_reply_to_email=_answered(answered) if isinstance(answered, dict) else None,
        attachments=tuple(map(_received_file, _objects(data.get("attachments")))),
        spf=_text(data.get("spf")),
        dkim=_text(data.get("dkim")),
        dmarc=_text(data.get("dmarc")),
        size=_number(data.get("size")),
        raw_url=_text(data.get("raw_url")),
        truncated=data.get("truncated") is True,
        auto_submitted=data.get("auto_submitted") is True,
    )


def _answered(fields: Mapping[str, Any]) -> AnsweredEmail:
    return AnsweredEmail(id=_text(fields.get("id")), metadata=_map(fields.get("metadata")))


def _received_file(fields: Mapping[str, Any]) -> ReceivedFile:
    return ReceivedFile(
        number=_number(fields.get("number")),
        filename=_text(fields.get("filename")),
        content_type=_text(fields.get("content_type")),
        size=_number(fields.get("size")),
        url=_text(fields.get("url")),
    )


def _attachment_info(fields: Mapping[str, Any]) -> AttachmentInfo:
    return AttachmentInfo(
        filename=_text(fields.get("filename")),
        content_type=_text(fields.get("content_type")),
        size=_number(fields.get("size")),
        content_id=_text(fields.get("content_id")),
    )


def _batch_item(fields: Mapping[str, Any]) -> BatchItem:
    return BatchItem(
        index=_number(fields.get("index")),
        id=_text(fields.get("id")),
        status=_text(fields.get("status")),
        recipient_count=_number(fields.get("recipient_count")),
        credits_reserved=_number(fields.get("credits_reserved")),
        error=_text(fields.get("error")),
        code=_text(fields.get("code")),
    )


def _recipient(fields: Mapping[str, Any]) -> Recipient:
    return Recipient(
        id=_text(fields.get("id")),
        email=_text(fields.get("email")),
        status=_text(fields.get("status")),
        billing_status=_text(fields.get("billing_status")),
        attempt_count=_number(fields.get("attempt_count")),
        last_smtp_code=_number(fields.get("last_smtp_code")),
        last_smtp_response=_text(fields.get("last_smtp_response")),
        delivered_at=_time(fields.get("delivered_at")),
        bounced_at=_time(fields.get("bounced_at")),
    )


def _objects(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple([text for text in value if isinstance(text, str)]) if isinstance(value, list) else ()


def _map(value: Any) -> Mapping[str, str] | None:
    return value if isinstance(value, dict) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _time(value: Any) -> datetime | None:
    """An aware time; one without an offset is UTC."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
