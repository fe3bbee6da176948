"""In charge of what can come of a recipient: the words in which the SMTP client reports, and a classifier decides."""

from enum import StrEnum
from typing import NamedTuple

from appliance.deliver.smtp.reply import Reply
from appliance.deliver.smtp.transcript import Line


class Stage(StrEnum):
    """How far the dialogue had come: the answer to what is meant."""

    GREETING = "greeting"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    RESET = "reset"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    END_OF_DATA = "end_of_data"
    QUIT = "quit"

    __hash__ = str.__hash__  # Enum's own is not in C, and every reply is looked up by its stage


class Kind(StrEnum):
    """What came of it."""

    ACCEPTED = "accepted"  # 2xx after the end of data: the server has it
    REJECTED = "rejected"  # 5xx
    DEFERRED = "deferred"  # 4xx
    LOST = "lost"  # no usable answer; always temporary
    LOCAL = "local"  # the server cannot take it, and we did not ask; permanent for this server


class Cause(StrEnum):
    """Why there is no answer of the server to go by."""

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
    """What came of a recipient, or of a whole connection, and at which stage."""

    kind: Kind
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
        """The reply's enhanced code."""
        return None if self.reply is None else self.reply.enhanced


_KINDS = {2: Kind.ACCEPTED, 4: Kind.DEFERRED, 5: Kind.REJECTED}


def answered(stage: Stage, reply: Reply) -> Verdict:
    """What a server's answer means for those it concerns; a 3xx, or any other out of place, is nothing to go by."""
    kind = _KINDS.get(reply.family)
    if kind is None or (kind is Kind.ACCEPTED and stage is not Stage.END_OF_DATA):
        return Verdict(Kind.LOST, stage, f"unexpected reply: {reply}", reply, Cause.PROTOCOL_FAULT)
    return Verdict(kind, stage, str(reply), reply)


def lost(stage: Stage, cause: Cause, text: str) -> Verdict:
    """No usable answer, which is always temporary."""
    return Verdict(Kind.LOST, stage, text, None, cause)


def local(cause: Cause, text: str) -> Verdict:
    """A recipient that need not be asked for, because the server said what it cannot do."""
    return Verdict(Kind.LOCAL, Stage.MAIL, f"local: {text}", None, cause)


class RecipientResult(NamedTuple):
    """What came of one recipient of a transaction."""

    address: str
    verdict: Verdict


class TransactionResult(NamedTuple):
    """What came of one transaction, in the order of its recipients."""

    recipients: tuple[RecipientResult, ...]
    transcript: tuple[Line, ...]
    reusable: bool  # whether the connection can carry another
    stale: bool  # a reused connection the server had already given up: nothing was tried, dial afresh


class NotOpened(Exception):
    """A connection that never came to a transaction; the stream is closed. Its verdict holds for every recipient."""

    def __init__(self, verdict: Verdict, transcript: tuple[Line, ...]) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict
        self.transcript = transcript

    def results(self, recipients: tuple[str, ...]) -> tuple[RecipientResult, ...]:
        """The verdict for each of them."""
        return tuple(RecipientResult(address, self.verdict) for address in recipients)
