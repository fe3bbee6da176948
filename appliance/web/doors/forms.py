"""Reads urlencoded and multipart requests, for doors whose clients send forms. No I/O.

Werkzeug decodes multipart. It has no limit on the header of a part, so this module feeds it small pieces and checks
between them. A part is never decoded further: nested multipart, other charsets and transfer encodings are refused.
"""

import re
from binascii import a2b_qp
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from werkzeug.exceptions import HTTPException
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from appliance.errors import Code, Refused, invalid
from appliance.message.characters import cost_of_size
from appliance.message.request import Body

COSTED_BYTES: Final = 64 * 1024  # bytes that are searched for the cost; a longer body is expensive by its size
_MOST_FIELDS: Final = 1_500  # of one form; a newsletter of Ghost has about 1,020, of them 1,000 recipients
_FIELD_NAME: Final = 256  # characters
_PART_HEADERS: Final = 8  # of one part
_STEP: Final = 16 * 1024  # bytes between two checks, and of the longest header of a part
_COST_OF_FIELD: Final = 20  # microseconds
_TYPE: Final = re.compile(
    rb"\s*(application/x-www-form-urlencoded|multipart/form-data)\s*"
    rb"((?:;\s*[a-z0-9-]{1,40}=(?:\"[^\"\\]{0,100}\"|[^\s\";]{0,100})\s*)*);?\s*",
    re.IGNORECASE,
)
_PARAMETER: Final = re.compile(rb";\s*([a-z0-9-]{1,40})=(?:\"([^\"\\]{0,100})\"|([^\s\";]{0,100}))", re.IGNORECASE)
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046 5.1.1
_UTF_8: Final = ("", "utf-8", "utf8", "us-ascii")


class PostedFile(NamedTuple):
    filename: str
    content_type: str  # as the client sent it, or empty
    content: bytes
    content_id: str = ""  # empty: the filename


class PostedForm(NamedTuple):
    fields: dict[str, list[str]]
    files: dict[str, list[PostedFile]]


def check_form_type(content_type: bytes) -> None:
    form_type(content_type)


@lru_cache(64)  # each request asks twice
def form_type(content_type: bytes) -> bytes | None:
    """The boundary of a multipart form, or None for an urlencoded one. Refuses any other type."""
    match = _TYPE.fullmatch(content_type)
    if match is None:
        raise invalid("Content-Type", "expected multipart/form-data or application/x-www-form-urlencoded")
    values: dict[bytes, bytes] = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(match[2])}
    if values.get(b"charset", b"").decode("ascii", "replace").lower() not in _UTF_8:
        raise invalid("Content-Type", "the charset is not supported. Send UTF-8.")
    if not match[1].lower().startswith(b"multipart"):
        return None
    boundary = values.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise invalid("Content-Type", "the boundary is missing, or not one of RFC 2046")
    return boundary


def cost_of_form(size: int) -> int:
    """Estimate the microseconds to read a form of `size` bytes, if it has the usual number of fields."""
    return cost_of_size(size) + _COST_OF_FIELD * min(_MOST_FIELDS, size // 60)


def read_form(content_type: bytes, body: Body) -> PostedForm:
    boundary = form_type(content_type)
    return _urlencoded(body) if boundary is None else _plain(boundary, body) or _multipart(boundary, body)


# ---- urlencoded


def _urlencoded(body: Body) -> PostedForm:
    if body.count(b"&") >= _MOST_FIELDS:
        raise _too_many()
    fields: dict[str, list[str]] = {}
    for pair in bytes(body).split(b"&"):
        name, _, value = pair.partition(b"=")
        if pair:
            key = _field_name(_unquoted(name[: 3 * _FIELD_NAME + 1]))
            fields.setdefault(key, []).append(_text(key, _unquoted(value)))
    return PostedForm(fields, {})


def _unquoted(value: bytes) -> bytes:
    """Decode a value, a long one in pieces: the decoders hold the interpreter lock or make an object of each escape."""
    value = value.replace(b"+", b" ")
    if b"%" not in value:
        return value
    if len(value) <= _STEP:
        return _unescaped(value)
    plain, at = bytearray(), 0
    while at < len(value):
        escape = value.rfind(b"%", at + _STEP - 2, at + _STEP)
        end = escape if escape > 0 else at + _STEP
        plain += _unescaped(value[at:end])
        at = end
    return bytes(plain)


def _unescaped(value: bytes) -> bytes:
    """Decode the escapes as those of quoted-printable, five times as fast as `unquote_to_bytes`.

    Each valid escape shortens the value by two bytes. An invalid one does not, unless a line ends there.
    """
    plain = a2b_qp(value.replace(b"=", b"=3D").replace(b"%", b"="))
    is_valid = len(plain) == len(value) - 2 * value.count(b"%") and b"\n" not in value and b"\r" not in value
    return plain if is_valid else unquote_to_bytes(value)


# ---- multipart


# As the clients write it. Any other spelling is for the decoder.
_PLAIN_HEADER: Final = re.compile(
    rb'\r\nContent-Disposition: form-data; name="([A-Za-z0-9:._-]{1,%d})"\r\n\r\n' % _FIELD_NAME
)


def _plain(boundary: bytes, body: Body) -> PostedForm | None:
    """Read a small form without files, or return None. The decoder takes 370 µs for one of 2 KB, this takes 30."""
    if len(body) > COSTED_BYTES:
        return None
    delimiter = b"--" + boundary
    before, *parts = (b"\r\n" + body).split(b"\r\n" + delimiter)
    # Some clients end lines otherwise: then the delimiter stands elsewhere, too.
    if before or not 1 < len(parts) == body.count(delimiter) <= _MOST_FIELDS or parts.pop() not in (b"--", b"--\r\n"):
        return None
    fields: dict[str, list[str]] = {}
    for part in parts:
        if (header := _PLAIN_HEADER.match(part)) is None:
            return None
        name = header[1].decode()
        fields.setdefault(name, []).append(_text(name, part[header.end() :]))
    return PostedForm(fields, {})


def _multipart(boundary: bytes, body: Body) -> PostedForm:
    decoder = MultipartDecoder(boundary, max_parts=_MOST_FIELDS)
    form, part, content = PostedForm({}, {}), None, bytearray()
    at = header_began = 0
    try:
        while not isinstance(event := decoder.next_event(), Epilogue):
            if isinstance(event, NeedData):
                if part is None and at - header_began > 2 * _STEP:
                    raise invalid(
                        "body", f"the header of a part is longer than {_STEP} bytes, or text precedes the parts"
                    )
                decoder.receive_data(bytes(body[at : at + _STEP]) or None)
                at += _STEP
            elif isinstance(event, Field | File):
                part = event
                _check_part(part)
            elif isinstance(event, Data) and part is not None:
                content += event.data
                if not event.more_data:
                    _add(form, part, content)
                    part, content, header_began = None, bytearray(), at
    except HTTPException as cause:
        raise _too_many() from cause
    except ValueError as cause:  # a UnicodeDecodeError, too
        raise invalid("body", "not valid multipart/form-data (RFC 7578)") from cause
    return form


def _check_part(part: Field | File) -> None:
    name = _field_name(part.name) if isinstance(part.name, str) else ""
    if not name:
        raise invalid("body", "a part has no name")
    if len(part.headers) > _PART_HEADERS:
        raise invalid(name, f"the part has more than {_PART_HEADERS} headers")
    kind = part.headers.get("content-type", "").lower()
    if kind.startswith("multipart/"):
        raise invalid(name, "nested multipart is not supported. Send each file as a part of its own.")
    if part.headers.get("content-transfer-encoding", "binary").strip().lower() not in ("binary", "8bit", "7bit"):
        raise invalid(name, "Content-Transfer-Encoding is not supported. Send the bytes as they are.")
    _, _, charset = kind.partition("charset=")
    if isinstance(part, Field) and charset.partition(";")[0].strip(' "') not in _UTF_8:
        raise invalid(name, "the charset of the part is not supported. Send UTF-8.")


def _add(form: PostedForm, part: Field | File, content: bytearray) -> None:
    if isinstance(part, File):
        posted = PostedFile(part.filename, part.headers.get("content-type", ""), bytes(content))
        form.files.setdefault(part.name, []).append(posted)
    else:
        form.fields.setdefault(part.name, []).append(_text(part.name, content))


# ---- both


def _field_name(name: bytes | str) -> str:
    text = name if isinstance(name, str) else _text("body", name)
    if len(text) > _FIELD_NAME or not text.isprintable():
        raise invalid("body", f"the name of a field has at most {_FIELD_NAME} printable characters")
    return text


def _text(name: str, value: bytes | bytearray) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as cause:
        raise invalid(name, f"not valid UTF-8 (byte {cause.start})") from cause


def _too_many() -> Refused:
    return Refused(Code.PAYLOAD_TOO_LARGE, f"The form has more than {_MOST_FIELDS} fields. Send fewer.")
