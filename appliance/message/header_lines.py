"""Writes header lines: folding, encoded words (RFC 2047), file names (RFC 2231). Mail readers decode the same text.

Every function returns complete lines that end in CRLF. The input is validated: without control characters nothing can
end a line early. No I/O, no state but caches.
"""

import binascii
import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from appliance.message.addresses import Address
from appliance.message.limits import ENCODED_LINE_LENGTH, ENCODED_WORD_LENGTH, HEADER_LINE_LENGTH, LINE_LENGTH

_WORD = re.compile(r" *[^ ]+")
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_ENCODED_WORD = re.compile(r"=\?[^?]*\?[^?]*\?.*\?=")  # looser than RFC 2047 2, like decoders
# RFC 2231 7
_PARAMETER_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&+.^_`{}~-")
_PERCENT = tuple(chr(octet) if octet in _PARAMETER_SAFE else f"%{octet:02X}" for octet in range(256))
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_SEGMENT = 60  # octets of a file name per parameter; with ` filename*10*=` it fits a line

_FRAME = len("=?utf-8?q??=")
# RFC 2047 5 (3): characters allowed unencoded in a phrase, the strictest of the three places.
_Q_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_Q = tuple("_" if octet == 0x20 else chr(octet) if octet in _Q_SAFE else f"={octet:02X}" for octet in range(256))


def subject(text: str) -> str:
    """Return the Subject line; text that looks like an encoded word, and outer spaces, are encoded."""
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
            tokens.append(' "{}"'.format(address.name.replace("\\", "\\\\").replace('"', '\\"')))
        tokens.append(f" <{address.wire}>," if address.name else f" {address.wire},")
    tokens[-1] = tokens[-1][:-1]
    return _folded(name, tokens, ENCODED_LINE_LENGTH)


_cached_mailbox = lru_cache(maxsize=500)(_mailboxes)  # senders repeat


@lru_cache(maxsize=8)  # many messages share a second
def date(seconds: int) -> str:
    """Return the Date line of a Unix time, in UTC (RFC 5322 3.3)."""
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(seconds)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"Date: {_DAYS[weekday]}, {day:02d} {_MONTHS[month - 1]} {year:04d} {clock} +0000\r\n"


def unsubscribe(urls: Iterable[str]) -> str:
    """Return the fields of one-click unsubscribe (RFC 8058 3.1), with one URL per line."""
    listed = ",\r\n ".join([f"<{url}>" for url in urls])
    return f"List-Unsubscribe: {listed}\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def disposition(kind: str, filename: str) -> str:
    """Return a Content-Disposition line."""
    return with_parameters("Content-Disposition", kind, [("filename", filename)])


def with_parameters(name: str, value: str, parameters: Iterable[tuple[str, str]]) -> str:
    """Return a field with parameters: printable ASCII quoted, otherwise RFC 2231."""
    tokens = [value, *(token for key, text in parameters for token in _parameter(key, text))]
    return _folded(name, [*(f" {token};" for token in tokens[:-1]), f" {tokens[-1]}"], HEADER_LINE_LENGTH)


def _parameter(key: str, text: str) -> list[str]:
    if text.isascii() and text.isprintable() and "=?" not in text:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        return [f'{key}="{quoted}"']
    # Percent-encoded segments (RFC 2231 3 and 4) that fit a line, with whole characters.
    encoded = "".join(map(_PERCENT.__getitem__, text.encode("utf-8")))
    segments = _signs(encoded, "%", _SEGMENT - len("utf-8''"), _SEGMENT)
    segments[0] = f"utf-8''{segments[0]}"
    if len(segments) == 1:
        return [f"{key}*={segments[0]}"]
    return [f"{key}*{index}*={segment}" for index, segment in enumerate(segments)]


def words(name: str, text: str) -> list[str]:
    """Return the encoded words of a text in this field, each with a leading space for folding."""
    return [f" {word}" for word in _words(text, _room_after(name))]


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
    """Fold before tokens; each starts with a space.

    The first token stays on the line of the name if possible: some readers lose text after a bare `Name:`.
    """
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


def _room_after(name: str) -> int:
    """Return the octets left for the first encoded word on the line of the name; a long name gets its own line."""
    room = ENCODED_LINE_LENGTH - len(name) - 2
    return room if room >= 2 * _FRAME else ENCODED_WORD_LENGTH


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
    """Split UTF-8 into pieces of whole characters, of at most `first` and then `others` octets."""
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
