"""Decodes header fields of received messages for display: charsets, encoded words (RFC 2047), parameters (RFC 2231).

Every input decodes, in linear time: malformed parts stay as they are, and invalid characters become U+FFFD. Only listed
charsets are decoded. Looking up any name that a sender writes would load a codec for it, and some of Python's codecs
(`punycode`, `idna`, `utf-7`) take more than linear time.
"""

import binascii
import codecs
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from appliance.message.limits import FIELD_BYTES, PARAMETER_NAME_LENGTH, PARAMETERS, RAW_LENGTH

_STEP: Final = 64 * 1024  # octets per call, which holds the interpreter lock for about a millisecond
_WORD: Final = re.compile(r"=\?([A-Za-z0-9_:.()-]{1,40})(?:\*[A-Za-z0-9-]{1,20})?\?([BbQq])\?([^?]*)\?=")
_CHARSET: Final = re.compile(r"=\?([^?]{1,100})\?[BbQq]\?")  # also where only a lenient reader sees an encoded word
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]")
_Q_CODE: Final = re.compile(rb"=([0-9A-Fa-f]{2})")
_QUOTED: Final = re.compile(r'[ \t\r\n]*"([^"\\]*(?:\\.[^"\\]*)*)"?', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SEGMENT: Final = re.compile(r"([^*]{1,60})(?:\*([0-9]{1,3}))?(\*)?")
_PERCENT_CODE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")


# ---- charsets

# Names and common aliases in mail, with Python's name for each.
_SINGLE_BYTE: Final = {
    "latin1": "iso8859-1", "latin-1": "iso8859-1",
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in range(1, 17) if part != 12},
    **{f"iso8859-{part}": f"iso8859-{part}" for part in range(1, 17) if part != 12},
    **{f"windows-{page}": f"cp{page}" for page in (874, *range(1250, 1259))},
    **{f"cp{page}": f"cp{page}" for page in range(1250, 1259)},
    "koi8-r": "koi8-r", "koi8-u": "koi8-u", "tis-620": "tis-620",
}  # fmt: skip
_CODECS: Final = {
    **_SINGLE_BYTE,
    "utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "ascii": "ascii", "unknown-8bit": "ascii",
    "iso-2022-jp": "iso2022-jp", "euc-jp": "euc-jp", "shift_jis": "cp932", "shift-jis": "cp932", "x-sjis": "cp932",
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5",
    "euc-kr": "cp949", "ks_c_5601-1987": "cp949", "iso-2022-kr": "iso2022-kr",
}  # fmt: skip
_WITH_TABLE: Final = frozenset(_SINGLE_BYTE.values())


def codec_of(charset: str) -> str | None:
    """Return Python's name for a listed charset, in any case; None for any other."""
    return _CODECS.get(charset.lower())


def decode_charset(data: bytes, codec: str) -> str:
    """Decode octets with a codec from `codec_of`."""
    return "".join(decode_pieces(data, codec))


def decode_pieces(data: bytes, codec: str) -> Iterator[str]:
    """Decode in pieces, one call each."""
    if codec in _WITH_TABLE:
        for at in range(0, len(data), _STEP):
            yield codecs.charmap_decode(data[at : at + _STEP], "strict", _table(codec))[0]
    elif len(data) <= _STEP:
        yield data.decode(codec, "replace")
    else:
        decoder = codecs.getincrementaldecoder(codec)("replace")
        for at in range(0, len(data), _STEP):
            yield decoder.decode(data[at : at + _STEP])
        yield decoder.decode(b"", final=True)


@cache
def _table(codec: str) -> str:
    """Return the character of each octet: Python's decoder takes a microsecond per undefined octet."""
    return bytes(range(256)).decode(codec, "replace")


# ---- encoded words


def header_text(value: bytes) -> str:
    """Decode an unstructured field such as Subject to one line."""
    return display_text(value[:RAW_LENGTH].replace(b"\r\n", b"").decode("utf-8", "replace"))


def display_text(text: str) -> str:
    """Decode the encoded words of a field, on one line."""
    return one_line(decode_words(text) if "=?" in text else text)


def one_line(text: str) -> str:
    """Replace control characters by spaces, and strip."""
    if text.isascii() and text.isprintable():
        return text.strip(" ")
    return _SURROGATE.sub("\ufffd", _UNFIT.sub(" ", text)).strip(" ")


def unlisted_charset(text: str) -> str | None:
    """Return the first unlisted charset of an encoded word, which readers decode differently."""
    for match in _CHARSET.finditer(text):
        if codec_of(match[1].partition("*")[0]) is None:
            return match[1]
    return None


def decode_words(text: str) -> str:
    """Decode encoded words; broken ones and unknown charsets stay as they are.

    Adjacent words in one charset are decoded together, because some senders split a character between two.
    """
    decoded: list[str] = []
    done, charset, run = 0, "", bytearray()
    for word in _WORD.finditer(text):
        codec = codec_of(word[1])
        if codec is None:  # it stays, as text before the next word
            continue
        between = text[done : word.start()]
        if not between.strip(" \t"):  # RFC 2047 6.2: white space between two words is ignored
            between = ""
        if between or codec != charset:
            decoded += (decode_charset(bytes(run), charset) if run else "", between)
            run.clear()
        charset, done = codec, word.end()
        if word[2] in "Bb":
            clean = _NOT_BASE64.sub("", word[3])  # padding may be missing; other characters are ignored
            clean = clean[:-1] if len(clean) % 4 == 1 else clean
            run += binascii.a2b_base64(clean + "=" * (-len(clean) % 4))
        else:  # RFC 2047 4.2; a stray `=` stands for itself
            run += _Q_CODE.sub(_octet, word[3].replace("_", " ").encode("utf-8"))
    decoded += (decode_charset(bytes(run), charset) if run else "", text[done:])
    return "".join(decoded)


def _octet(code: re.Match[bytes]) -> bytes:
    return bytes((int(code[1], 16),))


# ---- parameters


def read_parameters(field: bytes) -> tuple[str, dict[str, str]]:
    """Parse a field's value and parameters (RFC 2045 5.1, RFC 2231); names are in lower case."""
    value, _, rest = field[:FIELD_BYTES].decode("utf-8", "replace").partition(";")
    return value.strip().lower(), _joined(_pairs(rest))


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return names and unquoted values of the parameters, in order."""
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
        name = text[at:equals].strip().lower()
        if (quoted := _QUOTED.match(text, equals + 1)) is not None:
            value = _ESCAPED.sub(r"\1", quoted[1])
            semicolon = _find(text, ";", quoted.end())
        else:
            value = text[equals + 1 : semicolon].strip()
        at = semicolon + 1
        if 0 < len(name) <= PARAMETER_NAME_LENGTH:
            pairs.append((name, value))
    return pairs


def _find(text: str, character: str, at: int) -> int:
    index = text.find(character, at)
    return index if index >= 0 else len(text)


def _joined(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Join the segments of parameters; a plain parameter wins over segments, the first over the next."""
    plain: dict[str, str] = {}
    segments: dict[str, dict[int, tuple[str, bool]]] = {}
    for name, value in pairs:
        match = _SEGMENT.fullmatch(name)
        if match is None:
            continue
        if match[2] is None and match[3] is None:
            plain.setdefault(name, value)
        else:
            segments.setdefault(match[1], {}).setdefault(int(match[2] or 0), (value, match[3] is not None))
    return {**{name: _decode_segments(parts) for name, parts in segments.items()}, **plain}


def _decode_segments(segments: dict[int, tuple[str, bool]]) -> str:
    """Decode segments in numeric order; the first one, if encoded, names the charset (RFC 2231 4.1)."""
    codec, octets = "utf-8", []
    for index, number in enumerate(sorted(segments)):
        value, encoded = segments[number]
        if encoded and index == 0 and value.count("'") >= 2:
            charset, _, value = value.split("'", 2)
            codec = codec_of(charset) or "utf-8"
        data = value.encode("utf-8", "replace")
        octets.append(_PERCENT_CODE.sub(_octet, data) if encoded else data)
    return decode_charset(b"".join(octets), codec)
