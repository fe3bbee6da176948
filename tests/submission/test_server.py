"""The listeners in this process, with a front door that fails: what goes wrong in one session stays there."""

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
import trio_asyncio

from appliance.concurrency.workers import Workers
from appliance.config import load
from appliance.errors import Code, Refused
from appliance.intake.credentials import Credentials
from appliance.intake.limits import RequestRate
from appliance.intake.login_throttle import LoginThrottle
from appliance.intake.services import IntakeServices
from appliance.model.mail import Caller
from appliance.outside import Outside
from appliance.store import open_store
from appliance.submission import protocol, server
from tests.running_appliance import Provisioned, provision
from tests.submission.offline_client import credential

SETTINGS = """
[server]
hostname = "mail.example.com"
data_dir = "{data_dir}"
[smtp]
bind = ["127.0.0.1:0"]
bind_tls = []
allow_plaintext_auth = true
{smtp}
"""


@dataclass
class FailingDoor:
    """A front door that raises, or keeps everybody waiting."""

    error: BaseException | None = None
    held: trio.Event | None = None
    taken: list[bytes] = field(default_factory=list)
    workers: Workers = field(default_factory=Workers)

    def check_open(self, caller: Caller) -> None:
        """It looks open."""

    async def submit(
        self,
        caller: Caller,
        envelope_from: str,
        recipients: Sequence[str],
        data: bytes,
        request_id: str,
        *,
        secure: bool,
    ) -> Any:
        """Take a message, or not."""
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        self.taken.append(data)
        return self

    message_id = "msg_1"


@dataclass
class Served:
    """A running submission server."""

    port: int
    account: Provisioned
    door: FailingDoor
    stopping: trio.Event

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Client"]:
        """A client that was greeted and has logged in."""
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            client = Client(stream)
            assert (await client.reply()).startswith(b"220 ")
            await client.say(b"EHLO client.example.com")
            login = credential(self.account.username, self.account.password)
            assert (await client.say(b"AUTH PLAIN " + login)).startswith(b"235 ")
            yield client


@dataclass
class Client:
    """Lines out, replies in."""

    stream: trio.SocketStream
    unread: bytes = b""

    async def reply(self) -> bytes:
        """The next reply's last line; b"" at the end."""
        with trio.fail_after(10):
            while True:
                line, end, rest = self.unread.partition(b"\r\n")
                if not end:
                    data = await self.stream.receive_some(65_536)
                    if not data:
                        return b""
                    self.unread += data
                    continue
                self.unread = rest
                if line[3:4] != b"-":
                    return line

    async def say(self, line: bytes) -> bytes:
        """One line and its reply."""
        await self.stream.send_all(line + b"\r\n")
        return await self.reply()

    async def transact(self) -> bytes:
        """One message."""
        await self.say(b"MAIL FROM:<a@example.com>")
        await self.say(b"RCPT TO:<b@example.net>")
        await self.say(b"DATA")
        return await self.say(b"Subject: x\r\n\r\nHello.\r\n.")


@asynccontextmanager
async def served(tmp_path: Path, smtp: str = "") -> AsyncIterator[Served]:
    """Listeners with a door of ours."""
    outside, door, stopping = Outside(), FailingDoor(), trio.Event()
    settings = load.parse(SETTINGS.format(data_dir=tmp_path, smtp=smtp), tmp_path / "config.toml")
    async with open_store(tmp_path, outside, inline=True) as store, trio.open_nursery() as nursery:
        account = await provision(store, "demo")
        guesses = LoginThrottle(outside)
        entrance = IntakeServices(
            door,  # type: ignore[arg-type]  # as much of a front door as is asked for
            Credentials(store, outside, guesses),
            guesses,
            RequestRate(0, outside),
        )
        (url,) = await nursery.start(server.serve, settings, outside, entrance, stopping)
        yield Served(int(url.rpartition(":")[2]), account, door, stopping)
        stopping.set()


async def test_an_error_of_ours_is_a_451_without_its_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The client may try again and learns nothing; the session goes on; the log has the cause."""
    async with served(tmp_path) as made, made.connected() as client:
        made.door.error = RuntimeError("secret insides")
        assert await client.transact() == b"451 4.3.0 Something went wrong on our side. The log has the details."
        made.door.error = Refused(Code.INSUFFICIENT_CREDITS, "Buy more.")
        assert await client.transact() == b"452 4.7.1 Buy more."
        made.door.error = None
        assert await client.transact() == b"250 2.0.0 queued as msg_1"


async def test_a_bug_in_a_dialogue_ends_that_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do not notice."""

    def broken(self: protocol.Dialogue, argument: str) -> None:
        raise RuntimeError("secret insides")

    async with served(tmp_path) as made, made.connected() as other:
        async with made.connected() as client:
            monkeypatch.setitem(protocol._VERBS, "NOOP", broken)
            assert (await client.say(b"NOOP")).startswith(b"451 4.3.0 Something went wrong")
            assert await client.reply() == b""
        assert await other.transact() == b"250 2.0.0 queued as msg_1"


async def test_an_error_in_asyncio_ends_nothing(tmp_path: Path) -> None:
    """A callback that raises on the loop is logged; trio-asyncio by itself would end the process."""
    async with served(tmp_path) as made, made.connected() as client:
        (loop,) = _loops()
        loop.call_soon(_fail)
        await trio.sleep(0.1)
        assert await client.transact() == b"250 2.0.0 queued as msg_1"


def _fail() -> None:
    raise ValueError("in a callback")


def _loops() -> list[asyncio.AbstractEventLoop]:
    """The loops that run in this process."""
    found = [each for each in gc.get_objects() if isinstance(each, trio_asyncio.TrioEventLoop)]
    return [each for each in found if each.is_running()]


@pytest.mark.parametrize("data", [b"", b"no TLS at all\r\n"])
async def test_a_failed_handshake_leaves_nothing_behind(tmp_path: Path, data: bytes) -> None:
    """Whoever hangs up or talks nonsense in place of a handshake is gone, not waited for until the end."""
    with trio.fail_after(10):
        async with served(tmp_path) as made, made.connected() as client:
            assert (await client.say(b"STARTTLS")).startswith(b"220 ")
            await client.stream.send_all(data)
            await client.stream.send_eof()
            while await client.stream.receive_some(100):
                pass


async def test_a_client_that_goes_away_stops_no_commit(tmp_path: Path) -> None:
    """Whoever hangs up between the end of the data and the answer: the message is taken all the same."""
    async with served(tmp_path) as made:
        made.door.held = trio.Event()
        async with made.connected() as client:
            for line in (b"MAIL FROM:<a@example.com>", b"RCPT TO:<b@example.net>", b"DATA"):
                await client.say(line)
            await client.stream.send_all(b"Subject: x\r\n\r\nHello.\r\n.\r\n")
            await trio.sleep(0.1)
        await trio.sleep(0.1)
        made.door.held.set()
        await trio.sleep(0.2)
        assert made.door.taken == [b"Subject: x\r\n\r\nHello.\r\n"]


async def test_reading_ahead_is_bounded(tmp_path: Path) -> None:
    """While a message is being stored, no more than a little of what follows is taken in."""
    async with served(tmp_path) as made:
        made.door.held = trio.Event()
        async with made.connected() as client:
            for line in (b"MAIL FROM:<a@example.com>", b"RCPT TO:<b@example.net>", b"DATA"):
                await client.say(line)
            await client.stream.send_all(b"Subject: x\r\n\r\nHello.\r\n.\r\n")
            sent = 0
            with trio.move_on_after(1):
                while sent < 64 * 1024 * 1024:
                    await client.stream.send_all(b"NOOP\r\n" * 10_000)
                    sent += 60_000
            assert sent < 32 * 1024 * 1024
            made.door.held.set()
            assert (await client.reply()).startswith(b"250 2.0.0 queued as msg_1")
            while (reply := await client.reply()).startswith(b"250 "):
                pass
            assert reply.startswith(b"421 4.7.0 ")
