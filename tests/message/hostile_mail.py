"""Messages made to be expensive to read, each for a given number of octets: the corpus of threats.md, row 34."""

from collections.abc import Callable

Maker = Callable[[int], bytes]

_MIXED = b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'


def _filled(start: bytes, unit: bytes, end: bytes, size: int) -> bytes:
    return start + unit * max(1, (size - len(start) - len(end)) // len(unit)) + end


def _repeated(start: bytes, unit: bytes, end: bytes = b"\r\n\r\nx") -> Maker:
    return lambda size: _filled(start, unit, end, size)


def _nested_multiparts(size: int) -> bytes:
    levels = max(1, size // 60)
    heads = [b"Content-Type: multipart/mixed; boundary=n%d\r\n\r\n--n%d\r\n" % (each, each) for each in range(levels)]
    return b"".join(heads)[:size]


def _nested_around_a_body(size: int) -> bytes:
    """Few levels, and nearly all octets in the innermost: every level has to search them."""
    heads = [b"Content-Type: multipart/mixed; boundary=n%d\r\n\r\n--n%d\r\n" % (each, each) for each in range(30)]
    return _filled(b"".join(heads), b"\r\n--n", b"", size)


def _parts_of_headers(size: int) -> bytes:
    return _filled(_MIXED, b"--b\r\n" + b"a:\r\n" * 5_000, b"\r\n--b--\r\n", size)


HOSTILE: dict[str, Maker] = {
    "parameters": _repeated(b"Content-Type: text/plain", b"; a=b"),
    "semicolons in quotes": _repeated(b'Content-Type: text/plain; x="', b";"),
    "escapes in quotes": _repeated(b'Content-Type: text/plain; x="', b"\\\\"),
    "unterminated quotes": _repeated(b"Content-Type: text/plain", b'; x="a'),
    "many quotes": _repeated(b"Content-Type: text/plain; x=", b'"'),
    "split file names": _repeated(b"Content-Disposition: attachment", b"; filename*1*=%41"),
    "comments": _repeated(b"Content-Type: text/plain ", b"("),
    "folds in a parameter": _repeated(b"Content-Type: text/plain; x=", b"\r\n a"),
    "punycode": _repeated(b"Content-Type: text/plain; charset=punycode\r\n\r\n", b"a-999999b"),
    "idna": _repeated(b"Content-Type: text/plain; charset=idna\r\n\r\n", b"xn--a."),
    "utf-7": _repeated(b"Content-Type: text/plain; charset=utf-7\r\n\r\n", b"+AAAA"),
    "octets without a character": _repeated(b"Content-Type: text/plain; charset=windows-1252\r\n\r\n", b"\x81"),
    "escape sequences": _repeated(b"Content-Type: text/plain; charset=iso-2022-jp\r\n\r\n", b"\x1b$B\x1b(B"),
    "nested messages": _repeated(b"", b"Content-Type: message/rfc822\r\n\r\n"),
    "nested multiparts": _nested_multiparts,
    "nested around a body": _nested_around_a_body,
    "parts": _repeated(_MIXED, b"--b\r\n\r\n\r\n", b"--b--\r\n"),
    "empty parts": _repeated(_MIXED, b"--b\r\n", b"--b--\r\n"),
    "delimiter look-alikes": _repeated(_MIXED, b"--bx\r\n", b"--b--\r\n"),
    "endless padding": _repeated(_MIXED + b"--b", b" ", b"\r\n\r\nx\r\n--b--\r\n"),
    "delimiters with long padding": _repeated(_MIXED, b"--b" + b" " * 900 + b"x\r\n", b"--b--\r\n"),
    "dashes": _repeated(_MIXED, b"\r\n--"),
    "one giant field": _repeated(b"X: ", b"a"),
    "one giant folded field": _repeated(b"X: ", b"\r\n a"),
    "tiny fields": _repeated(b"", b"a:\r\n"),
    "parts of headers": _parts_of_headers,
    "encoded words": _repeated(b"Subject:", b" =?utf-8?q?a?=\r\n"),
    "encoded words of no charset": _repeated(b"Subject:", b" =?x?q?a?=\r\n"),
    "encoded words without an end": _repeated(b"Subject:", b" =?utf-8?q?a\r\n"),
    "question marks": _repeated(b"Subject: ", b"=?"),
    "base64": _repeated(b"Content-Transfer-Encoding: base64\r\n\r\n", b"QUJD" * 19 + b"\r\n", b""),
    "base64 file": _repeated(
        b"Content-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n", b"QUJD" * 19 + b"\r\n", b""
    ),
    "padding in base64": _repeated(b"Content-Transfer-Encoding: base64\r\n\r\n", b"QQ==", b""),
    "no base64 at all": _repeated(b"Content-Transfer-Encoding: base64\r\n\r\n", b"!", b""),
    "soft line breaks": _repeated(b"Content-Transfer-Encoding: quoted-printable\r\n\r\n", b"=\r\n", b""),
    "soft line breaks that never end": _repeated(b"Content-Transfer-Encoding: quoted-printable\r\n\r\n", b"=\r", b""),
    "equals signs": _repeated(b"Content-Transfer-Encoding: quoted-printable\r\n\r\n", b"=", b""),
    "quoted file": _repeated(b"Content-Type: a/b\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n", b"=41", b""),
    "spaces": _repeated(b"", b" "),
    "line feeds": _repeated(b"a", b"\n"),
    "carriage returns": _repeated(b"a:", b"\r"),
}
