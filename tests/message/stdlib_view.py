"""A message as the standard library's `email` reads it, in the terms of our own reader: an oracle for ordinary mail."""

from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32

View = tuple[str | None, str | None, list[tuple[str, str, int, str | None]]]


def stdlib_view(mime: bytes) -> View:
    """The first text and html that are not files, and everything else: name, type, size and Content-ID."""
    shown: dict[str, str] = {}
    files = []
    for part in BytesParser(policy=compat32).parsebytes(mime).walk():
        if part.is_multipart():
            continue
        kind, payload = part.get_content_type(), part.get_payload(decode=True)
        content = payload if isinstance(payload, bytes) else b""
        is_file = part.get_filename() or part.get_content_disposition() == "attachment"
        if kind in ("text/plain", "text/html") and kind not in shown and not is_file:
            shown[kind] = content.decode(str(part.get_content_charset("utf-8")), "replace")
        else:
            files.append((_name(part), kind, len(content), _content_id(part)))
    return shown.get("text/plain"), shown.get("text/html"), files


def _name(part: Message) -> str:
    return str(make_header(decode_header(part.get_filename() or "")))


def _content_id(part: Message) -> str | None:
    content_id = part.get("Content-ID")
    return None if content_id is None else content_id.strip("<> ")
