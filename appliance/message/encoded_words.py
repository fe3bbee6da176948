"""In charge of reading header text as people see it: unfolded, encoded words (RFC 2047) decoded, fit for one line.

Only for records and events: the message itself keeps what the client wrote. Whatever comes in, text comes out, in time
that grows with its length: charsets are taken from a list, since looking up a foreign name costs memory for good, and
some codecs (`idna`, `punycode`) can be made to work for minutes.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Final

RAW_LENGTH: Final = 8 * 1024  # octets of a field that are looked at: 500 characters never need more than half of it

_WORD: Final = re.compile(r"=\?([A-Za-z0-9_:.()-]{1,40})(?:\*[A-Za-z0-9-]{1,20})?\?([BbQq])\?([^?]*)\?=")
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]")
_HEX: Final = re.compile(rb"=([0-9A-Fa-f]{2})")

# By the names and common aliases that mail uses, with Python's name for each.
_CHARSETS: Final = {
    "utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "ascii": "ascii", "latin1": "latin-1",
    **{f"iso-8859-{part}": f"iso8859-{part}" for part in range(1, 17) if part != 12},
    **{f"windows-{page}": f"cp{page}" for page in (874, *range(1250, 1259))},
    **{f"cp{page}": f"cp{page}" for page in range(1250, 1259)},
    "koi8-r": "koi8-r", "koi8-u": "koi8-u", "iso-2022-jp": "iso2022-jp", "euc-jp": "euc-jp", "shift_jis": "cp932",
    "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5", "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949", "iso-2022-kr": "iso2022-kr", "tis-620": "tis-620",
}  # fmt: skip


def text_of(value: bytes) -> str:
    """The text of an unstructured field such as Subject, on one line, without spaces at its ends."""
    raw = value[:RAW_LENGTH].replace(b"\r\n", b"")
    text = raw.decode("utf-8", "replace")
    if "=?" in text:
        text = decoded(text)
    return one_line(text)


def one_line(text: str) -> str:
    """A text in which nothing ends a line: tabs and control characters are spaces."""
    if text.isascii() and text.isprintable():
        return text.strip(" ")
    return _SURROGATE.sub("\ufffd", _UNFIT.sub(" ", text)).strip(" ")


def decoded(text: str) -> str:
    """A text with its encoded words decoded; what is broken, or in an unknown charset, stays as it is written."""
    return "".join(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Runs of plain text, and of words that follow one another in one charset: some split a character between two."""
    done, charset, run = 0, "", b""
    for word in _WORD.finditer(text):
        between = text[done : word.start()]
        read = _read(word)
        if read is None:  # it is left for the plain text in front of the next word
            continue
        if not between.strip(" \t"):  # RFC 2047 6.2: white space between two words is no text
            between = ""
        if between or read[0] != charset:
            yield run.decode(charset, "replace") if run else ""
            yield between
            run = b""
        charset, run, done = read[0], run + read[1], word.end()
    yield run.decode(charset, "replace") if run else ""
    yield text[done:]


def _read(word: re.Match[str]) -> tuple[str, bytes] | None:
    charset = _CHARSETS.get(word[1].lower())
    if charset is None:
        return None
    return charset, _base64(word[3]) if word[2] in "Bb" else _quoted(word[3])


def _base64(text: str) -> bytes:
    """Base64 as it comes: padding may be missing, and what does not belong there is passed over."""
    clean = _NOT_BASE64.sub("", text)
    if len(clean) % 4 == 1:
        clean = clean[:-1]
    return binascii.a2b_base64(clean + "=" * (-len(clean) % 4))


def _quoted(text: str) -> bytes:
    """The Q encoding, RFC 2047 4.2; a stray `=` stands for itself."""
    return _HEX.sub(lambda code: bytes((int(code[1], 16),)), text.replace("_", " ").encode("utf-8"))
