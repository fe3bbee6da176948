"""In charge of what every part of an SMTP session has in common: bytes out, replies in, and the ways it can end.

A dialogue does no I/O. Whoever drives it repeats, while it is `awaiting` a reply: send what `output` gives, receive
something, hand it to `receive`. A server speaks when it is spoken to: bytes left over once everything said is answered
are a fault. That is what shuts out replies injected before STARTTLS, and an acceptance sent ahead of the message.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from appliance.deliver.smtp.reply import Reply, ReplyFault, ReplyReader
from appliance.deliver.smtp.results import Cause, Stage, Verdict, answered, lost
from appliance.deliver.smtp.transcript import CLIENT, NOTE, SERVER, Transcript

CLOSING = 421  # RFC 5321 3.8 and 4.2.3: may come in answer to anything; the server closes


class Dialogue(ABC):
    """One run of commands and replies on a connection."""

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
        """Whether the connection can be used for another dialogue after this one."""
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
            self._take(stage, reply)

    def broken(self, reason: str) -> None:
        """Sending failed. The server may have said why before it hung up, so go on receiving; no consent counts now."""
        self._broken = self._broken or reason
        self._output.clear()

    def fail(self, cause: Cause, text: str) -> None:
        """End without an answer: the connection is lost, late or talking nonsense."""
        if (stage := self.awaiting) is not None:
            self._fail_at(stage, cause, text)

    def _fail_at(self, stage: Stage, cause: Cause, text: str) -> None:
        self.transcript.add(NOTE, text)
        self._end(lost(stage, cause, f"{text} (at {stage.replace('_', ' ')})"))

    def _take(self, stage: Stage, reply: Reply) -> None:
        self.answers += 1
        self.transcript.add(SERVER, reply.shown)
        if reply.code == CLOSING:
            self._end(answered(stage, reply))
        elif self._broken is not None and reply.family < 4:
            self.fail(Cause.CONNECTION_LOST, self._broken)
        else:
            self._answer(reply)

    def _unasked(self, stage: Stage) -> bool:
        """Whether more was received than was asked for; if so, end."""
        if self._replies.empty:
            return False
        self._fail_at(stage, Cause.PROTOCOL_FAULT, "the server said more than it was asked")
        return True

    def _say(self, lines: list[str], shown: str | None = None) -> None:
        """Say one or more commands in one write; `shown` stands in the transcript for what holds a secret."""
        self._output.append(("\r\n".join(lines) + "\r\n").encode())
        self.transcript.add(CLIENT, *(lines if shown is None else [shown]))
