"""The part of SMTP that the opening and the transaction share: safe commands out, replies in, and the ways it can end.

No I/O: the driver repeats, while an exchange is `awaiting` a reply: send what `output` gives, receive bytes, hand them
to `receive`. Two invariants. No byte of an address, a name or a secret can end a command line or begin another command.
And a server may only answer: bytes left over once every command is answered are a fault, which shuts out replies
injected before STARTTLS and an acceptance sent ahead of the message.
"""

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.deliver.smtp.reply import Reply, ReplyFault, ReplyReader
from appliance.deliver.smtp.results import CLIENT, NOTE, SERVER, Cause, Stage, Transcript, Verdict, answered, lost

SERVICE_CLOSING = 421  # RFC 5321 3.8 and 4.2.3: may come in answer to anything; the server closes

# Beyond threats.md 6 (CR, LF, NUL, space, angle brackets), every other control character and line separator.
_SAFE = re.compile(r"[^\x00-\x20\x7f-\x9f<>\u2028\u2029]*")
_DOMAIN = re.compile(r"[A-Za-z0-9.:_\[\]-]+")  # a host name or an address literal, RFC 5321 4.1.3


# ---- commands


class UnsafeArgument(ValueError):
    """Text that must never become part of a command; that it came this far is a bug."""


@dataclass(frozen=True, slots=True)
class RelayCredentials:
    username: str
    password: str = field(repr=False)


def mail_command(sender: str, parameters: str = "") -> str:
    """RFC 5321 4.1.1.2; the empty sender is the null reverse-path."""
    return f"MAIL FROM:<{_checked(sender)}>{parameters}"


def rcpt_command(recipient: str) -> str:
    """RFC 5321 4.1.1.3."""
    if not recipient:
        raise UnsafeArgument("an empty recipient")
    return f"RCPT TO:<{_checked(recipient)}>"


def hello_command(verb: str, name: str) -> str:
    """EHLO or HELO (RFC 5321 4.1.1.1) with our own name."""
    if not _DOMAIN.fullmatch(name):
        raise UnsafeArgument(f"not a name to greet with: {name!r}")
    return f"{verb} {name}"


def plain_secret(credentials: RelayCredentials) -> str:
    """The one message of AUTH PLAIN, RFC 4616 2."""
    if "\0" in credentials.username + credentials.password:
        raise UnsafeArgument("a NUL in the relay's credentials")
    return base64(f"\0{credentials.username}\0{credentials.password}")


def base64(text: str) -> str:
    return b64encode(text.encode()).decode("ascii")


def _checked(address: str) -> str:
    if not _SAFE.fullmatch(address):
        raise UnsafeArgument(f"not an address to write into a command: {address!r}")
    return address


# ---- commands and replies in turn


class SmtpExchange(ABC):
    def __init__(self, replies: ReplyReader, clock: Callable[[], float]) -> None:
        self.transcript = Transcript(clock)
        self.verdict: Verdict | None = None  # what ended the session; None while it is good
        self.answers = 0  # replies taken so far: a driver gives each its own time
        self._replies = replies
        self._output: list[bytes] = []
        self._broken: str | None = None

    @property
    @abstractmethod
    def awaiting(self) -> Stage | None:
        """What the next reply will answer; None when there is nothing to wait for."""

    @abstractmethod
    def _answer(self, reply: Reply) -> None:
        """Go on by what the server said."""

    @abstractmethod
    def _end(self, verdict: Verdict) -> None:
        """End the session; nothing is awaited any more."""

    @property
    def in_step(self) -> bool:
        """Whether the connection can be used for another exchange after this one."""
        return self.verdict is None and self._broken is None and self._replies.empty

    def output(self) -> list[bytes]:
        """What is to be sent now, once."""
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes | bytearray) -> None:
        """Take what arrived; nothing means that the server closed."""
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
        """Sending failed. The server may have said why before it closed, so continue receiving; no 2xx counts now."""
        self._broken = self._broken or reason
        self._output.clear()

    def fail(self, cause: Cause, text: str) -> None:
        """End without an answer: the connection is lost, too slow, or not speaking SMTP."""
        if (stage := self.awaiting) is not None:
            self._fail_at(stage, cause, text)

    def _fail_at(self, stage: Stage, cause: Cause, text: str) -> None:
        self.transcript.add(NOTE, text)
        self._end(lost(stage, cause, f"{text} (at {stage.replace('_', ' ')})"))

    def _unasked(self, stage: Stage) -> bool:
        """Whether more was received than was asked for; if so, end."""
        if self._replies.empty:
            return False
        self._fail_at(stage, Cause.PROTOCOL_FAULT, "the server said more than it was asked")
        return True

    def _say(self, lines: list[str], shown: str | None = None) -> None:
        """Write one or more commands at once; `shown` stands in the transcript for what holds a secret."""
        self._output.append(("\r\n".join(lines) + "\r\n").encode())
        self.transcript.add(CLIENT, *(lines if shown is None else [shown]))
