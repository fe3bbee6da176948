"""In charge of reading a stored message back for people: its header, its texts, and what is attached. PURE."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from itertools import islice

TEXT_BYTES = 1024 * 1024  # of each text that is shown
FIELDS = 200  # of the header
PARTS = 200  # looked at


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file in a message; `size` is that of the file itself, in bytes."""

    filename: str
    content_type: str
    size: int
    content_id: str | None


@dataclass(slots=True)
class OpenedMessage:
    """What a reader sees; `truncated` when a text was too long to be shown whole."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    text: str | None = None
    html: str | None = None
    attachments: list[AttachedFile] = field(default_factory=list)
    truncated: bool = False


def open_message(mime: bytes) -> OpenedMessage:
    """Read a message. Nothing that a sender may have written makes it fail: what cannot be read is shown as it is."""
    parsed = BytesParser(policy=compat32).parsebytes(mime)
    opened = OpenedMessage([(name, _decoded(value)) for name, value in islice(parsed.raw_items(), FIELDS)])
    for part in _leaves(parsed):
        _put(part, opened)
    return opened


def _leaves(message: Message) -> Iterator[Message]:
    for number, part in enumerate(message.walk()):
        if number >= PARTS:
            return
        if not part.is_multipart():
            yield part


def _put(part: Message, opened: OpenedMessage) -> None:
    """The first text of each kind that is not a file is what a reader sees; everything else is attached."""
    kind, payload = part.get_content_type(), part.get_payload(decode=True)
    content = payload if isinstance(payload, bytes) else b""
    if not part.get_filename() and part.get_content_disposition() != "attachment":
        if kind == "text/plain" and opened.text is None:
            opened.text = _shown(part, content, opened)
            return
        if kind == "text/html" and opened.html is None:
            opened.html = _shown(part, content, opened)
            return
    content_id = part.get("Content-ID")
    name = _decoded(part.get_filename() or "")
    opened.attachments.append(
        AttachedFile(name, kind, len(content), None if content_id is None else _decoded(content_id).strip("<> "))
    )


def _shown(part: Message, content: bytes, opened: OpenedMessage) -> str:
    if len(content) > TEXT_BYTES:
        opened.truncated = True
    charset = part.get_content_charset("utf-8")
    try:
        return content[:TEXT_BYTES].decode(charset, "replace")
    except (LookupError, ValueError):
        return content[:TEXT_BYTES].decode("latin-1")


def _decoded(value: object) -> str:
    """A header's value with its encoded words read, and without what is no character."""
    text = str(value)
    if not text.isascii():  # UTF-8 as it came, which the parser keeps as single octets
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    with suppress(LookupError, ValueError):
        text = str(make_header(decode_header(text)))
    return "".join(text.splitlines()).encode("utf-8", "replace").decode("utf-8")
