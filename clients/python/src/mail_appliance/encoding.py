"""The JSON body of `POST /emails`.

Base64 needs no JSON escapes, so the contents of attachments go into the body without a pass of the JSON encoder, which
takes most of the time for a large file. They are encoded block by block: another thread, such as an event loop's, waits
for one block and not for the whole file.
"""

import json
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sized
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
    members = [_member(name, value) for name, value in fields.items() if value is not None]
    return b"{" + b",".join(members) + b"}"


def _member(name: str, value: Any) -> bytes:
    """A field; any iterable of addresses, tags or attachments is a list."""
    if name == "attachments":
        return b'"attachments":[' + b",".join([_attachment(attachment) for attachment in value]) + b"]"
    listed = list(value) if name in _LISTS and not isinstance(value, str) else value
    return f'"{name}":{_JSON.encode(listed)}'.encode()


def _attachment(attachment: Attachment) -> bytes:
    if not isinstance(attachment, Attachment):
        raise TypeError(f"an attachment must be an Attachment, not {type(attachment).__name__}")
    try:
        content = memoryview(attachment.content).cast("B")
    except TypeError as cause:  # of a stream that was opened as text, for example
        raise TypeError(f"the content of attachment {attachment.filename!r} is not bytes: {cause}") from cause
    fields = {"filename": attachment.filename}
    if attachment.content_type is not None:
        fields["content_type"] = attachment.content_type
    if attachment.content_id is not None:
        fields["content_id"] = attachment.content_id
    blocks = [b2a_base64(content[start : start + _BLOCK], newline=False) for start in range(0, len(content), _BLOCK)]
    return b"".join([_JSON.encode(fields)[:-1].encode(), b',"content":"', *blocks, b'"}'])
