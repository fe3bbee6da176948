"""Decodes text in the charsets that mail uses, for everything that shows a message to people. PURE.

Only listed charsets are decoded. Looking up any name a sender writes would load and keep a codec for it, and some of
Python's codecs (`punycode`, `idna`, `utf-7`) take far more than linear time. Time and memory here grow with the input
and no faster, and every input decodes: what is no character becomes U+FFFD.
"""

import codecs
from functools import cache
from typing import Final

_STEP: Final = 64 * 1024  # octets decoded in one call, which keeps the interpreter lock for about a millisecond

# By the names and common aliases that mail uses, with Python's name for each.
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
    """Python's name for a listed charset, upper and lower case being the same; None for any other."""
    return _CODECS.get(charset.lower())


def decode(data: bytes, codec: str) -> str:
    """The text of these octets, by a codec that `codec_of` named."""
    if codec in _WITH_TABLE:
        return codecs.charmap_decode(data, "strict", _table(codec))[0]
    if len(data) <= _STEP:
        return data.decode(codec, "replace")
    decoder = codecs.getincrementaldecoder(codec)("replace")
    pieces = [decoder.decode(data[at : at + _STEP]) for at in range(0, len(data), _STEP)]
    pieces.append(decoder.decode(b"", final=True))
    return "".join(pieces)


@cache
def _table(codec: str) -> str:
    """A single-byte charset's characters, each octet with one.

    Python's own decoder calls an error handler for every octet without a character, a microsecond each: a megabyte of
    them would take a second.
    """
    return bytes(range(256)).decode(codec, "replace")
