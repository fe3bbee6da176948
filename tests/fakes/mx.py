"""A mail server that says what a test wants, over a memory stream or a real socket."""

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
import trio.testing

EXTENSIONS = ("PIPELINING", "SIZE 10485760", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES")

Action = Callable[[trio.abc.Stream], Awaitable[bytes | None]]
Answer = bytes | Action
"""What a server sends, or does, in answer to one command; an action may return what it said."""


class HangUp(Exception):
    """The server closes the connection now."""


async def hang_up(stream: trio.abc.Stream) -> None:
    raise HangUp


async def silence(stream: trio.abc.Stream) -> None:
    """An answer: none, ever."""
    await trio.sleep_forever()


def say_and_hang_up(data: bytes) -> Action:
    async def act(stream: trio.abc.Stream) -> None:
        await stream.send_all(data)
        raise HangUp

    return act


def wait_and_say(seconds: float, data: bytes) -> Action:
    async def act(stream: trio.abc.Stream) -> None:
        await trio.sleep(seconds)
        await stream.send_all(data)

    return act


def drip(data: bytes, seconds: float) -> Action:
    async def act(stream: trio.abc.Stream) -> None:
        for number in range(len(data)):
            await stream.send_all(data[number : number + 1])
            await trio.sleep(seconds)

    return act


def endless(data: bytes) -> Action:
    """An answer: the same bytes again and again, until the client closes."""

    async def act(stream: trio.abc.Stream) -> None:
        while True:
            await stream.send_all(data)

    return act


@dataclass(slots=True)
class Received:
    mail: str  # what followed MAIL FROM:, with its parameters
    recipients: tuple[str, ...]  # the accepted ones
    data: bytes  # without dot-stuffing


@dataclass(slots=True)
class FakeMx:
    """A scripted server. `answers` replaces the usual answer to a verb, to `RCPT <address>`, to `greeting` or to `.`;

    a list is used up from the front, and its last answer stays.
    """

    extensions: Sequence[str] = EXTENSIONS
    answers: Mapping[str, Answer | list[Answer]] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    implicit_tls: bool = False
    logins: Mapping[str, str] = field(default_factory=dict)
    # what happened
    sessions: int = 0
    commands: list[str] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)  # as they were received
    messages: list[Received] = field(default_factory=list)

    @asynccontextmanager
    async def memory(self) -> AsyncIterator[trio.abc.Stream]:
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve, ours)
            yield theirs
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """The port on 127.0.0.1 at which it listens meanwhile."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, self.serve, listeners)
            yield listeners[0].socket.getsockname()[1]
            nursery.cancel_scope.cancel()

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.sessions += 1
        session = _Session(self, stream)
        try:
            await session.run()
        except (HangUp, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(session.stream)


class _Session:
    def __init__(self, mx: FakeMx, stream: trio.abc.Stream) -> None:
        self.mx = mx
        self.stream = stream
        self.buffer = b""
        self.encrypted = False
        self.forget()

    def forget(self) -> None:
        self.mail = ""
        self.recipients: list[str] = []

    async def run(self) -> None:
        if self.mx.implicit_tls:
            await self.encrypt()
        await self.answer("greeting", b"220 mx.example ESMTP\r\n")
        while True:
            line = (await self.until(b"\r\n")).decode("utf-8")
            self.mx.commands.append(line)
            verb, _, rest = line.partition(" ")
            step = _STEPS.get(verb.upper())
            if step is None:
                await self.answer(verb.upper(), b"500 5.5.1 unknown\r\n")
            else:
                await step(self, rest)

    async def until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            chunk = bytes(await self.stream.receive_some())
            if not chunk:
                raise HangUp
            self.mx.chunks.append(chunk)
            self.buffer += chunk
        found, _, self.buffer = self.buffer.partition(end)
        return found

    async def answer(self, name: str, usual: bytes, note: Callable[[bytes], None] = lambda _: None) -> bytes:
        """Give the scripted answer, or the usual one; what was said, as far as that is known.

        What is known is noted before it is sent: a client that has it may look at once.
        """
        answer: Answer | list[Answer] = self.mx.answers.get(name, usual)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, bytes):
            note(answer)
            await self.stream.send_all(answer)
            return answer
        said = await answer(self.stream) or b""
        note(said)
        return said

    async def hello(self, rest: str) -> None:
        extensions = [*self.mx.extensions]
        if self.mx.tls is not None and not self.encrypted:
            extensions.append("STARTTLS")
        if self.mx.logins:
            extensions.append("AUTH PLAIN LOGIN")
        lines = ["mx.example", *extensions]
        text = "".join(f"250-{line}\r\n" for line in lines[:-1]) + f"250 {lines[-1]}\r\n"
        await self.answer("EHLO", text.encode())

    async def helo(self, rest: str) -> None:
        await self.answer("HELO", b"250 mx.example\r\n")

    async def starttls(self, rest: str) -> None:
        if (await self.answer("STARTTLS", b"220 2.0.0 go\r\n")).startswith(b"220"):
            await self.encrypt()

    async def encrypt(self) -> None:
        assert self.mx.tls is not None
        self.stream = trio.SSLStream(self.stream, self.mx.tls, server_side=True, https_compatible=True)
        self.encrypted = True
        self.buffer = b""
        await self.stream.do_handshake()

    async def auth(self, rest: str) -> None:
        mechanism, _, initial = rest.partition(" ")
        if mechanism.upper() == "PLAIN":
            given = initial or await self.challenge(b"")
            _, username, password = base64.b64decode(given).decode().split("\0")
        else:
            username = base64.b64decode(await self.challenge(b"Username:")).decode()
            password = base64.b64decode(await self.challenge(b"Password:")).decode()
        good = self.mx.logins.get(username) == password
        await self.answer("AUTH", b"235 2.7.0 welcome\r\n" if good else b"535 5.7.8 no\r\n")

    async def challenge(self, text: bytes) -> str:
        await self.stream.send_all(b"334 " + base64.b64encode(text) + b"\r\n")
        return (await self.until(b"\r\n")).decode()

    async def mail_from(self, rest: str) -> None:
        if (await self.answer("MAIL", b"250 2.1.0 ok\r\n")).startswith(b"2"):
            self.mail = rest.partition(":")[2]

    async def rcpt_to(self, rest: str) -> None:
        address = rest.partition("<")[2].partition(">")[0]
        name = f"RCPT {address}" if f"RCPT {address}" in self.mx.answers else "RCPT"
        usual = b"250 2.1.5 ok\r\n" if self.mail else b"503 5.5.1 MAIL first\r\n"
        if (await self.answer(name, usual)).startswith(b"2"):
            self.recipients.append(address)

    async def data(self, rest: str) -> None:
        usual = b"354 go on\r\n" if self.recipients else b"554 5.5.1 no valid recipients\r\n"
        if not (await self.answer("DATA", usual)).startswith(b"354"):
            return
        self.buffer = b"\r\n" + self.buffer
        data = (await self.until(b"\r\n.\r\n") + b"\r\n")[2:]

        def keep(said: bytes) -> None:
            if said.startswith(b"2"):
                received = (b"\r\n" + data).replace(b"\r\n.", b"\r\n")[2:]
                self.mx.messages.append(Received(self.mail, tuple(self.recipients), received))

        await self.answer(".", b"250 2.0.0 queued\r\n", keep)
        self.forget()

    async def reset(self, rest: str) -> None:
        self.forget()
        await self.answer("RSET", b"250 2.0.0 ok\r\n")

    async def quit(self, rest: str) -> None:
        await self.answer("QUIT", b"221 2.0.0 bye\r\n")
        raise HangUp


_STEPS: dict[str, Callable[[_Session, str], Awaitable[None]]] = {
    "EHLO": _Session.hello,
    "HELO": _Session.helo,
    "STARTTLS": _Session.starttls,
    "AUTH": _Session.auth,
    "MAIL": _Session.mail_from,
    "RCPT": _Session.rcpt_to,
    "DATA": _Session.data,
    "RSET": _Session.reset,
    "QUIT": _Session.quit,
}
