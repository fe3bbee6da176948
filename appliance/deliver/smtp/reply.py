"""Parses what an SMTP server sends: replies, and the extensions in its reply to EHLO. No I/O.

A server can make us hold at most one reply of bounded size. Accepted beyond RFC 5321 4.2: a line that ends in LF alone,
a code followed by nothing, a colon or text, and bytes that are not ASCII. A fault, after which nothing more is read:
anything that is not a code from 200 to 599, different codes in one reply, a line or a reply beyond the limits.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache

REPLY_LINE_BYTES = 2_048  # with its end; RFC 5321 4.5.3.1.5 allows 512, and real servers exceed it
REPLY_LINES = 100  # in one reply; the longest seen in the wild, EHLO and policy texts, have about thirty
KEPT_CHARACTERS = 8_192  # of one reply's text; the rest is dropped

_ENHANCED = re.compile(r"(?:: ?)?(([245])\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9.])")  # RFC 3463 2
_SHOWN = 80  # characters of an unreadable line that its fault quotes

# The token of a return path or of an unsubscribe address (feedback/return_path.py). The pattern starts at the plus, not
# at the letter before it: a fixed first character makes the search four times as fast, and every MAIL is searched.
_TOKEN = re.compile(r"\+(?<=[bu]\+)(?<![a-z0-9][bu]\+)[a-z2-7]{24,25}(?=@)", re.ASCII | re.IGNORECASE)


def without_tokens(text: str) -> str:
    """Remove tokens from the text of a session, which accounts read: a token is enough to report a bounce."""
    return _TOKEN.sub("+…", text) if "+" in text else text


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply: its code and the text of its lines, made printable."""

    code: int
    lines: tuple[str, ...]
    enhanced: str | None = None  # RFC 2034: `5.1.1`, when the reply has one that fits its code
    family: int = field(init=False, repr=False, compare=False)  # the first digit
    shown: str = field(init=False, repr=False, compare=False)  # the reply on one line

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.code // 100)
        object.__setattr__(self, "shown", without_tokens(f"{self.code} {' '.join(self.lines)}".rstrip()))


class ReplyFault(Exception):
    """The server sent something other than an SMTP reply; nothing after it can be trusted."""


class ReplyReader:
    """Splits received bytes into replies. Keeps at most one unfinished line and one unfinished reply."""

    def __init__(self) -> None:
        self._buffer, self._position = b"", 0
        self._fault: str | None = None
        self._code = self._count = self._kept = 0  # of an unfinished reply: its code, lines so far, characters kept
        self._lines: list[str] = []

    @property
    def empty(self) -> bool:
        """Whether all bytes received so far belong to returned replies."""
        return self._count == 0 and self._position == len(self._buffer)

    def feed(self, data: bytes | bytearray) -> None:
        """Add received bytes; call `next_reply` until it returns None before adding more."""
        self._buffer = self._buffer[self._position :] + data
        self._position = 0

    def next_reply(self) -> Reply | None:
        """Return the next complete reply, or None until more arrives. After a ReplyFault, every call raises it."""
        if self._fault is not None:
            raise ReplyFault(self._fault)
        try:
            while True:
                start, end = self._position, self._buffer.find(b"\n", self._position)
                if (len(self._buffer) if end < 0 else end + 1) - start > REPLY_LINE_BYTES:
                    raise ReplyFault(f"a reply line of more than {REPLY_LINE_BYTES} bytes")
                if end < 0:
                    return None
                self._position, line = end + 1, self._buffer[start:end]
                if self._count == 0 and line[3:4] != b"-":
                    return _single(line)
                if (reply := self._add(line)) is not None:
                    return reply
        except ReplyFault as fault:
            self._fault = str(fault)
            self._buffer, self._position, self._lines = b"", 0, []
            raise

    def _add(self, line: bytes) -> Reply | None:
        """Add one line of a multi-line reply; return the reply with its last line."""
        code = _code(line)
        if self._count and code != self._code:
            raise ReplyFault(f"a reply with both {self._code} and {code}")
        self._code = code
        self._count += 1
        if self._count > REPLY_LINES:
            raise ReplyFault(f"a reply of more than {REPLY_LINES} lines")
        text, room = _printable(line[3:]), KEPT_CHARACTERS - self._kept
        if room > 0:
            self._lines.append(text[:room])
            self._kept += len(text) + 1
        if line[3:4] == b"-":
            return None
        reply = Reply(code, tuple(self._lines), _enhanced(code, self._lines[0]))
        self._code = self._count = self._kept = 0
        self._lines = []
        return reply


# Cached, because a busy connection receives the same few lines thousands of times. At most 256 × 2 KiB.
@lru_cache(maxsize=256)
def _single(line: bytes) -> Reply:
    code, text = _code(line), _printable(line[3:])[:KEPT_CHARACTERS]
    return Reply(code, (text,), _enhanced(code, text))


def _code(line: bytes) -> int:
    # RFC 5321 4.2.1 allows 0 to 5 as the second digit; servers are less strict, and nothing depends on it.
    code = line[:3]
    if not (len(code) == 3 and code.isdigit() and b"200" <= code <= b"599") or line[3:4].isdigit():
        raise ReplyFault(f"not an SMTP reply: {_printable(b' ' + line)[:_SHOWN]!r}")
    return int(code)


def _printable(rest: bytes) -> str:
    """A line's text without the separator and line end; unprintable characters and invalid UTF-8 are escaped."""
    text = rest.decode("utf-8", "backslashreplace").replace("\t", " ")
    text = (text[1:] if text[:1] in ("-", " ") else text).strip(" \r")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _enhanced(code: int, first_line: str) -> str | None:
    match = _ENHANCED.match(first_line)
    return match[1] if match and int(match[2]) == code // 100 else None


# ---- the reply to EHLO


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The extensions that matter to a sender; the defaults are for a server that supports only HELO."""

    pipelining: bool = False  # RFC 2920
    size: bool = False  # RFC 1870
    size_limit: int | None = None  # bytes of a message, if the server announces a limit
    eight_bit: bool = False  # RFC 6152
    smtputf8: bool = False  # RFC 6531
    starttls: bool = False  # RFC 3207
    auth: frozenset[str] = frozenset()  # RFC 4954; mechanisms in capitals


def capabilities(ehlo: Reply) -> Capabilities:
    """Parse the reply to EHLO (RFC 5321 4.1.1.1): after a greeting, each line names an extension."""
    offered: dict[str, list[str]] = {}
    for line in ehlo.lines[1:]:
        # `AUTH=LOGIN PLAIN` is the form from before RFC 2554; some servers still send both.
        keyword, *parameters = line.upper().replace("AUTH=", "AUTH ", 1).split() or [""]
        offered.setdefault(keyword, []).extend(parameters)
    digits = next(iter(offered.get("SIZE", ())), "")
    readable = digits.isascii() and digits.isdigit() and len(digits) <= 20  # RFC 1870 3: up to 20 digits
    return Capabilities(
        pipelining="PIPELINING" in offered,
        size="SIZE" in offered,
        size_limit=int(digits) or None if readable else None,  # 0: no fixed limit
        eight_bit="8BITMIME" in offered,
        smtputf8="SMTPUTF8" in offered,
        starttls="STARTTLS" in offered,
        auth=frozenset(offered.get("AUTH", [])),
    )
