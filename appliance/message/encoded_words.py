"""In charge of reading header text as people see it: unfolded, encoded words (RFC 2047) decoded, fit for one line.

Only for records and events: the message itself keeps what the client wrote. Whatever comes in, text comes out, in time
that grows with its length.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Final

from appliance.message import charsets

RAW_LENGTH: Final = 8 * 1024  # octets of a field that are looked at: 500 characters never need more than half of it

_WORD: Final = re.compile(r"=\?([A-Za-z0-9_:.()-]{1,40})(?:\*[A-Za-z0-9-]{1,20})?\?([BbQq])\?([^?]*)\?=")
_CHARSET: Final = re.compile(r"=\?([^?]{1,100})\?[BbQq]\?")  # of whatever a reader may take for an encoded word
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]")
_HEX: Final = re.compile(rb"=([0-9A-Fa-f]{2})")


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


def unlisted_charset(text: str) -> str | None:
    """The first charset of an encoded word that is not listed: what it would become is for its reader to say."""
    for found in _CHARSET.finditer(text):
        if charsets.codec_of(found[1].partition("*")[0]) is None:
            return found[1]
    return None


def decoded(text: str) -> str:
    """A text with its encoded words decoded; what is broken, or in an unknown charset, stays as it is written."""
    return "".join(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Runs of plain text, and of words that follow one another in one charset: some split a character between two."""
    done, charset, run = 0, "", bytearray()
    for word in _WORD.finditer(text):
        read = _read(word)
        if read is None:  # it is left for the plain text in front of the next word
            continue
        between = text[done : word.start()]
        if not between.strip(" \t"):  # RFC 2047 6.2: white space between two words is no text
            between = ""
        if between or read[0] != charset:
            yield charsets.decode(bytes(run), charset) if run else ""
            yield between
            run.clear()
        charset, done = read[0], word.end()
        run += read[1]
    yield charsets.decode(bytes(run), charset) if run else ""
    yield text[done:]


def _read(word: re.Match[str]) -> tuple[str, bytes] | None:
    charset = charsets.codec_of(word[1])
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
