"""Encodes a message with UTF-8 headers or 8-bit parts in seven bits, for servers that accept nothing else.

Readers see the same text: fields become encoded words (RFC 2047), parameters RFC 2231, and parts quoted-printable or
base64 (RFC 2045 6), also inside multiparts and attached messages. ASCII keeps its bytes.

Raises only `CannotEncode`: an address has a non-ASCII local part, the sender signed the message, or it is malformed or
exceeds the limits of `reader.py`. No I/O. Each octet is read a bounded number of times per level of nesting.
"""

import re
from collections.abc import Iterator
from typing import Final

from appliance.errors import Refused
from appliance.message import header_lines
from appliance.message.addresses import parse
from appliance.message.characters import joined, number_of_long_line
from appliance.message.compose import base64_lines, encode_lines
from appliance.message.decoding import Field, decode_words, fields_of, name_to_show, one_line, read_parameters
from appliance.message.limits import DEPTH, FIELD_BYTES, HEADER_SIZE, PARAMETERS
from appliance.message.reader import MimeReader

# Fields of addresses: names and comments in them may be encoded words, addresses may not (RFC 2047 5).
_ADDRESSES: Final = frozenset(
    b"from sender reply-to to cc resent-from resent-sender resent-to resent-cc resent-reply-to list-id"
    b" disposition-notification-to return-receipt-to".split()
)
_WITH_PARAMETERS: Final = frozenset((b"content-type", b"content-disposition"))
# Fields whose syntax does not allow encoded words.
_NO_WORDS: Final = frozenset(
    b"message-id in-reply-to references date mime-version received return-path resent-date resent-message-id keywords"
    b" list-unsubscribe list-unsubscribe-post list-help list-post list-owner list-subscribe list-archive".split()
)
_SIGNATURES: Final = frozenset((b"dkim-signature", b"domainkey-signature"))
_ENCODED_PARTS: Final = (b"content-type", b"content-transfer-encoding")
_PLAIN_ENCODINGS: Final = frozenset((b"", b"7bit", b"8bit", b"binary"))

# A quoted string, a comment, an address in brackets, a separator, or anything else: one way to match, in linear time.
_TOKEN: Final = re.compile(
    r'"([^"\\]*(?:\\.[^"\\]*)*)"|\(([^()\\]*(?:\\.[^()\\]*)*)\)|<([^<>]*)>|([,;:])|([^"()<>,;:]+)'
)
_ESCAPED: Final = re.compile(r"\\(.)")
_VALUE: Final = re.compile(r"[!-:<-~]{1,255}")  # of a field with parameters: a media type, a disposition
_PARAMETER: Final = re.compile(r"[A-Za-z0-9!#$&+.^_`{}~-]{1,60}")
_LINES: Final = 64 * 1024  # octets encoded per step, up to a line end

SIGNED_BY_SENDER: Final = "its sender has signed it"
MALFORMED: Final = "its MIME structure cannot be read"


class CannotEncode(Exception):
    """The reason, as the end of a sentence."""


def seven_bit(message: bytes) -> bytes:
    """Return the message in ASCII; it must have CRLF line ends, as every stored message has."""
    writer = _Writer(message)
    writer.entity(0, len(message), 0, b"text/plain", is_message=True)
    encoded = joined(writer.pieces)
    if not encoded.endswith(b"\r\n"):
        encoded += b"\r\n"
    if not encoded.isascii() or number_of_long_line(encoded) is not None:
        raise CannotEncode(MALFORMED)
    return encoded


class _Writer:
    def __init__(self, mime: bytes) -> None:
        self._mime, self._reader = mime, MimeReader(mime)
        self.pieces: list[bytes] = []

    def entity(self, start: int, end: int, depth: int, default_type: bytes, *, is_message: bool) -> None:
        mime = self._mime
        if mime[start:end].isascii():
            self.pieces.append(mime[start:end])
            return
        head_end = self._end_of_header(start, end)
        body = min(head_end + 2, end)
        fields, is_plain = _fields(mime[start:head_end]), mime[body:end].isascii()
        if is_message and any(name.lower() in _SIGNATURES for name, _ in fields):
            raise CannotEncode(SIGNED_BY_SENDER)
        content_type, encoding = (_only(fields, name) for name in _ENCODED_PARTS)
        kind, parameters = read_parameters(content_type if content_type is not None else default_type)
        if is_plain:
            self._header(fields, ())
            self.pieces.append(mime[head_end:end])
        elif kind == "multipart/signed":
            raise CannotEncode(SIGNED_BY_SENDER)
        elif depth >= DEPTH or (encoding or b"").lower() not in _PLAIN_ENCODINGS:
            raise CannotEncode(MALFORMED)
        elif kind.startswith(("multipart/", "message/")):
            self._header(fields, [b"Content-Transfer-Encoding: 7bit"])
            self.pieces.append(mime[head_end:body])
            if kind == "message/rfc822":
                self.entity(body, end, depth + 1, b"text/plain", is_message=True)
            elif kind.startswith("multipart/"):
                inside = b"message/rfc822" if kind == "multipart/digest" else b"text/plain"  # RFC 2046 5.1.5
                self._multipart(body, end, depth + 1, inside, parameters.get("boundary", "").rstrip(" "))
            else:
                raise CannotEncode(MALFORMED)
        else:
            self._leaf(fields, (head_end, body, end), kind, described=content_type is not None, is_message=is_message)

    def _end_of_header(self, start: int, end: int) -> int:
        if self._mime.startswith(b"\r\n", start, end):
            return start
        empty_line = self._mime.find(b"\r\n\r\n", start, min(end, start + HEADER_SIZE + 4))
        if empty_line < 0 and not self._mime.endswith(b"\r\n", start, end):
            raise CannotEncode(MALFORMED)
        return end if empty_line < 0 else empty_line + 2

    def _header(self, fields: list[Field], added: tuple[()] | list[bytes]) -> None:
        """Write the fields; `added` fields replace the old encoding."""
        for name, value in fields:
            if added and name.lower() == b"content-transfer-encoding":
                continue
            plain = value.isascii()
            self.pieces.append(b"%b:%b\r\n" % (name, value) if plain else _encoded(name, value).encode("ascii"))
        self.pieces += [line + b"\r\n" for line in added]

    def _multipart(self, start: int, end: int, depth: int, default_type: bytes, boundary: str) -> None:
        extents = self._reader.split(start, end, boundary.encode()) if boundary.isascii() and boundary else []
        if not extents or self._reader.view.truncated:
            raise CannotEncode(MALFORMED)
        at = start
        for part_start, part_end in extents:
            self.pieces.append(self._mime[at:part_start])
            self.entity(part_start, part_end, depth, default_type, is_message=False)
            at = part_end
        self.pieces.append(self._mime[at:end])

    def _leaf(
        self, fields: list[Field], extent: tuple[int, int, int], kind: str, *, described: bool, is_message: bool
    ) -> None:
        head_end, body, end = extent
        data = self._mime[body:end]
        if kind.startswith("text/") or "/" not in kind:  # RFC 2045 5.2
            encoding, pieces = encode_lines(list(_lines(data)))
        else:
            encoding, pieces = "base64", list(base64_lines(data))
        added = [b"Content-Transfer-Encoding: " + encoding.encode("ascii")]
        if not described:
            added.append(b"Content-Type: text/plain; charset=" + _charset(data))
        if is_message and not any(name.lower() == b"mime-version" for name, _ in fields):
            added.append(b"MIME-Version: 1.0")
        self._header(fields, added)
        self.pieces.append(self._mime[head_end:body])
        self.pieces += pieces


def _fields(header: bytes) -> list[Field]:
    try:
        return fields_of(header)
    except Refused as refused:
        raise CannotEncode(MALFORMED) from refused


def _only(fields: list[Field], name: bytes) -> bytes | None:
    values = [value for key, value in fields if key.lower() == name]
    if len(values) > 1:
        raise CannotEncode(MALFORMED)
    return values[0].replace(b"\r\n", b"").strip(b" \t") if values else None


def _lines(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _LINES) + 1 or len(data)
        yield data[start:end]
        start = end


def _charset(data: bytes) -> bytes:
    """Return the charset of undeclared text: UTF-8 if valid, otherwise unknown (RFC 1428 2)."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return b"unknown-8bit"
    return b"utf-8"


def _encoded(name: bytes, value: bytes) -> str:
    key, shown = name.lower(), name.decode("ascii")
    text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
    if key in _ADDRESSES:
        return header_lines.folded(shown, list(_mailboxes(shown, text)))
    if key in _WITH_PARAMETERS:
        return _with_parameters(shown, value)
    if key in _NO_WORDS or (key.startswith(b"content-") and key != b"content-description"):
        raise CannotEncode(f"its {name_to_show(name)} has no other form")
    return header_lines.folded(shown, header_lines.words(shown, one_line(decode_words(text))))


def _mailboxes(name: str, text: str) -> Iterator[str]:
    """Yield the tokens of a mailbox list, with a leading space where they may be folded."""
    at, phrase, written = 0, "", ""  # of a name: decoded, and as written
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise CannotEncode(f"its {name} cannot be read")
        at = token.end()
        quoted, comment, bracketed, separator, atoms = token.groups()
        if quoted is not None or (atoms is not None and "@" not in atoms):
            phrase += atoms if quoted is None else _ESCAPED.sub(r"\1", quoted)
            written += token[0]
            continue
        if atoms is not None and (atoms.startswith("@") or written.strip(" ")):  # a quoted local part
            raise CannotEncode(f"its {name} cannot be read")
        yield from _name(name, phrase, written)
        phrase = written = ""
        if separator is not None:
            yield separator
        elif comment is not None:
            words = header_lines.words(name, decode_words(_ESCAPED.sub(r"\1", comment)))
            yield from [f" {token[0]}"] if comment.isascii() else [f" ({words[0][1:]}", *words[1:], ")"]
        elif bracketed is not None:
            yield f" <{_address(name, bracketed)}>"
        elif address := (atoms or "").strip(" "):
            yield f" {_address(name, address)}"
    yield from _name(name, phrase, written)


def _name(field: str, phrase: str, written: str) -> list[str]:
    if written.isascii():
        return [f" {shown}"] if (shown := written.strip(" ")) else []
    return header_lines.words(field, one_line(decode_words(phrase)))


def _address(field: str, text: str) -> str:
    if text.isascii():
        return text
    try:
        wire = parse(text.strip(" "), field).wire
    except Refused as refused:
        raise CannotEncode(f"its {field} cannot be read") from refused
    if not wire.isascii():
        raise CannotEncode(f"an address in its {field} has no other form")
    return wire


def _with_parameters(name: str, field: bytes) -> str:
    value, parameters = read_parameters(field.replace(b"\r\n", b""))
    whole = len(field) <= FIELD_BYTES and field.count(b";") <= PARAMETERS  # the parser ignores more
    if not whole or not _VALUE.fullmatch(value) or not all(map(_PARAMETER.fullmatch, parameters)):
        raise CannotEncode(MALFORMED)
    return header_lines.with_parameters(name, value, parameters.items())
