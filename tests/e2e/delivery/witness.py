"""A mail server that takes its time and remembers every transaction with its times: who was in flight, and when.

Unlike `FakeMx` it counts a message as taken once it has the final dot, whether or not the client gets its 250.
"""

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

EHLO = b"250-mx.example\r\n250-PIPELINING\r\n250-SIZE 10485760\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n"
ANSWERS = {"EHLO": EHLO, "QUIT": b"221 2.0.0 bye\r\n", "DATA": b"554 5.5.1 without recipients\r\n"}
OK = b"250 2.0.0 ok\r\n"

_SIGNATURES = re.compile(rb"\A(?:DKIM-Signature:.*\r\n(?:[ \t].*\r\n)*)+")
_MESSAGE_ID = re.compile(rb"^Message-ID:\s*(<[^>]+>)", re.MULTILINE)


@dataclass(slots=True, eq=False)
class Taken:
    """One message that came, or is just coming."""

    recipients: tuple[str, ...]
    data: bytes = b""  # with its dots undone; empty until the final dot has come
    port: int = 0  # that it came to
    answered_at: float | None = None  # when its 250 was handed to the operating system, `time.monotonic()`

    @property
    def unsigned(self) -> bytes:
        """The message without its signatures, which say when they were made."""
        return _SIGNATURES.sub(b"", self.data)

    @property
    def message_id(self) -> bytes:
        found = _MESSAGE_ID.findall(self.data.partition(b"\r\n\r\n")[0])
        assert len(found) == 1, self.data
        return bytes(found[0])


@dataclass(slots=True)
class Witness:
    """The server; `pause` is what it does between the final dot and its answer."""

    pause: Callable[[], Awaitable[None]]
    judge: Callable[[str], bytes] = lambda _: OK  # the answer to RCPT for an address
    transactions: list[Taken] = field(default_factory=list)  # from the 354 on
    open: list[Taken] = field(default_factory=list)  # those that are not answered, on connections that stand
    most_open: int = 0
    sessions: int = 0  # that stand

    @property
    def taken(self) -> list[Taken]:
        return [each for each in self.transactions if each.data]

    async def serve(self, stream: trio.SocketStream) -> None:
        self.sessions += 1
        try:
            async with stream:
                await self._session(stream, _Lines(stream))
        except (EOFError, trio.BrokenResourceError):
            pass
        finally:
            self.sessions -= 1

    async def _session(self, stream: trio.SocketStream, lines: "_Lines") -> None:
        recipients: list[str] = []
        await stream.send_all(b"220 mx.example ESMTP\r\n")
        while True:
            line = (await lines.until(b"\r\n")).decode()
            verb = line[:4].upper()
            if verb == "DATA" and recipients:
                await self._take(stream, lines, tuple(recipients))
            elif verb == "RCPT":
                address = line.partition("<")[2].partition(">")[0]
                answer = self.judge(address)
                recipients += [address] if answer == OK else []
                await stream.send_all(answer)
            else:
                recipients = []
                await stream.send_all(ANSWERS.get(verb, OK))

    async def _take(self, stream: trio.SocketStream, lines: "_Lines", recipients: tuple[str, ...]) -> None:
        this = Taken(recipients, port=stream.socket.getsockname()[1])
        self.transactions.append(this)
        self.open.append(this)
        self.most_open = max(self.most_open, len(self.open))
        try:
            await stream.send_all(b"354 go on\r\n")
            lines.buffer = b"\r\n" + lines.buffer
            this.data = (await lines.until(b"\r\n.\r\n") + b"\r\n").replace(b"\r\n.", b"\r\n")[2:]
            await self.pause()
            await stream.send_all(OK)
            this.answered_at = time.monotonic()
        finally:
            self.open.remove(this)


class _Lines:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            chunk = await self.stream.receive_some(65_536)
            if not chunk:
                raise EOFError
            self.buffer += bytes(chunk)
        found, _, self.buffer = self.buffer.partition(end)
        return found
