"""Parses header fields of messages: leniently for display, strictly for submitted messages. No I/O, no state but
caches.

For display, every input decodes in linear time: charsets, encoded words (RFC 2047), parameters (RFC 2231). Malformed
parts stay as they are, and invalid characters become U+FFFD. Only listed charsets are decoded: looking up any name
would load a codec, and some of Python's codecs (`punycode`, `idna`, `utf-7`) take more than linear time.

The strict parser refuses obsolete syntax of RFC 5322 wherever mail readers disagree: a space before a colon, a line of
spaces alone, control characters. Such lines hide a field from one reader and show it to the next. The From decides
whether a sender may use a domain, so it must mean the same to every reader: one mailbox (DMARC receivers refuse more,
RFC 7489 6.6.1), and comments only where they look like part of a name.
"""

import binascii
import codecs
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final

import idna
from msgspec.structs import replace

from appliance.errors import Refused, invalid
from appliance.message import limits
from appliance.message.addresses import Address, parse
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
    return _CODECS.get(charset.lower())


def decode_charset(data: bytes, codec: str) -> str:
    return "".join(decode_pieces(data, codec))


def decode_pieces(data: bytes, codec: str) -> Iterator[str]:
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
    return display_text(value[:RAW_LENGTH].replace(b"\r\n", b"").decode("utf-8", "replace"))


def display_text(text: str) -> str:
    return one_line(decode_words(text) if "=?" in text else text)


def one_line(text: str) -> str:
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


# ---- headers of submitted messages

Field = tuple[bytes, bytes]  # the name, and everything between the colon and the final CRLF

# RFC 5322 2.2: a name is printable ASCII without the colon; a continuation line has more than white space. In all these
# patterns no repeat can consume the character that must follow it, so there is one way to match, in linear time.
_FIELD: Final = re.compile(rb"^([!-9;-~]+):([^\r]*(?:\r\n[ \t]+[^ \t\r][^\r]*)*)\r\n", re.MULTILINE)
_COLON_AND_END: Final = len(":\r\n")
_CONTROLS: Final = bytes(octet for octet in (*range(0x20), 0x7F) if octet not in b"\t\r\n")
_NOT_IN_A_HEADER: Final = re.compile("[\x80-\x9f\u2028\u2029]")  # C1 and Unicode's line separators
_NAME: Final = re.compile(rb"[!-9;-~]+")

_CACHED: Final = 2_000  # whole From fields
_CACHED_LENGTH: Final = 320  # octets

_COMMENT: Final = r'\([^()<>@"\\]*\)'
_QUOTED_TEXT: Final = r'[^"\\]*(?:\\.[^"\\]*)*'
_BARE: Final = re.compile(rf'([^ <>()",;:\\]+) *({_COMMENT})?')
# RFC 5322 3.4: a phrase is quoted strings and atoms. Dots and brackets are not allowed, but common.
_ATOMS: Final = r'[^"<>@,;:\\()]*'
_PHRASE: Final = rf'{_ATOMS}(?:(?:"{_QUOTED_TEXT}"|{_COMMENT}){_ATOMS})*'
_NAMED: Final = re.compile(rf"({_PHRASE})<([^<>]*)> *(?:{_COMMENT})?")
_TWICE: Final = re.compile(r'([^ <>()",;:\\]+) *< *(\1) *>', re.IGNORECASE)
_QUOTED_NAME: Final = re.compile(f'"({_QUOTED_TEXT})"')
_NEEDS_QUOTES: Final = re.compile(r'["<>,;\\]')

_ONE = "expected one mailbox, `Name <address>`. Put a name with a comma or other special characters in double quotes."


def end_of_header(message: bytes) -> int:
    """Return the end of the header, after the CRLF of its last field; an empty line and the body follow."""
    if message.startswith(b"\r\n"):
        return 0
    end = message.find(b"\r\n\r\n")
    return len(message) if end < 0 else end + 2


def fields_of(header: bytes) -> list[Field]:
    if len(header) > limits.HEADER_SIZE or header.count(b"\r\n") > limits.HEADER_LINES:
        raise invalid(
            "header",
            f"has more than {limits.HEADER_SIZE // 1024} KiB or {limits.HEADER_LINES} lines."
            " Is the empty line between header and body missing?",
        )
    _check_characters(header)
    fields: list[Field] = _FIELD.findall(header)
    parsed = sum([len(name) + len(value) + _COLON_AND_END for name, value in fields])
    if parsed != len(header):
        raise _fault(header)
    if len(fields) > limits.HEADER_FIELDS:
        raise invalid("header", f"has more than {limits.HEADER_FIELDS} fields")
    return fields


def name_to_show(name: bytes) -> str:
    return name[: limits.HEADER_NAME_LENGTH].decode("ascii")


def _check_characters(header: bytes) -> None:
    if len(header.translate(None, _CONTROLS)) != len(header):
        raise invalid("header", "contains a control character. Remove it, or write it as an encoded word.")
    if header.isascii():
        return
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise invalid("header", "contains 8-bit text that is not UTF-8. Use encoded words (RFC 2047).") from cause
    if _NOT_IN_A_HEADER.search(text):
        raise invalid("header", "contains a control character or a Unicode line break. Remove it.")


def _fault(header: bytes) -> Refused:
    for number, line in enumerate(header.removesuffix(b"\r\n").split(b"\r\n"), start=1):
        name, colon, _ = line.partition(b":")
        reason = ""
        if line[:1] in (b" ", b"\t"):
            if number == 1:
                reason = "begins with a space, but there is no field before it to continue"
            elif not line.strip(b" \t"):
                reason = "contains only spaces. The line between header and body must be empty."
        elif not colon:
            reason = "is neither a field nor the continuation of one. Put an empty line between header and body."
        elif not _NAME.fullmatch(name):
            reason = "has a field name with a space or another invalid character"
        if reason:
            return invalid("header", f"line {number} {reason}")
    raise AssertionError("every line is valid, but the header is not")


# ---- From
def read_from(value: bytes) -> Address:
    """Parse the mailbox of a From field; its `text` has the decoded name, as in the HTTP API."""
    return _cached_from(value) if len(value) <= _CACHED_LENGTH else _read_from(value)


def _read_from(value: bytes) -> Address:
    if len(value) > limits.FROM_LENGTH:
        raise invalid("From", f"must have at most {limits.FROM_LENGTH} octets")
    text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
    if not text:
        raise invalid("From", "must not be empty")
    name, bare = _split(text)
    if "=?" in bare:  # some readers decode it and show another address
        raise invalid("From", "an address must not contain an encoded word")
    address = parse(bare, "From")
    written = address.spelling.rpartition("@")[2].lower()
    # The message keeps its spelling, so the domain must mean the same without UTS 46 mapping.
    if not written.isascii() and idna.decode(address.domain) != written:
        raise invalid("From", "the domain means different things to different mail readers. Use A-labels.")
    name = one_line(name)[: limits.DISPLAY_NAME_LENGTH].strip(" ")
    if not name:
        return address
    shown = name
    if _NEEDS_QUOTES.search(name):
        shown = '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))
    return replace(address, name=name, text=f"{shown} <{address.spelling}>")


_cached_from = lru_cache(_CACHED)(_read_from)


def _split(text: str) -> tuple[str, str]:
    if match := _BARE.fullmatch(text):
        return decode_words((match[2] or "")[1:-1]), match[1]
    if match := _NAMED.fullmatch(text):
        unquoted = _QUOTED_NAME.sub("", match[1])
        # Next to a bracket some readers take quoted text with an `@` for another address.
        if unquoted != match[1] and ("[" in unquoted or "]" in unquoted):
            raise invalid("From", _ONE)
        name = _QUOTED_NAME.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), match[1])
        return decode_words(name.strip(" ")), match[2].strip(" ")
    if match := _TWICE.fullmatch(text):  # the address as its own name, without quotes: invalid, but common
        return match[1], match[2]
    raise invalid("From", _ONE)
