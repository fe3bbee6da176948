"""SMTP replies, verdicts, commands, and the command/reply loop that the opening and the transaction share. No I/O.

While an exchange is `awaiting` a reply, the driver sends its `output` and passes received bytes to `receive`.
Invariants:
- No byte of an address, a name or a secret can end a command line or begin another command.
- A server may only reply. Bytes left over after the reply to the last command are a fault; this stops replies injected
  before STARTTLS, and an acceptance sent ahead of the message.
- A server can make us hold at most one reply of bounded size. Accepted beyond RFC 5321 4.2: a line that ends in LF
  alone, a code followed by nothing, a colon or text, and bytes that are not ASCII. Anything else is a fault.
- Every recipient gets a verdict: the stage and the server's reply. `deliver/outcome.py` decides its effect. Verdicts
  and transcripts are bounded and contain no password and no token of a return path, because accounts read them.
"""

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

REPLY_LINE_BYTES = 2_048  # with its end; RFC 5321 4.5.3.1.5 allows 512, and real servers exceed it
REPLY_LINES = 100  # in one reply; the longest seen in the wild, EHLO and policy texts, have about thirty
KEPT_CHARACTERS = 8_192  # of one reply's text; the rest is dropped
_ENHANCED = re.compile(r"(?:: ?)?(([245])\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9.])")  # RFC 3463 2
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


@lru_cache(maxsize=256)  # a busy connection receives the same few lines thousands of times; at most 256 × 2 KiB
def _single(line: bytes) -> Reply:
    code, text = _code(line), _printable(line[3:])[:KEPT_CHARACTERS]
    return Reply(code, (text,), _enhanced(code, text))


def _code(line: bytes) -> int:
    # RFC 5321 4.2.1 allows 0 to 5 as the second digit; servers are less strict, and nothing depends on it.
    code = line[:3]
    if not (len(code) == 3 and code.isdigit() and b"200" <= code <= b"599") or line[3:4].isdigit():
        raise ReplyFault(f"not an SMTP reply: {_printable(b' ' + line)[:80]!r}")
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


class Capabilities(Struct, frozen=True):
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


# ---- verdicts, and the transcript

LINE_CHARACTERS = 500  # kept of one line; the verdict has the complete reply
CLIENT, SERVER, NOTE = "C", "S", "*"


class Stage(StrEnum):
    """The command, or other step of the session, that a reply belongs to."""

    GREETING = "greeting"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    RESET = "reset"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    END_OF_DATA = "end_of_data"

    __hash__ = str.__hash__  # Enum's is not in C, and every reply is looked up by its stage


class ResultKind(StrEnum):
    ACCEPTED = "accepted"  # 2xx after the end of data: the server has the message
    REJECTED = "rejected"  # 5xx
    DEFERRED = "deferred"  # 4xx
    LOST = "lost"  # no usable reply; always temporary
    LOCAL = "local"  # the server lacks an extension, so nothing was sent; permanent for this server


class Cause(StrEnum):
    """Why there is no usable reply."""

    CONNECTION_LOST = "connection_lost"
    TIMEOUT = "timeout"
    PROTOCOL_FAULT = "protocol_fault"
    TLS_FAILED = "tls_failed"  # in the handshake; if TLS is optional, the caller may dial again without it
    TLS_NOT_OFFERED = "tls_not_offered"
    TLS_NOT_VERIFIED = "tls_not_verified"
    AUTH_NOT_OFFERED = "auth_not_offered"
    NO_SMTPUTF8 = "no_smtputf8"
    TOO_LARGE = "too_large"
    NO_8BITMIME = "no_8bitmime"


class Verdict(NamedTuple):
    """The result for a recipient, or for a whole connection, and its stage."""

    kind: ResultKind
    stage: Stage
    text: str  # the reply on one line, or the reason for its absence
    reply: Reply | None = None
    cause: Cause | None = None

    @property
    def code(self) -> int | None:
        return None if self.reply is None else self.reply.code

    @property
    def enhanced(self) -> str | None:
        return None if self.reply is None else self.reply.enhanced

    @property
    def is_before_mail(self) -> bool:
        """Whether the verdict is about this machine: the server did not know the mail yet."""
        return self.stage not in _TRANSACTION


_TRANSACTION = frozenset((Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA))
_KINDS = {2: ResultKind.ACCEPTED, 4: ResultKind.DEFERRED, 5: ResultKind.REJECTED}


def answered(stage: Stage, reply: Reply) -> Verdict:
    """The verdict of a reply; a 3xx, or a 2xx before the end of data, is not usable."""
    kind = _KINDS.get(reply.family)
    if kind is None or (kind is ResultKind.ACCEPTED and stage is not Stage.END_OF_DATA):
        return Verdict(ResultKind.LOST, stage, f"unexpected reply: {reply.shown}", reply, Cause.PROTOCOL_FAULT)
    return Verdict(kind, stage, reply.shown, reply)


def lost(stage: Stage, cause: Cause, text: str) -> Verdict:
    return Verdict(ResultKind.LOST, stage, text, None, cause)


def local(cause: Cause, text: str) -> Verdict:
    return Verdict(ResultKind.LOCAL, Stage.MAIL, f"local: {text}", None, cause)


class TranscriptLine(Struct, frozen=True, array_like=True, gc=False):
    milliseconds: int  # since the start of the exchange
    speaker: str  # `C` client, `S` server, `*` a note such as "TLSv1.3"
    text: str


Dialogue = tuple[TranscriptLine, ...]
EVERYONE = -1  # a line about no single recipient


class Transcript:
    """The dialogue of an exchange. It has a bound: an exchange has few commands, and each gets one reply."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._start = clock, clock()  # seconds
        self._lines: dict[int, list[tuple[int, TranscriptLine]]] = {EVERYONE: []}  # by recipient, with their order
        self._count = 0

    def add(self, speaker: str, text: str, recipient: int = EVERYONE) -> None:
        line = TranscriptLine(int((self._clock() - self._start) * 1000), speaker, text[:LINE_CHARACTERS])
        self._lines.setdefault(recipient, []).append((self._count, line))
        self._count += 1

    def lines(self, recipient: int = EVERYONE) -> Dialogue:
        """Return the lines about one recipient of a message, by its number, and those about none."""
        own = self._lines.get(recipient, []) if recipient != EVERYONE else []
        return tuple([line for _, line in sorted([*self._lines[EVERYONE], *own])])


class TransactionResult(NamedTuple):
    verdicts: tuple[Verdict, ...]  # in the order of the recipients
    dialogues: tuple[Dialogue, ...]  # likewise
    reusable: bool  # the connection can carry another transaction
    stale: bool  # the server had closed a reused connection: nothing was tried, dial again


class NotOpened(Exception):
    """The opening failed, and the stream is closed. The verdict applies to every recipient."""

    def __init__(self, verdict: Verdict, transcript: Dialogue) -> None:
        super().__init__(verdict.text)
        self.verdict, self.transcript = verdict, transcript


# ---- commands

SERVICE_CLOSING = 421  # RFC 5321 3.8 and 4.2.3: a possible reply to any command; the server closes
# No CR, LF, NUL, space or angle bracket, which could end the command, nor any other control or line separator.
_SAFE = re.compile(r"[^\x00-\x20\x7f-\x9f<>\u2028\u2029]*")
_DOMAIN = re.compile(r"[A-Za-z0-9.:_\[\]-]+")  # a host name or an address literal, RFC 5321 4.1.3


class UnsafeArgument(ValueError):
    """Text that must never become part of a command. Earlier checks reject it, so this is a bug."""


def mail_command(sender: str, parameters: str = "") -> str:
    """RFC 5321 4.1.1.2; an empty sender is the null reverse-path."""
    return f"MAIL FROM:<{_checked(sender)}>{parameters}"


def rcpt_command(recipient: str) -> str:
    """RFC 5321 4.1.1.3."""
    if not recipient:
        raise UnsafeArgument("an empty recipient")
    return f"RCPT TO:<{_checked(recipient)}>"


def hello_command(verb: str, name: str) -> str:
    """EHLO or HELO (RFC 5321 4.1.1.1) with our own name."""
    if not _DOMAIN.fullmatch(name):
        raise UnsafeArgument(f"not a host name for {verb}: {name!r}")
    return f"{verb} {name}"


@dataclass(frozen=True, slots=True)
class RelayCredentials:
    username: str
    password: str = field(repr=False)


def plain_secret(credentials: RelayCredentials) -> str:
    """The message of AUTH PLAIN, RFC 4616 2."""
    if "\0" in credentials.username + credentials.password:
        raise UnsafeArgument("a NUL in the relay's credentials")
    return base64(f"\0{credentials.username}\0{credentials.password}")


def base64(text: str) -> str:
    return b64encode(text.encode()).decode("ascii")


def _checked(address: str) -> str:
    if not _SAFE.fullmatch(address):
        raise UnsafeArgument(f"not safe in a command: {address!r}")
    return address


# ---- exchanges
class SmtpExchange(ABC):
    def __init__(self, replies: ReplyReader, clock: Callable[[], float]) -> None:
        self.transcript = Transcript(clock)
        self.verdict: Verdict | None = None  # that ended the session
        self.answers = 0  # replies received; the driver gives each its own time limit
        self._replies = replies
        self._output: list[bytes] = []
        self._broken: str | None = None

    @property
    @abstractmethod
    def awaiting(self) -> Stage | None:
        """The stage of the next reply; None: no reply is due."""

    @abstractmethod
    def _answer(self, reply: Reply) -> None: ...

    @abstractmethod
    def _end(self, verdict: Verdict) -> None: ...

    @property
    def _recipient(self) -> int:
        """The number of the recipient that the next reply is about."""
        return EVERYONE

    @property
    def in_step(self) -> bool:
        return self.verdict is None and self._broken is None and self._replies.empty

    def output(self) -> list[bytes]:
        """Return the bytes to send now, once."""
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes | bytearray) -> None:
        """Process received bytes; no bytes mean that the server closed the connection."""
        if not data:
            self.fail(Cause.CONNECTION_LOST, self._broken or "the server closed the connection")
            return
        self._replies.feed(data)
        while (stage := self.awaiting) is not None:
            try:
                reply = self._replies.next_reply()
            except ReplyFault as fault:
                self.fail(Cause.PROTOCOL_FAULT, str(fault))
                return
            if reply is None:
                return
            self.answers += 1
            self.transcript.add(SERVER, reply.shown, self._recipient)
            if reply.code == SERVICE_CLOSING:
                self._end(answered(stage, reply))
            elif self._broken is not None and reply.family < 4:
                self.fail(Cause.CONNECTION_LOST, self._broken)
            else:
                self._answer(reply)

    def broken(self, reason: str) -> None:
        """Sending failed. Continue to receive, because the server may have sent the reason; a 2xx no longer counts."""
        self._broken = self._broken or reason
        self._output.clear()

    def fail(self, cause: Cause, text: str) -> None:
        """End without a usable reply: the connection is lost, too slow, or not SMTP."""
        if (stage := self.awaiting) is not None:
            self._fail_at(stage, cause, text)

    def _fail_at(self, stage: Stage, cause: Cause, text: str) -> None:
        self.transcript.add(NOTE, text)
        self._end(lost(stage, cause, f"{text} (at {stage.replace('_', ' ')})"))

    def _unasked(self, stage: Stage) -> bool:
        """Whether the server sent more than it was asked for; if so, end the session."""
        if self._replies.empty:
            return False
        self._fail_at(stage, Cause.PROTOCOL_FAULT, "the server sent more replies than commands")
        return True

    def _say(self, line: str, shown: str | None = None) -> None:
        """Queue a command; the transcript has `shown` instead of one with a secret."""
        self._output.append(f"{line}\r\n".encode())
        self.transcript.add(CLIENT, without_tokens(line) if shown is None else shown)
