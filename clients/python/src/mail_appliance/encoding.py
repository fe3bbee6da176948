"""The JSON body of `POST /emails`.

Base64 needs no JSON escapes, so the contents of attachments go into the body without a pass of the JSON encoder, which
takes most of the time for a large file. They are encoded block by block: another thread, such as an event loop's, waits
for one block and not for the whole file.
"""

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Final

from mail_appliance.models import Attachment

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
    return b"".join(_object((name, _value(name, value)) for name, value in fields.items() if value is not None))


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
        before = b"["
        for attachment in value:
            yield before
            yield from _object(_attachment(attachment))
            before = b","
        yield b"[]" if before == b"[" else b"]"
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
