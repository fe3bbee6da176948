"""Checks a send request against every rule of the interface, and composes the MIME message. Pure: no I/O, no state.

An empty string is a body; an empty list of attachments is not. Headers have a fixed order, lines end in CRLF, and the
message is 7-bit ASCII unless an address has a non-ASCII local part, which requires SMTPUTF8. Large bodies stay in
pieces that are joined once, and files are encoded meanwhile.
"""

import binascii
import hashlib
import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Final, TypeVar

import pybase64
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from appliance.errors import Code, Refused, invalid
from appliance.message import header_lines, limits
from appliance.message.addresses import Address, parse
from appliance.message.characters import check_body, check_subject, fault_in_line
from appliance.message.header_lines import OWN_UNSUBSCRIBE, read_headers, read_tags
from appliance.message.labels import read_metadata
from appliance.message.limits import LINE_LENGTH, MESSAGE_SIZE
from appliance.message.schema import Attachment, AttachmentReceipt, DoorRequest, Receipt, SendRequest
from appliance.message.template import render
from appliance.message.text_from_html import text_from_html as made_text
from appliance.model.mail import Billing, StoredTemplate

Value = TypeVar("Value")


# ---- the draft
class File(Struct, frozen=True, gc=False):
    filename: str
    content: bytes
    content_type: str
    content_id: str | None
    size: int  # bytes of the content


class Draft(Struct, frozen=True, gc=False):
    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    recipients: tuple[Address, ...]  # unique, in the order of to, cc and bcc, in their first spelling
    reply_to: tuple[Address, ...]
    subject: str
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]
    metadata: str | None  # JSON
    files: tuple[File, ...]
    header_id: str | None = None  # as in NewMessage
    stream: str | None = None  # its name, as requested

    @property
    def own_unsubscribe(self) -> bool:
        return any(name.lower() in OWN_UNSUBSCRIBE for name, _ in self.headers)


def draft(request: SendRequest, template: StoredTemplate | None) -> Draft:
    """Apply every rule; raise Refused for the first violation. Releases the contents of the attachments."""
    _check_combination(request, template)
    sender = parse(request.sender, "from")
    to, cc, bcc, recipients = _read_recipients(request)
    reply_to = () if request.reply_to is UNSET else _read_addresses(request.reply_to, "reply_to", {})
    headers = () if request.headers is UNSET else read_headers(request.headers)
    tags: tuple[str, ...] = ()
    if isinstance(request.tags, str):
        tags = read_tags([request.tags], "tags")
    elif request.tags is not UNSET:
        tags = read_tags(request.tags, "tags", numbered=True)
    subject, text, html = _or_none(request.subject), _or_none(request.text), _or_none(request.html)
    if request.template is not UNSET and template is not None:
        subject, text, html = render(template, _or_none(request.variables) or {}, subject)
    if subject is None:
        raise invalid("subject", f"this field is required{', since the template has no subject' if template else ''}")
    check_subject(subject)
    for field, body in (("text", text), ("html", html)):
        if body is not None:
            check_body(field, body)
    return Draft(
        sender=sender,
        to=to,
        cc=cc,
        bcc=bcc,
        recipients=recipients,
        reply_to=reply_to,
        subject=subject,
        text=text,
        html=html,
        headers=headers,
        tags=tags,
        metadata=None if request.metadata is UNSET else read_metadata(request.metadata),
        files=() if request.attachments is UNSET else read_files(request.attachments),
        header_id=_or_none(request.header_id) if isinstance(request, DoorRequest) else None,
        stream=_or_none(request.stream),
    )


def receipt_of(drafted: Draft, message_id: str, request_id: str, credits_needed: int) -> Receipt:
    return Receipt(
        id=message_id,
        status="queued",
        source="api",
        request_id=request_id,
        sender=drafted.sender.text,
        to=[address.text for address in drafted.to],
        cc=[address.text for address in drafted.cc] if drafted.cc else [],
        bcc=[address.text for address in drafted.bcc] if drafted.bcc else [],
        subject=drafted.subject,
        billing_status=Billing.RESERVED,
        recipient_count=len(drafted.recipients),
        credits_reserved=credits_needed,
        headers=dict(drafted.headers),
        tags=list(drafted.tags),
        attachments=[
            AttachmentReceipt(file.filename, file.content_type, file.size, file.content_id or UNSET)
            for file in drafted.files
        ],
        reply_to=", ".join([address.text for address in drafted.reply_to]) or UNSET,
    )


def _or_none(value: Value | UnsetType) -> Value | None:
    return None if value is UNSET else value


def _check_combination(request: SendRequest, template: StoredTemplate | None) -> None:
    has_body = request.text is not UNSET or request.html is not UNSET
    if request.template is not UNSET:
        if has_body:
            field = "text" if request.text is not UNSET else "html"
            raise invalid(field, "cannot be combined with template")
        if template is None:
            raise invalid("template", "there is no template with this alias")
    elif request.variables is not UNSET:
        raise invalid("variables", "requires a template")
    elif not has_body and not _or_none(request.attachments):
        raise invalid("text", "at least one of text, html, attachments and template is required")


def _read_recipients(request: SendRequest) -> tuple[tuple[Address, ...], ...]:
    if request.to == []:
        raise invalid("to", "must not be empty")
    known: dict[str, Address] = {}
    to = _read_addresses(request.to, "to", known)
    cc = () if request.cc is UNSET else _read_addresses(request.cc, "cc", known)
    bcc = () if request.bcc is UNSET else _read_addresses(request.bcc, "bcc", known)
    return to, cc, bcc, tuple(known.values()) if cc or bcc else to


def _read_addresses(value: str | list[str], field: str, known: dict[str, Address]) -> tuple[Address, ...]:
    texts = [value] if isinstance(value, str) else value
    if len(texts) > limits.ADDRESS_ENTRIES:
        raise invalid(field, f"must have at most {limits.ADDRESS_ENTRIES} entries")
    unique: dict[str, Address] = {}
    for index, text in enumerate(texts):
        address = parse(text, field if texts is not value else f"{field}[{index}]")
        unique.setdefault(address.key, address)
        known.setdefault(address.key, address)
        if len(known) > limits.RECIPIENTS:  # before hundreds more are parsed
            raise invalid("to", f"to, cc and bcc together may have at most {limits.RECIPIENTS} unique addresses")
    return tuple(unique.values())


_MESSAGE_ID: Final = re.compile(r"[!-;=?-~]+@[!-;=?-~]+")
_HIGH: Final = bytes(range(0x80, 0x100))
_CHUNK: Final = 57 * 1024  # octets per step; 57 octets make a line
BASE64_LINE: Final = 76  # characters


# ---- the message
Piece = bytes | File  # a file becomes base64 when the pieces are joined: memory never holds all its lines twice


class MimePart(Struct, frozen=True, gc=False):
    headers: str
    pieces: Sequence[Piece]


def compose(
    draft: Draft,
    *,
    message_id: str,
    date_seconds: int,
    text_from_html: bool = False,
    unsubscribe_urls: Sequence[str] = (),
) -> bytes:
    """Compose the message with a text part made from lone HTML if that fits; refuse one that is too large."""
    message_id = message_id.removeprefix("<").removesuffix(">")
    if not _MESSAGE_ID.fullmatch(message_id):
        raise ValueError("a Message-ID is printable ASCII around an @")
    headers = _headers(draft, message_id, date_seconds)
    if unsubscribe_urls:
        headers += header_lines.unsubscribe(unsubscribe_urls)
    if text_from_html and draft.text is None and draft.html and (text := made_text(draft.html)):
        pieces = _pieces(headers, _whole(replace(draft, text=text), message_id))
        if sum(map(_size, pieces)) <= MESSAGE_SIZE:
            return _joined(pieces)
    pieces = _pieces(headers, _whole(draft, message_id))
    if sum([len(piece) if isinstance(piece, bytes) else _size(piece) for piece in pieces]) > MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"the assembled message is larger than {MESSAGE_SIZE} bytes (10 MiB)")
    return _joined(pieces)


def _pieces(headers: str, part: MimePart) -> list[Piece]:
    pieces = [f"{headers}{part.headers}\r\n".encode(), *part.pieces]
    last = pieces[-1]
    if isinstance(last, bytes) and last and not last.endswith(b"\r\n"):
        pieces.append(b"\r\n")
    return pieces


def _size(piece: Piece) -> int:
    if isinstance(piece, bytes):
        return len(piece)
    encoded = -(-piece.size // 3) * 4
    return encoded + max(0, encoded - 1) // BASE64_LINE * len("\r\n")


def _joined(pieces: Sequence[Piece]) -> bytes:
    copy = BytesIO()  # returns its content without another copy
    for piece in pieces:
        if isinstance(piece, bytes):
            copy.write(piece)
        else:
            copy.writelines(base64_lines(piece.content))
    return copy.getvalue()


def _headers(draft: Draft, message_id: str, date_seconds: int) -> str:
    lines = [header_lines.date(date_seconds)]  # first, where `redated` expects it
    lines += [header_lines.mailboxes("From", (draft.sender,)), header_lines.mailboxes("To", draft.to)]
    if draft.cc:
        lines.append(header_lines.mailboxes("Cc", draft.cc))
    if draft.reply_to:
        lines.append(header_lines.mailboxes("Reply-To", draft.reply_to))
    lines.append(header_lines.subject(draft.subject))
    lines.append(f"Message-ID: <{message_id}>\r\n")
    lines += [header_lines.custom(name, value) for name, value in draft.headers]
    if draft.tags:
        lines.append(header_lines.custom("X-Service-Tag", ", ".join(draft.tags)))
    lines.append("MIME-Version: 1.0\r\n")
    return "".join(lines)


# ---- parts
def _whole(draft: Draft, message_id: str) -> MimePart:
    """Build mixed(alternative(text, related(html, inline images)), files), without levels of one part."""
    if not draft.files and (draft.text is None or draft.html is None):
        return _text("plain", draft.text or "") if draft.html is None else _text("html", draft.html)
    token = _token(message_id, draft)
    files = [file for file in draft.files if not (file.content_id and draft.html is not None)]
    parts = [_text("plain", draft.text)] if draft.text is not None else []
    if draft.html is not None:
        html = _text("html", draft.html)
        images = [_file(file, "inline") for file in draft.files if file.content_id]
        parts.append(_multipart("related", [html, *images], token) if images else html)
    if len(parts) == 2:
        parts = [_multipart("alternative", parts, token)]
    if not files:
        return parts[0]
    return _multipart("mixed", [*parts, *(_file(file, "attachment") for file in files)], token)


def _token(message_id: str, draft: Draft) -> str:
    """Return the common part of the boundaries: deterministic, and in none of the bodies."""
    seed = message_id
    while True:
        seed = hashlib.sha256(seed.encode("ascii")).hexdigest()
        token = seed[:24]
        if token not in (draft.text or "") and token not in (draft.html or ""):
            return token


def _text(subtype: str, text: str) -> MimePart:
    chunks = list(_chunks(text))
    encoding, pieces = ("7bit", chunks) if text.isascii() and _lines_fit(text) else encode_lines(chunks)
    kind = f"Content-Type: text/{subtype}; charset=utf-8"
    return MimePart(f"{kind}\r\nContent-Transfer-Encoding: {encoding}\r\n", pieces)


def _file(file: File, kind: str) -> MimePart:
    headers = f"Content-Type: {file.content_type}\r\n{header_lines.disposition(kind, file.filename)}"
    if file.content_id:
        headers += f"Content-ID: <{file.content_id}>\r\n"
    return MimePart(f"{headers}Content-Transfer-Encoding: base64\r\n", [file])


def _multipart(subtype: str, parts: Sequence[MimePart], token: str) -> MimePart:
    # `=_` occurs in no quoted-printable and no base64 text (RFC 2045 6.7). The letter keeps one boundary from being a
    # prefix of another: a message has at most one part of each multipart type.
    boundary = f"=_{subtype[0]}{token}"
    # RFC 2387 3.1: a related part names the type of its root.
    kind = f'{subtype}; type="text/html"' if subtype == "related" else subtype
    pieces: list[Piece] = []
    for part in parts:
        opening = "\r\n" if pieces else ""
        pieces.append(f"{opening}--{boundary}\r\n{part.headers}\r\n".encode("ascii"))
        pieces += part.pieces
    pieces.append(f"\r\n--{boundary}--\r\n".encode("ascii"))
    return MimePart(f'Content-Type: multipart/{kind};\r\n boundary="{boundary}"\r\n', pieces)


# ---- content transfer encodings, RFC 2045 6
def encode_lines(chunks: list[bytes]) -> tuple[str, list[bytes]]:
    """Encode chunks of whole CRLF lines as quoted-printable or base64, whichever is shorter."""
    high = sum(len(chunk) - len(chunk.translate(None, _HIGH)) for chunk in chunks)
    # Base64 adds 37 %, quoted-printable two octets for each octet outside ASCII.
    if high * 2 > sum(map(len, chunks)) * 0.37:
        return "base64", list(base64_lines(b"".join(chunks)))
    for index, chunk in enumerate(chunks):  # in place, so that each chunk is released
        # A final line break makes b2a_qp encode a final space and write CRLF.
        ends = chunk.endswith(b"\r\n")
        chunks[index] = binascii.b2a_qp(chunk) if ends else binascii.b2a_qp(chunk + b"\r\n").removesuffix(b"\r\n")
    return "quoted-printable", chunks


def _chunks(text: str) -> Iterator[bytes]:
    """Yield UTF-8 with CRLF line breaks (RFC 2046 4.1.1), in runs of whole lines."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _CHUNK) + 1 or len(text)
        data = text[start:end].encode("utf-8")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        yield data.replace(b"\n", b"\r\n")
        start = end


def base64_lines(data: bytes) -> Iterator[bytes]:
    """Yield runs of base64 lines; the last line has no line end."""
    view = memoryview(data)
    for start in range(0, len(data), _CHUNK):
        lines = pybase64.encodebytes(view[start : start + _CHUNK]).replace(b"\n", b"\r\n")
        yield lines if start + _CHUNK < len(data) else lines.removesuffix(b"\r\n")


def _lines_fit(text: str) -> bool:
    start, size = 0, len(text)
    while size - start > LINE_LENGTH:
        line_end = text.rfind("\n", start, start + LINE_LENGTH + 1)
        if line_end < 0:
            return False
        start = line_end + 1
    return True


# ---- attachments

# Our own table: the standard library reads the machine's files, so two servers would differ.
UNKNOWN_TYPE: Final = "application/octet-stream"

_CONTENT_ID: Final = re.compile(r"[A-Za-z0-9._%+@-]{1,128}")  # RFC 2392, only characters safe in HTML and headers
_NAME: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_QUOTED: Final = r'"[ !#-\[\]-~]*"'  # without escapes
_MEDIA_TYPE: Final = re.compile(rf"({_NAME})/{_NAME}(?:; ?{_NAME}=(?:{_NAME}|{_QUOTED}))*")

_BY_EXTENSION: Final = {
    "7z": "application/x-7z-compressed", "aac": "audio/aac", "avif": "image/avif", "bmp": "image/bmp",
    "bz2": "application/x-bzip2", "css": "text/css", "csv": "text/csv", "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip", "flac": "audio/flac", "gif": "image/gif", "gz": "application/gzip",
    "heic": "image/heic", "htm": "text/html", "html": "text/html", "ico": "image/vnd.microsoft.icon",
    "ics": "text/calendar", "jpeg": "image/jpeg", "jpg": "image/jpeg", "js": "text/javascript",
    "json": "application/json", "log": "text/plain", "m4a": "audio/mp4", "md": "text/markdown",
    "mov": "video/quicktime", "mp3": "audio/mpeg", "mp4": "video/mp4",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet", "odt": "application/vnd.oasis.opendocument.text",
    "ogg": "audio/ogg", "otf": "font/otf", "p7s": "application/pkcs7-signature", "pdf": "application/pdf",
    "pkpass": "application/vnd.apple.pkpass", "png": "image/png", "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "ps": "application/postscript", "rar": "application/vnd.rar", "rtf": "application/rtf",
    "svg": "image/svg+xml", "tar": "application/x-tar", "tgz": "application/gzip", "tif": "image/tiff",
    "tiff": "image/tiff", "tsv": "text/tab-separated-values", "ttf": "font/ttf", "txt": "text/plain",
    "vcf": "text/vcard", "wasm": "application/wasm", "wav": "audio/wav", "webm": "video/webm",
    "webp": "image/webp", "woff": "font/woff", "woff2": "font/woff2", "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xml": "application/xml",
    "yaml": "application/yaml", "yml": "application/yaml", "zip": "application/zip", "zst": "application/zstd",
}  # fmt: skip


def read_files(attachments: Sequence[Attachment]) -> tuple[File, ...]:
    if len(attachments) > limits.ATTACHMENTS:
        raise invalid("attachments", f"at most {limits.ATTACHMENTS} attachments are allowed")
    if sum(map(_encoded_size, attachments)) > limits.MESSAGE_SIZE:
        text = "together they are larger than a message may be (10 MiB)"
        raise Refused(Code.PAYLOAD_TOO_LARGE, text, field="attachments")
    files = tuple(_read_file(file, f"attachments[{index}]") for index, file in enumerate(attachments))
    seen: set[str] = set()
    for index, file in enumerate(files):
        if file.content_id in seen:
            raise invalid(f"attachments[{index}].content_id", "another attachment has the same content_id")
        if file.content_id is not None:
            seen.add(file.content_id)
    return files


def _encoded_size(attachment: Attachment) -> int:
    content = attachment.content
    return len(content) - content.count("\n") - content.count("\r") if "\n" in content else len(content)


def _read_file(attachment: Attachment, field: str) -> File:
    filename, content_type = attachment.filename, attachment.content_type
    _check_filename(filename, f"{field}.filename")
    if content_type is UNSET:
        _, dot, extension = filename.rpartition(".")
        content_type = _BY_EXTENSION.get(extension.lower(), UNKNOWN_TYPE) if dot else UNKNOWN_TYPE
    else:
        media_type = _MEDIA_TYPE.fullmatch(content_type)
        if len(content_type) > limits.CONTENT_TYPE_LENGTH or media_type is None:
            reason = "expected a media type such as `image/png` or `text/plain; charset=utf-8`"
            raise invalid(f"{field}.content_type", reason)
        # RFC 2045 6.4 forbids base64 for these two: a mail reader would parse the bytes as parts.
        if (kind := media_type[1].lower()) in ("multipart", "message"):
            raise invalid(f"{field}.content_type", f"{kind} types cannot be attached; use {UNKNOWN_TYPE}")
    content_id = None if attachment.content_id is UNSET else attachment.content_id
    if content_id is not None and not _CONTENT_ID.fullmatch(content_id):
        raise invalid(f"{field}.content_id", "expected 1 to 128 of A-Z, a-z, 0-9 and `._%+@-`")
    content = _decode_base64(attachment.content, f"{field}.content")
    attachment.content = ""  # so that a large message is not in memory twice
    return File(filename, content, content_type, content_id, len(content))


def _check_filename(filename: str, field: str) -> None:
    if not filename.strip():
        raise invalid(field, "must not be empty")
    if fault := fault_in_line(filename):
        raise invalid(field, f"must not contain {fault}")
    if "/" in filename or "\\" in filename or filename in (".", ".."):
        raise invalid(field, "expected a file name without a path")
    if len(filename.encode()) > limits.FILENAME_LENGTH:
        raise invalid(field, f"must have at most {limits.FILENAME_LENGTH} octets")


def _decode_base64(content: str, field: str) -> bytes:
    if "\n" in content or "\r" in content:
        content = content.replace("\r", "").replace("\n", "")
    if (missing := -len(content) % 4) and "=" not in content:
        content += "=" * missing
    try:
        return pybase64.b64decode(content, validate=True)
    except ValueError as cause:  # binascii.Error, or a string that is not ASCII
        raise invalid(field, "not standard base64") from cause
