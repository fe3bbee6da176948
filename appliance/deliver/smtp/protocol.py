"""Commands, verdicts and the command/reply loop that the opening and the transaction share. No I/O.

While an exchange is `awaiting` a reply, the driver sends its `output` and passes received bytes to `receive`.
Invariants:
- No byte of an address, a name or a secret can end a command line or begin another command.
- A server may only reply. Bytes left over after the reply to the last command are a fault; this stops replies injected
  before STARTTLS, and an acceptance sent ahead of the message.
- Every recipient gets a verdict: the stage and the server's reply. `deliver/judgement.py` decides its effect. Verdicts
  and transcripts are bounded and contain no password and no token of a return path, because accounts read them.
"""

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from appliance.deliver.smtp.reply import Reply, ReplyFault, ReplyReader, without_tokens

# ---- verdicts, and the transcript

FIRST_TRANSCRIPT_LINES = 64  # kept from the beginning
LAST_TRANSCRIPT_LINES = 32  # kept from the end
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
    text: str  # the reply on one line, or the reason why there is none
    reply: Reply | None = None
    cause: Cause | None = None

    @property
    def code(self) -> int | None:
        """The reply's code; None without a reply."""
        return None if self.reply is None else self.reply.code

    @property
    def enhanced(self) -> str | None:
        return None if self.reply is None else self.reply.enhanced

    @property
    def is_before_mail(self) -> bool:
        """Whether the server replied before it knew the mail: then the verdict is about this machine."""
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
    """The verdict without a usable reply: temporary."""
    return Verdict(ResultKind.LOST, stage, text, None, cause)


def local(cause: Cause, text: str) -> Verdict:
    """The verdict on a recipient that the server cannot accept, by the extensions it announced."""
    return Verdict(ResultKind.LOCAL, Stage.MAIL, f"local: {text}", None, cause)


class TranscriptLine(NamedTuple):
    milliseconds: int  # since the start of the exchange
    speaker: str  # `C` client, `S` server, `*` a note such as "TLSv1.3"
    text: str


class Transcript:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._start = clock, clock()  # seconds
        self._first: list[TranscriptLine] = []
        self._last: deque[TranscriptLine] = deque(maxlen=LAST_TRANSCRIPT_LINES)
        self._left_out = 0

    def add(self, speaker: str, *texts: str) -> None:
        now = int((self._clock() - self._start) * 1000)
        for text in texts:
            line = TranscriptLine(now, speaker, text[:LINE_CHARACTERS])
            if len(self._first) < FIRST_TRANSCRIPT_LINES:
                self._first.append(line)
            else:
                self._left_out += len(self._last) == LAST_TRANSCRIPT_LINES
                self._last.append(line)

    def lines(self) -> tuple[TranscriptLine, ...]:
        """The kept lines, with a note in place of the others."""
        if not self._left_out:
            return (*self._first, *self._last)
        gap = TranscriptLine(self._last[0].milliseconds, NOTE, f"{self._left_out} lines left out")
        return (*self._first, gap, *self._last)


class TransactionResult(NamedTuple):
    verdicts: tuple[Verdict, ...]  # in the order of the recipients
    transcript: tuple[TranscriptLine, ...]
    reusable: bool  # the connection can carry another transaction
    stale: bool  # the server had closed a reused connection: nothing was tried, dial again


class NotOpened(Exception):
    """The opening failed, and the stream is closed. The verdict applies to every recipient."""

    def __init__(self, verdict: Verdict, transcript: tuple[TranscriptLine, ...]) -> None:
        super().__init__(verdict.text)
        self.verdict, self.transcript = verdict, transcript


SERVICE_CLOSING = 421  # RFC 5321 3.8 and 4.2.3: a possible reply to any command; the server closes

# No CR, LF, NUL, space or angle bracket, which could end the command, nor any other control or line separator.
_SAFE = re.compile(r"[^\x00-\x20\x7f-\x9f<>\u2028\u2029]*")
_DOMAIN = re.compile(r"[A-Za-z0-9.:_\[\]-]+")  # a host name or an address literal, RFC 5321 4.1.3


# ---- commands


class UnsafeArgument(ValueError):
    """Text that must never become part of a command. Earlier checks reject it, so this is a bug."""


@dataclass(frozen=True, slots=True)
class RelayCredentials:
    username: str
    password: str = field(repr=False)


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
    """Commands and their replies, in turn."""

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
    def _answer(self, reply: Reply) -> None:
        """Process a reply."""

    @abstractmethod
    def _end(self, verdict: Verdict) -> None:
        """End the session; no further reply is due."""

    @property
    def in_step(self) -> bool:
        """Whether the connection can be used for another exchange."""
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
            self.transcript.add(SERVER, reply.shown)
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

    def _say(self, lines: list[str], shown: str | None = None) -> None:
        """Queue commands for one write; the transcript has `shown` instead of a command with a secret."""
        self._output.append(("\r\n".join(lines) + "\r\n").encode())
        self.transcript.add(CLIENT, *(map(without_tokens, lines) if shown is None else [shown]))
