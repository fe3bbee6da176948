"""The JSON bodies of requests.

Base64 needs no JSON escapes, so the contents of attachments go into the body without a pass of the JSON encoder, which
takes most of the time for a large file. They are encoded block by block: another thread, such as an event loop's, waits
for one block and not for the whole file.
"""

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, Final

from mail_appliance.models import Attachment, Email

LARGE: Final = 64 * 1024  # bytes of a message that are worth the way to another thread and back

_BLOCK: Final = 3 * 32 * 1024  # bytes that are encoded at a time; a multiple of 3, so that no padding is within
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_LISTS: Final = frozenset({"to", "cc", "bcc", "tags"})  # each may also be one string


def is_large(text: str | None, html: str | None, attachments: Iterable[Attachment]) -> bool:
    """Whether encoding such a message would hold an event loop for too long."""
    contents = (attachment.content for attachment in attachments if isinstance(attachment, Attachment))
    return sum(len(part) for part in (text, html, *contents) if isinstance(part, Sized)) > LARGE


def encode_message(fields: Mapping[str, Any]) -> bytes:
    """The body for a message's fields, without those that are None; TypeError or ValueError for what is not JSON."""
    return b"".join(_message(fields))


def encode_batch(emails: Iterable[Email], on_error: str | None) -> bytes:
    """The body for a batch; TypeError or ValueError, with the message's index, for what is not JSON."""
    members: list[tuple[str, Iterable[bytes]]] = [("emails", _array(_batch_messages(emails)))]
    if on_error is not None:
        members.append(("on_error", _value("on_error", on_error)))
    return b"".join(_object(members))


def _batch_messages(emails: Iterable[Email]) -> Iterator[Iterable[bytes]]:
    for index, email in enumerate(emails):
        if not isinstance(email, Email):
            raise TypeError(f"emails[{index}] must be an Email, not {type(email).__name__}")
        try:
            yield list(_message(email.as_fields()))
        except (TypeError, ValueError) as cause:
            raise type(cause)(f"emails[{index}]: {cause}") from cause


def _message(fields: Mapping[str, Any]) -> Iterator[bytes]:
    return _object((name, _value(name, value)) for name, value in fields.items() if value is not None)


def _array(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    before = b"["
    for pieces in items:
        yield before
        yield from pieces
        before = b","
    yield b"[]" if before == b"[" else b"]"


def _object(members: Iterable[tuple[str, Iterable[bytes]]]) -> Iterator[bytes]:
    """The pieces of a JSON object: they are joined once, since each copy of a large body takes its time."""
    before = b"{"
    for name, pieces in members:
        yield b'%b"%b":' % (before, name.encode())
        yield from pieces
        before = b","
    yield b"{}" if before == b"{" else b"}"


def _value(name: str, value: Any) -> Iterator[bytes]:
    """A field's value; any iterable of addresses, tags or attachments is a list."""
    if name == "attachments":
        yield from _array(_object(_attachment(attachment)) for attachment in value)
    elif name == "scheduled_at" and isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("scheduled_at has no time zone; pass datetime.now(UTC) + …, for example")
        yield _JSON.encode(value.isoformat()).encode()
    else:
        listed = list(value) if name in _LISTS and not isinstance(value, str) else value
        yield _JSON.encode(listed).encode()


def _attachment(attachment: Attachment) -> Iterator[tuple[str, Iterable[bytes]]]:
    if not isinstance(attachment, Attachment):
        raise TypeError(f"an attachment must be an Attachment, not {type(attachment).__name__}")
    try:
        content = memoryview(attachment.content).cast("B")
    except TypeError as cause:  # of a stream that was opened as text, for example
        raise TypeError(f"the content of attachment {attachment.filename!r} is not bytes: {cause}") from cause
    for name in ("filename", "content_type", "content_id"):
        if (value := getattr(attachment, name)) is not None:
            yield name, _value(name, value)
    yield "content", (b'"', *_base64(content), b'"')


def _base64(content: memoryview) -> Iterator[bytes]:
    for start in range(0, len(content), _BLOCK):
        yield b2a_base64(content[start : start + _BLOCK], newline=False)
