"""In charge of a message's bytes: headers in a fixed order, MIME parts, CRLF throughout, 7-bit ASCII.

Only an address with a non-ASCII local part brings UTF-8 into the headers, and with it the need for SMTPUTF8.
"""

import hashlib
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.message import header_lines
from appliance.message.attachments import File
from appliance.message.draft import Draft
from appliance.message.limits import MESSAGE_SIZE
from appliance.message.text_from_html import text_from_html as made_text
from appliance.message.transfer import Encoded, encode_bytes, encode_text

_MESSAGE_ID = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")


class Part(Struct, frozen=True, gc=False):
    """A MIME part: its own header lines, and its body in pieces that are joined once."""

    headers: str
    pieces: list[bytes]


def compose(draft: Draft, *, message_id: str, date_seconds: int, text_from_html: bool = False) -> bytes:
    """The whole message; refused when it is larger than a message may be.

    `message_id` is what stands between the angle brackets, or that with them; `date_seconds` is Unix time.
    With `text_from_html` a message of HTML alone gets a text part, unless that would make it too large.
    """
    message_id = message_id.removeprefix("<").removesuffix(">")
    if not _MESSAGE_ID.fullmatch(message_id):
        raise ValueError("a Message-ID is printable ASCII around an @")
    headers = _headers(draft, message_id, date_seconds)
    if text_from_html and draft.text is None and draft.html and (text := made_text(draft.html)):
        pieces = _pieces(headers, _whole(replace(draft, text=text), message_id))
        if sum(map(len, pieces)) <= MESSAGE_SIZE:
            return b"".join(pieces)
    pieces = _pieces(headers, _whole(draft, message_id))
    if sum(map(len, pieces)) > MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"the assembled message is larger than {MESSAGE_SIZE} bytes (10 MiB)")
    return b"".join(pieces)


def _pieces(headers: str, part: Part) -> list[bytes]:
    pieces = [f"{headers}{part.headers}\r\n".encode(), *part.pieces]
    if pieces[-1] and not pieces[-1].endswith(b"\r\n"):
        pieces.append(b"\r\n")
    return pieces


def _headers(draft: Draft, message_id: str, date_seconds: int) -> str:
    lines = [header_lines.mailboxes("From", (draft.sender,)), header_lines.mailboxes("To", draft.to)]
    if draft.cc:
        lines.append(header_lines.mailboxes("Cc", draft.cc))
    if draft.reply_to:
        lines.append(header_lines.mailboxes("Reply-To", (draft.reply_to,)))
    lines.append(header_lines.subject(draft.subject))
    lines.append(header_lines.date(date_seconds))
    lines.append(f"Message-ID: <{message_id}>\r\n")
    lines += [header_lines.custom(name, value) for name, value in draft.headers]
    if draft.tags:
        lines.append(header_lines.custom("X-Service-Tag", ", ".join(draft.tags)))
    lines.append("MIME-Version: 1.0\r\n")
    return "".join(lines)


def _token(message_id: str, draft: Draft) -> str:
    """What the boundaries of a message have in common: always the same for the same message, and in none of its parts.

    A body that is sent as it is, is searched for it.
    """
    seed = message_id
    while True:
        seed = hashlib.sha256(seed.encode("ascii")).hexdigest()
        token = seed[:24]
        if token not in (draft.text or "") and token not in (draft.html or ""):
            return token


def _whole(draft: Draft, message_id: str) -> Part:
    """mixed(alternative(text, related(html, inline images)), files), without the levels that would hold one part."""
    if not draft.files:
        return _without_files(draft, message_id)
    token = _token(message_id, draft)
    inline = [file for file in draft.files if file.content_id and draft.html is not None]
    files = [file for file in draft.files if not (file.content_id and draft.html is not None)]
    body = _body(draft, inline, token)
    if not files and body:
        return body
    parts = [body] if body else []
    return _multipart("mixed", [*parts, *(_file(file, "attachment") for file in files)], token)


def _without_files(draft: Draft, message_id: str) -> Part:
    if draft.html is None:
        return _text("plain", draft.text or "")
    if draft.text is None:
        return _text("html", draft.html)
    parts = [_text("plain", draft.text), _text("html", draft.html)]
    return _multipart("alternative", parts, _token(message_id, draft))


def _body(draft: Draft, inline: Sequence[File], token: str) -> Part | None:
    parts = []
    if draft.text is not None:
        parts.append(_text("plain", draft.text))
    if draft.html is not None:
        html = _text("html", draft.html)
        images = [_file(file, "inline") for file in inline]
        parts.append(_multipart("related", [html, *images], token) if images else html)
    if len(parts) == 2:
        return _multipart("alternative", parts, token)
    return parts[0] if parts else None


def _text(subtype: str, text: str) -> Part:
    return _part(f"Content-Type: text/{subtype}; charset=utf-8\r\n", encode_text(text))


def _file(file: File, kind: str) -> Part:
    headers = f"Content-Type: {file.content_type}\r\n{header_lines.disposition(kind, file.filename)}"
    if file.content_id:
        headers += f"Content-ID: <{file.content_id}>\r\n"
    return _part(headers, encode_bytes(file.content))


def _part(headers: str, encoded: Encoded) -> Part:
    return Part(f"{headers}Content-Transfer-Encoding: {encoded.encoding}\r\n", encoded.pieces)


def _multipart(subtype: str, parts: Sequence[Part], token: str) -> Part:
    # `=_` occurs in no quoted-printable and no base64 text (RFC 2045 6.7). The letter keeps one boundary from being the
    # beginning of another: a message has one part of each multipart type at most.
    boundary = f"=_{subtype[0]}{token}"
    # RFC 2387 3.1: a related part names the type of its root.
    kind = f'{subtype}; type="text/html"' if subtype == "related" else subtype
    pieces: list[bytes] = []
    for part in parts:
        opening = "\r\n" if pieces else ""
        pieces.append(f"{opening}--{boundary}\r\n{part.headers}\r\n".encode("ascii"))
        pieces += part.pieces
    pieces.append(f"\r\n--{boundary}--\r\n".encode("ascii"))
    return Part(f'Content-Type: multipart/{kind};\r\n boundary="{boundary}"\r\n', pieces)
