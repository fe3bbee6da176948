"""Reads fields such as Content-Type: a value and parameters (RFC 2045 5.1), also in pieces or encoded (RFC 2231). PURE.

Time grows with the field's length, of which a bounded part is read; what is malformed is passed over.
"""

import re
from dataclasses import dataclass
from typing import Final

from appliance.message import charsets

FIELD_BYTES: Final = 32 * 1024  # read of a field: a file name of 255 octets needs about 1,500
PARAMETERS: Final = 200  # read of a field
NAME_LENGTH: Final = 60  # octets of a parameter's name, longer ones are passed over

_QUOTED: Final = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"?', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_PIECE: Final = re.compile(r"([^*]{1,60})(?:\*([0-9]{1,3}))?(\*)?")
_HEX: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Parameters:
    """A field: what stands before the first semicolon, in lower case, and its parameters by lower-case names."""

    value: str
    parameters: dict[str, str]

    def get(self, name: str, otherwise: str) -> str:
        """A parameter, or what stands for it when it is missing."""
        return self.parameters.get(name, otherwise)


def read_parameters(field: bytes) -> Parameters:
    """Read a field of this form, folded or not."""
    text = field[:FIELD_BYTES].decode("utf-8", "replace")
    value, _, rest = text.partition(";")
    return Parameters(value.strip().lower(), _joined(_pairs(rest)))


def _pairs(text: str) -> list[tuple[str, str]]:
    """Each parameter's name and value, in order; the value of a quoted one without its quotes."""
    pairs: list[tuple[str, str]] = []
    at = 0
    for _ in range(PARAMETERS):
        if at >= len(text):
            break
        semicolon = _find(text, ";", at)
        equals = text.find("=", at, semicolon)
        if equals < 0:
            at = semicolon + 1
            continue
        name, at = text[at:equals].strip().lower(), _after_spaces(text, equals + 1)
        quoted = _QUOTED.match(text, at)
        if quoted is not None:
            value = _ESCAPED.sub(r"\1", quoted[1])
            at = _find(text, ";", quoted.end()) + 1
        else:
            semicolon = _find(text, ";", at)
            value, at = text[at:semicolon].strip(), semicolon + 1
        if 0 < len(name) <= NAME_LENGTH:
            pairs.append((name, value))
    return pairs


def _find(text: str, character: str, at: int) -> int:
    found = text.find(character, at)
    return found if found >= 0 else len(text)


def _after_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _joined(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """The parameters, each put together of its pieces; a plain one wins over pieces, the first over the next."""
    plain: dict[str, str] = {}
    pieces: dict[str, dict[int, tuple[str, bool]]] = {}
    for name, value in pairs:
        found = _PIECE.fullmatch(name)
        if found is None:
            continue
        if found[2] is None and found[3] is None:
            plain.setdefault(name, value)
        else:
            pieces.setdefault(found[1], {}).setdefault(int(found[2] or 0), (value, found[3] is not None))
    return {**{name: _decoded(found) for name, found in pieces.items()}, **plain}


def _decoded(pieces: dict[int, tuple[str, bool]]) -> str:
    """Pieces in the order of their numbers; the first one, if it is encoded, names the charset (RFC 2231 4.1)."""
    codec, octets = "utf-8", []
    for index, number in enumerate(sorted(pieces)):
        value, encoded = pieces[number]
        if encoded and index == 0 and value.count("'") >= 2:
            charset, _, value = value.split("'", 2)
            codec = charsets.codec_of(charset) or "utf-8"
        data = value.encode("utf-8", "replace")
        octets.append(_HEX.sub(_octet, data) if encoded else data)
    return charsets.decode(b"".join(octets), codec)


def _octet(code: re.Match[bytes]) -> bytes:
    return bytes((int(code[1], 16),))
