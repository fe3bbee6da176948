"""Writes header lines: folding, encoded words (RFC 2047), file names (RFC 2231). A mail reader gets back the same text.

Every function returns whole lines that end in CRLF. Their input has passed the rules of a draft: it holds no control
character, so nothing here can end a line early. No I/O, no state but caches.
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
_ENCODED_WORD = re.compile(r"=\?[^?]*\?[^?]*\?.*\?=")  # looser than RFC 2047 2, as are those who decode
# RFC 2231 7
_PARAMETER_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$&+.^_`{}~-")
_PERCENT = tuple(chr(octet) if octet in _PARAMETER_SAFE else f"%{octet:02X}" for octet in range(256))
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_SEGMENT = 60  # octets of a file name in one parameter: with ` filename*10*=` it fits a header line

_FRAME = len("=?utf-8?q??=")
# RFC 2047 5 (3): what may stand for itself in a phrase, the strictest of the three places.
_Q_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_Q = tuple("_" if octet == 0x20 else chr(octet) if octet in _Q_SAFE else f"={octet:02X}" for octet in range(256))


def subject(text: str) -> str:
    """The Subject line. Whatever a reader could take for an encoded word is encoded, and so are outer spaces."""
    plain = text.isascii() and "=?" not in text and text == text.strip(" ")
    return _literal("Subject", text) if plain else _encoded("Subject", text)


def custom(name: str, value: str) -> str:
    """A caller's header: ASCII literally, for it may have a syntax of its own; anything else as encoded words."""
    has_long_word = len(value) >= LINE_LENGTH and max(map(len, value.split(" "))) >= LINE_LENGTH
    return _encoded(name, value) if has_long_word or _must_encode(value) else _literal(name, value)


def encoded_length(value: str) -> int:
    """Octets of a caller's header value as `custom` writes it, folding aside."""
    return len(" ".join(_words(value, ENCODED_WORD_LENGTH)) if _must_encode(value) else value)


def mailboxes(name: str, addresses: Sequence[Address]) -> str:
    if len(addresses) > 1:
        return _mailboxes(name, addresses)
    if addresses[0].name or addresses[0].local.startswith("=?"):
        return _cached_mailbox(name, (addresses[0],))
    return f"{name}: {addresses[0].wire}\r\n"  # an address always fits beside a name


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


_cached_mailbox = lru_cache(maxsize=500)(_mailboxes)  # a sender's name is written again and again


@lru_cache(maxsize=8)  # many messages share a second
def date(seconds: int) -> str:
    """The Date line for a moment in Unix time, RFC 5322 3.3, in UTC."""
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(seconds)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"Date: {_DAYS[weekday]}, {day:02d} {_MONTHS[month - 1]} {year:04d} {clock} +0000\r\n"


def unsubscribe(urls: Iterable[str]) -> str:
    """The fields of one-click unsubscribe, RFC 8058 3.1; a URL is never folded, each has a line."""
    listed = ",\r\n ".join([f"<{url}>" for url in urls])
    return f"List-Unsubscribe: {listed}\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"


def disposition(kind: str, filename: str) -> str:
    """A Content-Disposition line: a plain file name quoted, any other by RFC 2231."""
    return with_parameters("Content-Disposition", kind, [("filename", filename)])


def with_parameters(name: str, value: str, parameters: Iterable[tuple[str, str]]) -> str:
    """A field with parameters: printable ASCII quoted, anything else by RFC 2231."""
    tokens = [value, *(token for key, text in parameters for token in _parameter(key, text))]
    return _folded(name, [*(f" {token};" for token in tokens[:-1]), f" {tokens[-1]}"], HEADER_LINE_LENGTH)


def _parameter(key: str, text: str) -> list[str]:
    if text.isascii() and text.isprintable() and "=?" not in text:
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        return [f'{key}="{quoted}"']
    # Percent-encoded pieces (RFC 2231 3 and 4) that fit a line, no character split between two.
    encoded = "".join(map(_PERCENT.__getitem__, text.encode("utf-8")))
    segments = _signs(encoded, "%", _SEGMENT - len("utf-8''"), _SEGMENT)
    segments[0] = f"utf-8''{segments[0]}"
    if len(segments) == 1:
        return [f"{key}*={segments[0]}"]
    return [f"{key}*{index}*={segment}" for index, segment in enumerate(segments)]


def words(name: str, text: str) -> list[str]:
    """Encoded words for a text in a field of this name, each with the space it is folded at."""
    return [f" {word}" for word in _words(text, _room_after(name))]


def folded(name: str, tokens: Sequence[str]) -> str:
    """A field of tokens, of which some are encoded words; it breaks only in front of one that begins with a space."""
    whole: list[str] = []
    for token in tokens:
        if token.startswith(" ") or not whole:
            whole.append(token)
        else:
            whole[-1] += token
    return _folded(name, whole, ENCODED_LINE_LENGTH)


def _folded(name: str, tokens: Sequence[str], width: int) -> str:
    """Lines that break only in front of a token; each token begins with the space it is folded at.

    The first token stays beside the name as long as a line can hold it: some readers lose what follows a bare `Name:`.
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
    """Octets the first encoded word may take to stand on the line of the name; a long name gets a line of its own."""
    room = ENCODED_LINE_LENGTH - len(name) - 2
    return room if room >= 2 * _FRAME else ENCODED_WORD_LENGTH


def _must_encode(value: str) -> bool:
    return not value.isascii() or ("=?" in value and _ENCODED_WORD.search(value) is not None)


def _words(text: str, room: int) -> list[str]:
    """Encoded words for a text (RFC 2047), the first within `room` octets, in whichever encoding is shorter."""
    data = text.encode("utf-8")
    quoted = "".join(map(_Q.__getitem__, data))
    first, others = room - _FRAME, ENCODED_WORD_LENGTH - _FRAME
    if len(quoted) <= (len(data) + 2) // 3 * 4:
        return [f"=?utf-8?q?{word}?=" for word in _signs(quoted, "=", first, others)]
    words = _octets(data, first // 4 * 3, others // 4 * 3)  # four characters for three octets
    return [f"=?utf-8?b?{binascii.b2a_base64(word, newline=False).decode('ascii')}?=" for word in words]


def _octets(data: bytes, first: int, others: int) -> list[bytes]:
    """UTF-8 in pieces of at most so many octets, no character split between two."""
    pieces, start, end = [], 0, first
    while end < len(data):
        while data[end] & 0xC0 == 0x80:  # an octet that continues a character
            end -= 1
        pieces.append(data[start:end])
        start, end = end, end + others
    return [*pieces, data[start:]]


def _signs(encoded: str, mark: str, first: int, others: int) -> list[str]:
    """The same for text in which each octet is one sign, or three: a mark and two hex digits."""
    pieces, start, end = [], 0, first
    while end < len(encoded):
        if encoded[end - 1] == mark:
            end -= 1
        elif encoded[end - 2] == mark:
            end -= 2
        while encoded[end] == mark and encoded[end + 1] in "89AB":  # an octet that continues a character
            end -= 3
        pieces.append(encoded[start:end])
        start, end = end, end + others
    return [*pieces, encoded[start:]]
