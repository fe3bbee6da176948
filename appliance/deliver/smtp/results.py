"""What the SMTP client reports of a session: a verdict for every recipient, and a transcript of what was said.

A verdict says at which stage it was reached and what the server said; what it means for the recipient is decided in
`outcome.py`. A transcript is bounded and holds no secret.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from appliance.deliver.smtp.reply import Reply

FIRST_TRANSCRIPT_LINES = 64  # kept from the beginning
LAST_TRANSCRIPT_LINES = 32  # kept from the end, when there are more
LINE_CHARACTERS = 500  # kept of one line; the verdict has the whole reply

CLIENT, SERVER, NOTE = "C", "S", "*"


class Stage(StrEnum):
    """Which command, or other step of the session, a reply answers."""

    GREETING = "greeting"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    RESET = "reset"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    END_OF_DATA = "end_of_data"

    __hash__ = str.__hash__  # Enum's own is not in C, and every reply is looked up by its stage


class ResultKind(StrEnum):
    ACCEPTED = "accepted"  # 2xx after the end of data: the server has it
    REJECTED = "rejected"  # 5xx
    DEFERRED = "deferred"  # 4xx
    LOST = "lost"  # no usable answer; always temporary
    LOCAL = "local"  # the server cannot take it, and we did not ask; permanent for this server


class Cause(StrEnum):
    """Why there is no usable answer of the server."""

    CONNECTION_LOST = "connection_lost"
    TIMEOUT = "timeout"
    PROTOCOL_FAULT = "protocol_fault"
    TLS_FAILED = "tls_failed"  # the handshake broke; without a demand for TLS the caller may dial again without it
    TLS_NOT_OFFERED = "tls_not_offered"
    TLS_NOT_VERIFIED = "tls_not_verified"
    AUTH_NOT_OFFERED = "auth_not_offered"
    NO_SMTPUTF8 = "no_smtputf8"
    TOO_LARGE = "too_large"
    NO_8BITMIME = "no_8bitmime"


class Verdict(NamedTuple):
    """What the client reports of a recipient, or of a whole connection, and at which stage."""

    kind: ResultKind
    stage: Stage
    text: str  # for people: the reply on one line, or what happened instead
    reply: Reply | None = None
    cause: Cause | None = None

    @property
    def code(self) -> int | None:
        """The reply's code; what no server said has none."""
        return None if self.reply is None else self.reply.code

    @property
    def enhanced(self) -> str | None:
        return None if self.reply is None else self.reply.enhanced

    @property
    def is_before_mail(self) -> bool:
        """Whether the server knew nothing of the mail yet: then it is about this machine."""
        return self.stage not in _TRANSACTION


_TRANSACTION = frozenset((Stage.MAIL, Stage.RCPT, Stage.DATA, Stage.END_OF_DATA))
_KINDS = {2: ResultKind.ACCEPTED, 4: ResultKind.DEFERRED, 5: ResultKind.REJECTED}


def answered(stage: Stage, reply: Reply) -> Verdict:
    """The verdict of a server's answer; a 3xx, or any other out of place, is no usable answer."""
    kind = _KINDS.get(reply.family)
    if kind is None or (kind is ResultKind.ACCEPTED and stage is not Stage.END_OF_DATA):
        return Verdict(ResultKind.LOST, stage, f"unexpected reply: {reply.shown}", reply, Cause.PROTOCOL_FAULT)
    return Verdict(kind, stage, reply.shown, reply)


def lost(stage: Stage, cause: Cause, text: str) -> Verdict:
    """No usable answer, which is always temporary."""
    return Verdict(ResultKind.LOST, stage, text, None, cause)


def local(cause: Cause, text: str) -> Verdict:
    """The verdict on a recipient that need not be asked for, because the server said what it cannot do."""
    return Verdict(ResultKind.LOCAL, Stage.MAIL, f"local: {text}", None, cause)


class TranscriptLine(NamedTuple):
    milliseconds: int  # since its beginning
    speaker: str  # `C` we, `S` the server, `*` a remark such as "TLSv1.3"
    text: str


class Transcript:
    """Written during a session, read when it is over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._start = clock, clock()  # seconds
        self._first: list[TranscriptLine] = []
        self._last: deque[TranscriptLine] = deque(maxlen=LAST_TRANSCRIPT_LINES)
        self._left_out = 0

    def add(self, speaker: str, *texts: str) -> None:
        now, first = int((self._clock() - self._start) * 1000), self._first
        lines = [TranscriptLine(now, speaker, text[:LINE_CHARACTERS]) for text in texts]
        room = FIRST_TRANSCRIPT_LINES - len(first)
        if len(lines) > room:
            self._left_out += max(0, len(self._last) + len(lines) - room - LAST_TRANSCRIPT_LINES)
            self._last += lines[room:]
        first += lines[:room]

    def lines(self) -> tuple[TranscriptLine, ...]:
        """What is kept, with a remark where lines were left out."""
        if not self._left_out:
            return (*self._first, *self._last)
        gap = TranscriptLine(self._last[0].milliseconds, NOTE, f"{self._left_out} lines left out")
        return (*self._first, gap, *self._last)


class TransactionResult(NamedTuple):
    verdicts: tuple[Verdict, ...]  # in the order of the recipients
    transcript: tuple[TranscriptLine, ...]
    reusable: bool  # whether the connection can carry another
    stale: bool  # a reused connection the server had already given up: nothing was tried, dial afresh


class NotOpened(Exception):
    """A connection that never came to a transaction; the stream is closed. Its verdict holds for every recipient."""

    def __init__(self, verdict: Verdict, transcript: tuple[TranscriptLine, ...]) -> None:
        super().__init__(verdict.text)
        self.verdict, self.transcript = verdict, transcript
