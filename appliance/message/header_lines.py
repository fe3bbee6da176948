"""Header fields: which ones a sender may set, and how they are written. No I/O, no state but caches.

Writers fold, and encode words (RFC 2047) and file names (RFC 2231). They return complete lines that end in CRLF. Their
input is validated: without control characters nothing can end a line early.

One table has the rules for HTTP (`headers`, `tags`) and SMTP. Over HTTP every name in it is refused: the service writes
the field, or the request has its own member for it. A message over SMTP is complete, so its ordinary fields are kept.
Trace fields and verdicts of other servers are removed, and a field that names who is responsible must name a mailbox of
the account's domains.
"""

import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.addresses import Address
from appliance.message.characters import fault_in_line
from appliance.message.limits import ENCODED_LINE_LENGTH, ENCODED_WORD_LENGTH, HEADER_LINE_LENGTH, LINE_LENGTH

_WORD = re.compile(r" *[^ ]+")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_ENCODED_WORD = re.compile(r"=\?[^?]*\?[^?]*\?.*\?=")  # looser than RFC 2047 2, like decoders
# RFC 2231 7
_PARAMETER_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&+.^_`{}~-")
_PERCENT = tuple(chr(octet) if octet in _PARAMETER_SAFE else f"%{octet:02X}" for octet in range(256))

_SEGMENT = 60  # octets of a file name per parameter; with ` filename*10*=` it fits a line

_FRAME = len("=?utf-8?q??=")
# RFC 2047 5 (3): characters allowed unencoded in a phrase, the strictest of the three places.
_Q_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_Q = tuple("_" if octet == 0x20 else chr(octet) if octet in _Q_SAFE else f"={octet:02X}" for octet in range(256))


def subject(text: str) -> str:
    plain = text.isascii() and "=?" not in text and text == text.strip(" ")
    return _literal("Subject", text) if plain else _encoded("Subject", text)


def custom(name: str, value: str) -> str:
    """Return a caller's header: ASCII unchanged, since it may have its own syntax; otherwise encoded words."""
    has_long_word = len(value) >= LINE_LENGTH and max(map(len, value.split(" "))) >= LINE_LENGTH
    return _encoded(name, value) if has_long_word or _must_encode(value) else _literal(name, value)


def encoded_length(value: str) -> int:
    """Return the octets of a value as `custom` writes it, without folding."""
    return len(" ".join(_words(value, ENCODED_WORD_LENGTH)) if _must_encode(value) else value)


def mailboxes(name: str, addresses: Sequence[Address]) -> str:
    if len(addresses) > 1:
        return _mailboxes(name, addresses)
    if addresses[0].name or addresses[0].local.startswith("=?"):
        return _cached_mailbox(name, (addresses[0],))
    return f"{name}: {addresses[0].wire}\r\n"  # an address always fits on the line


def _mailboxes(name: str, addresses: Sequence[Address]) -> str:
    tokens: list[str] = []
    for address in addresses:
        if not address.name.isascii() or "=?" in address.name:
            tokens += words(name, address.name)
        elif _ATOMS.fullmatch(address.name):
            tokens.append(f" {address.name}")
        elif address.name:
            tokens.append(f" {quoted(address.name)}")
        tokens.append(f" <{address.wire}>," if address.name else f" {address.wire},")
    tokens[-1] = tokens[-1][:-1]
    return _folded(name, tokens, ENCODED_LINE_LENGTH)


_cached_mailbox = lru_cache(maxsize=500)(_mailboxes)  # senders repeat


@lru_cache(maxsize=8)  # many messages share a second
def date(seconds: int) -> str:
    return f"Date: {format_datetime(datetime.fromtimestamp(seconds, UTC))}\r\n"


def unsubscribe(urls: Iterable[str]) -> str:
    """Return the fields of one-click unsubscribe (RFC 8058 3.1), with one URL per line."""
    listed = ",\r\n ".join([f"<{url}>" for url in urls])
    return f"List-Unsubscribe: {listed}\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def disposition(kind: str, filename: str) -> str:
    return with_parameters("Content-Disposition", kind, [("filename", filename)])


def with_parameters(name: str, value: str, parameters: Iterable[tuple[str, str]]) -> str:
    """Return a field with parameters: printable ASCII quoted, otherwise RFC 2231."""
    tokens = [value, *(token for key, text in parameters for token in _parameter(key, text))]
    return _folded(name, [*(f" {token};" for token in tokens[:-1]), f" {tokens[-1]}"], HEADER_LINE_LENGTH)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parameter(key: str, text: str) -> list[str]:
    if text.isascii() and text.isprintable() and "=?" not in text:
        return [f"{key}={quoted(text)}"]
    # Percent-encoded segments (RFC 2231 3 and 4) that fit a line, with whole characters.
    encoded = "".join(map(_PERCENT.__getitem__, text.encode("utf-8")))
    segments = _signs(encoded, "%", _SEGMENT - len("utf-8''"), _SEGMENT)
    segments[0] = f"utf-8''{segments[0]}"
    if len(segments) == 1:
        return [f"{key}*={segments[0]}"]
    return [f"{key}*{index}*={segment}" for index, segment in enumerate(segments)]


def words(name: str, text: str) -> list[str]:
    """Return the encoded words of a text in this field, each with a leading space for folding."""
    room = ENCODED_LINE_LENGTH - len(name) - 2
    return [f" {word}" for word in _words(text, room if room >= 2 * _FRAME else ENCODED_WORD_LENGTH)]


def folded(name: str, tokens: Sequence[str]) -> str:
    """Return a field of tokens, folded only before tokens that start with a space."""
    whole: list[str] = []
    for token in tokens:
        if token.startswith(" ") or not whole:
            whole.append(token)
        else:
            whole[-1] += token
    return _folded(name, whole, ENCODED_LINE_LENGTH)


def _folded(name: str, tokens: Sequence[str], width: int) -> str:
    """Fold before tokens, but not before the first: some readers lose text after a bare `Name:`."""
    line, lines = f"{name}:", []
    for index, token in enumerate(tokens):
        limit = LINE_LENGTH if index == 0 and not token.startswith(" =?") else width
        if len(line) + len(token) > limit:
            lines.append(line)
            line = token
        else:
            line += token
    lines.append(line)
    return "\r\n".join(lines) + "\r\n"


def _literal(name: str, value: str) -> str:
    if len(name) + 2 + len(value) <= HEADER_LINE_LENGTH and value:
        return f"{name}: {value}\r\n"
    tokens = _WORD.findall(value)
    return _folded(name, [f" {tokens[0]}", *tokens[1:]] if tokens else [], HEADER_LINE_LENGTH)


def _encoded(name: str, value: str) -> str:
    return _folded(name, words(name, value), ENCODED_LINE_LENGTH)


def _must_encode(value: str) -> bool:
    return not value.isascii() or ("=?" in value and _ENCODED_WORD.search(value) is not None)


def _words(text: str, room: int) -> list[str]:
    """Encode a text as words (RFC 2047) in the shorter encoding, the first within `room` octets."""
    data = text.encode("utf-8")
    quoted = "".join(map(_Q.__getitem__, data))
    first, others = room - _FRAME, ENCODED_WORD_LENGTH - _FRAME
    if len(quoted) <= (len(data) + 2) // 3 * 4:
        return [f"=?utf-8?q?{word}?=" for word in _signs(quoted, "=", first, others)]
    words = _octets(data, first // 4 * 3, others // 4 * 3)  # four characters for three octets
    return [f"=?utf-8?b?{binascii.b2a_base64(word, newline=False).decode('ascii')}?=" for word in words]


def _octets(data: bytes, first: int, others: int) -> list[bytes]:
    pieces, start, end = [], 0, first
    while end < len(data):
        while data[end] & 0xC0 == 0x80:  # a continuation octet
            end -= 1
        pieces.append(data[start:end])
        start, end = end, end + others
    return [*pieces, data[start:]]


def _signs(encoded: str, mark: str, first: int, others: int) -> list[str]:
    """Split text in which an octet is one character, or three: `mark` and two hex digits."""
    pieces, start, end = [], 0, first
    while end < len(encoded):
        if encoded[end - 1] == mark:
            end -= 1
        elif encoded[end - 2] == mark:
            end -= 2
        while encoded[end] == mark and encoded[end + 1] in "89AB":  # a continuation octet
            end -= 3
        pieces.append(encoded[start:end])
        start, end = end, end + others
    return [*pieces, encoded[start:]]


class OverSmtp(Enum):
    KEPT = auto()
    REMOVED = auto()
    OWN = auto()  # the message is refused unless this names one mailbox of the account's domains


_KEPT, _REMOVED, _OWN = OverSmtp.KEPT, OverSmtp.REMOVED, OverSmtp.OWN

RESERVED_HEADERS: Final = {
    "authentication-results": _REMOVED,  # RFC 8601 5: it may be forged
    "bcc": _REMOVED,
    "cc": _KEPT,
    "date": _KEPT,
    "delivered-to": _REMOVED,  # receivers would detect a loop
    "dkim-signature": _KEPT,  # the sender's own; ours is added
    "domainkey-signature": _KEPT,
    "errors-to": _REMOVED,  # bounces go to the envelope's sender
    "from": _KEPT,  # and checked like MAIL FROM
    "message-id": _KEPT,
    "mime-version": _KEPT,
    "reply-to": _KEPT,
    "return-path": _REMOVED,  # RFC 5321 4.4: the last server writes it
    "sender": _OWN,
    "subject": _KEPT,
    "tls-required": _REMOVED,  # RFC 8689 5: `No` would turn off TLS
    "to": _KEPT,
    "x-originating-ip": _REMOVED,  # the client's address is not disclosed
}
RESERVED_HEADER_PREFIXES: Final = {
    "arc-": _REMOVED,  # RFC 8617: seals of other servers
    "content-": _KEPT,
    "received": _REMOVED,  # Received-SPF and the like
    "resent-": _KEPT,
    "x-service-": _REMOVED,
}
# Exceptions to the prefixes, over SMTP.
_WITHIN: Final = {
    "received": _KEPT,  # counted, to find loops
    "resent-bcc": _REMOVED,
    "resent-from": _OWN,
    "resent-sender": _OWN,
    "x-service-tag": _KEPT,  # read as tags
}

# A sender who sets one of these manages unsubscribing; both are then left unchanged.
OWN_UNSUBSCRIBE: Final = frozenset({"list-unsubscribe", "list-unsubscribe-post"})

_EXACT: Final = {name.encode(): action for name, action in (RESERVED_HEADERS | _WITHIN).items()} | {
    # For us, not for the recipient.
    b"idempotency-key": _REMOVED,
    b"resend-idempotency-key": _REMOVED,
    b"x-smtpapi": _REMOVED,
}
PROVIDER_PREFIXES: Final = dict.fromkeys(("x-mailgun-", "x-mc-", "x-pm-", "x-ses-"), _REMOVED)  # see labels.py
_BY_PREFIX: Final = {
    prefix.encode(): action for prefix, action in (RESERVED_HEADER_PREFIXES | PROVIDER_PREFIXES).items()
}
_PREFIXES: Final = tuple(_BY_PREFIX)

_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,76}")
_TAG: Final = re.compile(r"[!-+\--~](?:[ -+\--~]{0,62}[!-+\--~])?")  # printable ASCII, no comma, no space at either end


def is_reserved(name: str) -> bool:
    name = name.lower()
    return name in RESERVED_HEADERS or name.startswith(tuple(RESERVED_HEADER_PREFIXES))


def over_smtp(name: bytes) -> OverSmtp:
    if (action := _EXACT.get(name)) is not None:
        return action
    if not name.startswith(_PREFIXES):
        return _KEPT
    return next(action for prefix, action in _BY_PREFIX.items() if name.startswith(prefix))


def read_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if len(headers) > limits.HEADERS:
        raise invalid("headers", f"at most {limits.HEADERS} headers are allowed")
    accepted: dict[str, tuple[str, str]] = {}
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise invalid("headers", "a header name has 1 to 76 characters of A-Z, a-z, 0-9 and `-`")
        if is_reserved(name):
            raise invalid(f"headers.{name}", "this header is reserved")
        if name.lower() in accepted:
            raise invalid(f"headers.{name}", "this header occurs twice; upper and lower case do not differ")
        if fault := fault_in_line(value):
            raise invalid(f"headers.{name}", f"must not contain {fault}")
        value = value.strip(" ")
        if encoded_length(value) > limits.HEADER_VALUE_LENGTH:
            raise invalid(f"headers.{name}", f"must have at most {limits.HEADER_VALUE_LENGTH} octets after encoding")
        accepted[name.lower()] = (name, value)
    return tuple(accepted.values())


def read_tags(tags: Sequence[str], field: str, *, numbered: bool = False) -> tuple[str, ...]:
    """Check tags and drop duplicates. A refusal names the field, with the tag's index if `numbered`."""
    if len(tags) > limits.TAGS:
        raise invalid("tags", f"at most {limits.TAGS} tags are allowed")
    check_tags(tags, field, numbered=numbered)
    return tuple(dict.fromkeys(tags))


def check_tags(tags: Sequence[str], field: str, *, numbered: bool) -> None:
    for index, tag in enumerate(tags):
        if not _TAG.fullmatch(tag):
            reason = "a tag has 1 to 64 printable ASCII characters, no comma, and no space at either end"
            raise invalid(f"{field}[{index}]" if numbered else field, reason)
