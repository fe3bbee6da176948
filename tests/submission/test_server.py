"""The server in this process: many connections accepted in a turn, and an error in one session stays there."""

import asyncio
import gc
import ssl
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import aiosmtpd
import pytest
import trio
import trustme
from aiosmtpd.smtp import SMTP
from cryptography.hazmat.primitives import serialization

from appliance.concurrency.fair_share import Workers
from appliance.config import load
from appliance.config.load import parse
from appliance.config.settings import Config, ConfigError
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.intake.limits import Credentials, FreeSpace, RequestRate
from appliance.intake.login_throttle import LoginThrottle
from appliance.intake.request_log import RequestLog
from appliance.intake.services import IntakeServices
from appliance.model.accounts import Caller
from appliance.model.mail import DsnRequest
from appliance.store import open_store
from appliance.submission import protocol, server
from appliance.submission.connection import SmtpSession
from appliance.tls.certificate import (
    CERTIFICATE,
    CERTIFICATE_CHECK_INTERVAL,
    Certificate,
    generate,
    load_certificate,
    smtp_files,
)
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
class FailingIntake:
    error: BaseException | None = None
    held: trio.Event | None = None
    taken: list[bytes] = field(default_factory=list)
    workers: Workers = field(default_factory=Workers)

    def check_open(self, caller: Caller) -> None:
        """A message may come."""

    async def submit(
        self,
        caller: Caller,
        envelope_from: str,
        recipients: Sequence[str],
        data: bytes,
        request_id: str,
        *,
        secure: bool,
        dsn: Mapping[str, DsnRequest] | None,
        hold: int | None = None,
    ) -> Any:
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        self.taken.append(data)
        return self

    message_id = "msg_1"


@dataclass
class Served:
    port: int
    account: Provisioned
    intake: FailingIntake
    stopping: trio.Event

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Client"]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            client = Client(stream)
            assert (await client.reply()).startswith(b"220 ")
            await client.say(b"EHLO client.example.com")
            login = credential(self.account.username, self.account.password)
            assert (await client.say(b"AUTH PLAIN " + login)).startswith(b"235 ")
            yield client


@dataclass
class Client:
    stream: trio.SocketStream
    unread: bytes = b""

    async def reply(self) -> bytes:
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
        await self.stream.send_all(line + b"\r\n")
        return await self.reply()

    async def transact(self) -> bytes:
        await self.say(b"MAIL FROM:<a@example.com>")
        await self.say(b"RCPT TO:<b@example.net>")
        await self.say(b"DATA")
        return await self.say(b"Subject: x\r\n\r\nHello.\r\n.")


@asynccontextmanager
async def served(tmp_path: Path, smtp: str = "") -> AsyncIterator[Served]:
    env, intake, stopping = Environment(), FailingIntake(), trio.Event()
    settings = load.parse(SETTINGS.format(data_dir=tmp_path, smtp=smtp), tmp_path / "config.toml")
    async with open_store(tmp_path, env, inline=True) as store, trio.open_nursery() as nursery:
        account = await provision(store, "demo")
        guesses = LoginThrottle(env)
        services = IntakeServices(
            intake,  # type: ignore[arg-type]  # as much of it as is used
            Credentials(store, env, guesses),
            guesses,
            RequestRate(0, env),
            RequestRate(0, env),
            RequestLog(store, env, FreeSpace(tmp_path, 0, 0, env)),
        )
        (url,) = await nursery.start(server.serve, settings, env, services, stopping)
        yield Served(int(url.rpartition(":")[2]), account, intake, stopping)
        stopping.set()


async def test_an_error_of_ours_is_a_451_without_its_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The client may try again and learns nothing; the session goes on; the log has the cause."""
    async with served(tmp_path) as made, made.connected() as client:
        made.intake.error = RuntimeError("secret insides")
        assert await client.transact() == b"451 4.3.0 Internal error. The server's log has the details."
        made.intake.error = Refused(Code.INSUFFICIENT_CREDITS, "Buy more.")
        assert await client.transact() == b"452 4.7.1 Buy more."
        made.intake.error = None
        assert await client.transact() == b"250 2.0.0 queued as msg_1"


async def test_a_bug_in_the_protocol_ends_that_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: protocol.SmtpProtocol, argument: str) -> None:
        raise RuntimeError("secret insides")

    async with served(tmp_path) as made, made.connected() as other:
        async with made.connected() as client:
            monkeypatch.setitem(protocol._COMMANDS, "NOOP", broken)
            assert (await client.say(b"NOOP")).startswith(b"451 4.3.0 Internal error")
            assert await client.reply() == b""
        assert await other.transact() == b"250 2.0.0 queued as msg_1"


async def test_an_error_in_asyncio_ends_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as made, made.connected() as client:
        (loop,) = _loops()
        loop.call_soon(_fail)
        await trio.sleep(0.1)
        assert await client.transact() == b"250 2.0.0 queued as msg_1"


def _fail() -> None:
    raise ValueError("in a callback")


def _loops() -> list[asyncio.AbstractEventLoop]:
    found = [each for each in gc.get_objects() if issubclass(type(each), asyncio.SelectorEventLoop)]
    return [each for each in found if each.is_running()]


async def test_a_session_that_was_aborted_may_still_get_input(tmp_path: Path) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with served(tmp_path) as made, made.connected() as client:
        assert (await client.say(b"STARTTLS")).startswith(b"220 ")
        await trio.SSLStream(client.stream, context).do_handshake()
        await trio.sleep(0.1)
        sessions = [each for each in gc.get_objects() if issubclass(type(each), SmtpSession)]  # of earlier tests, too
        (session,) = (each for each in sessions if each.transport is not None and not each.transport.is_closing())
        session.evict()
        session.data_received(b"QUIT\r\n")  # asyncio had read it before


@pytest.mark.parametrize("data", [b"", b"no TLS at all\r\n"])
async def test_a_failed_handshake_leaves_nothing_behind(tmp_path: Path, data: bytes) -> None:
    """A client that hangs up or talks nonsense in place of a handshake is gone, not waited for until the end."""
    with trio.fail_after(10):
        async with served(tmp_path) as made, made.connected() as client:
            assert (await client.say(b"STARTTLS")).startswith(b"220 ")
            await client.stream.send_all(data)
            await client.stream.send_eof()
            while await client.stream.receive_some(100):
                pass


async def test_a_client_that_goes_away_stops_no_commit(tmp_path: Path) -> None:
    """A client hangs up between the end of the data and the reply: the message is taken all the same."""
    async with served(tmp_path) as made:
        made.intake.held = trio.Event()
        async with made.connected() as client:
            for line in (b"MAIL FROM:<a@example.com>", b"RCPT TO:<b@example.net>", b"DATA"):
                await client.say(line)
            await client.stream.send_all(b"Subject: x\r\n\r\nHello.\r\n.\r\n")
            await trio.sleep(0.1)
        await trio.sleep(0.1)
        made.intake.held.set()
        await trio.sleep(0.2)
        assert made.intake.taken == [b"Subject: x\r\n\r\nHello.\r\n"]


async def test_reading_ahead_is_bounded(tmp_path: Path) -> None:
    async with served(tmp_path) as made:
        made.intake.held = trio.Event()
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
            made.intake.held.set()
            assert (await client.reply()).startswith(b"250 2.0.0 queued as msg_1")
            while (reply := await client.reply()).startswith(b"250 "):
                pass
            assert reply.startswith(b"421 4.7.0 ")


async def test_much_right_behind_the_handshake_is_read(tmp_path: Path) -> None:
    """A client sends a long message together with the last octets of its handshake: all of it is read."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tls = context.wrap_bio(received, sent)
    message = b"Subject: x\r\n\r\n" + b"Hello.\r\n" * 100_000
    async with served(tmp_path) as made, made.connected() as client:
        login = credential(made.account.username, made.account.password)
        assert (await client.say(b"STARTTLS")).startswith(b"220 ")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await client.stream.send_all(sent.read())
                received.write(await client.stream.receive_some(65_536))
        tls.write(b"EHLO client.example.com\r\nAUTH PLAIN " + login + b"\r\nMAIL FROM:<a@example.com>\r\n")
        tls.write(b"RCPT TO:<b@example.net>\r\nBDAT %d LAST\r\n" % len(message))
        for at in range(0, len(message), 16_384):
            tls.write(message[at : at + 16_384])
        with trio.fail_after(10):
            await client.stream.send_all(sent.read())
            replies = b""
            while b"queued as msg_1" not in replies:
                received.write(await client.stream.receive_some(65_536))
                with suppress(ssl.SSLWantReadError):
                    while data := tls.read(65_536):
                        replies += data
        assert made.intake.taken == [message]


@pytest.mark.parametrize("junk", [0, 70_000, 300_000])
async def test_plain_text_behind_starttls_is_never_a_command(tmp_path: Path, junk: int) -> None:
    """Someone in between injects a login and a message, into which the client's own login would go (RFC 3207 5).

    So many commands that STARTTLS has its turn later, and so much behind them that reading is paused by then.
    """
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    tls = context.wrap_bio(received, sent)
    async with served(tmp_path) as made, await trio.open_tcp_stream("127.0.0.1", made.port) as stream:
        client = Client(stream)
        await client.reply()
        await client.say(b"EHLO client.example.com")
        with trio.fail_after(10), suppress(ssl.SSLError, trio.BrokenResourceError):  # refused in some way
            await stream.send_all(b"NOOP\r\n" * 50 + b"STARTTLS\r\n" + b"X" * junk)
            await trio.sleep(0.002)
            login = credential(made.account.username, made.account.password)
            await stream.send_all(b"\r\nEHLO evil\r\nAUTH PLAIN " + login + b"\r\nMAIL FROM:<a@example.com>\r\n")
            await stream.send_all(b"RCPT TO:<evil@example.net>\r\nDATA\r\nSubject: yours\r\n\r\n")
            while (reply := await client.reply()) and not reply.startswith(b"220 "):
                pass
            await trio.sleep(0.05)
            while True:
                try:
                    tls.do_handshake()
                    tls.write(b"EHLO client.example.com\r\nAUTH PLAIN secret\r\n.\r\nQUIT\r\n")
                    break
                except ssl.SSLWantReadError:
                    await stream.send_all(sent.read())
                    if not (data := await stream.receive_some(65_536)):
                        break
                    received.write(data)
            await stream.send_all(sent.read())
            while await stream.receive_some(65_536):
                pass
        assert made.intake.taken == []


CALLBACKS = {name for name in dir(asyncio.Protocol) if not name.startswith("_")}


def test_every_callback_of_asyncio_is_overridden() -> None:
    assert {*CALLBACKS} == {
        "connection_lost",
        "connection_made",
        "data_received",
        "eof_received",
        "pause_writing",
        "resume_writing",
    }
    assert set(vars(SmtpSession)) >= CALLBACKS
    assert not issubclass(SMTP, asyncio.BufferedProtocol)


async def test_no_name_of_a_session_means_something_to_aiosmtpd(tmp_path: Path) -> None:
    async with served(tmp_path) as made, made.connected():
        sessions = [each for each in gc.get_objects() if issubclass(type(each), SmtpSession)]  # of earlier tests, too
        assert sessions
        for session in sessions:
            ours = {name for name in (*vars(SmtpSession), *vars(session)) if not name.startswith("__")}
            assert ours & set(dir(SMTP)) == CALLBACKS
            SMTP.__del__(session)  # type: ignore[no-untyped-call]  # finds nothing of what its __init__ would set up


async def test_no_code_of_aiosmtpd_runs(tmp_path: Path) -> None:
    ran: set[str] = set()
    package = str(Path(aiosmtpd.__file__).parent)

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            ran.add(frame.f_code.co_name)

    async with served(tmp_path) as made:
        sys.setprofile(note)
        try:
            async with made.connected() as client:
                assert await client.transact() == b"250 2.0.0 queued as msg_1"
                assert (await client.say(b"QUIT")).startswith(b"221 ")
                assert await client.reply() == b""
        finally:
            sys.setprofile(None)
    assert ran <= {"__del__"}


def settings(directory: Path, smtp: str = "", hostname: str = "mail.example.com") -> Config:
    text = f'[server]\nhostname = "{hostname}"\ndata_dir = "{directory}"\n[smtp]\n{smtp}'
    return parse(text, directory / "config.toml")


def named(directory: Path, chain: bytes, key: bytes) -> Config:
    (directory / "chain.pem").write_bytes(chain)
    (directory / "key.pem").write_bytes(key)
    return settings(directory, f'tls_cert = "{directory}/chain.pem"\ntls_key = "{directory}/key.pem"\n')


def issued() -> tuple[bytes, bytes]:
    made = trustme.CA().issue_cert("mail.example.com")
    return b"".join(blob.bytes() for blob in made.cert_chain_pems), made.private_key_pem.bytes()


def encrypted(key: bytes) -> bytes:
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )


def test_one_is_made_for_each_host_name(tmp_path: Path) -> None:
    """The generated one stays as long as the host is called so, and is made anew when it is damaged."""
    load_certificate("smtp", smtp_files(settings(tmp_path)))
    first = (tmp_path / CERTIFICATE).read_bytes()
    load_certificate("smtp", smtp_files(settings(tmp_path)))
    assert (tmp_path / CERTIFICATE).read_bytes() == first
    load_certificate("smtp", smtp_files(settings(tmp_path, hostname="other.example.com")))
    second = (tmp_path / CERTIFICATE).read_bytes()
    assert second != first
    (tmp_path / CERTIFICATE).write_bytes(second[:100])
    load_certificate("smtp", smtp_files(settings(tmp_path, hostname="other.example.com")))
    assert len((tmp_path / CERTIFICATE).read_bytes()) > 100


@pytest.mark.parametrize("fault", ["nonsense", "another's key", "an encrypted key"])
def test_files_that_cannot_be_used_stop_the_start(tmp_path: Path, fault: str) -> None:
    chain, key = issued()
    wrong = {"nonsense": b"x", "another's key": issued()[1], "an encrypted key": encrypted(key)}[fault]
    with pytest.raises(ConfigError, match=r"smtp\.tls_cert: .*chain\.pem and .*key\.pem cannot be used"):
        load_certificate("smtp", smtp_files(named(tmp_path, chain, wrong)))


async def test_a_change_is_seen(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    generate(chain, key, "mail.example.com")
    certificate = Certificate(chain, key)
    seen: list[ssl.SSLContext] = [certificate.context]

    async def look() -> ssl.SSLContext:
        await trio.sleep(CERTIFICATE_CHECK_INTERVAL * 1.5)
        return certificate.context

    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.watch)
        assert await look() is seen[0]
        kept = key.read_bytes()
        key.unlink()
        assert await look() is seen[0]
        key.write_bytes(b"not a key")
        assert await look() is seen[0]
        key.write_bytes(kept)
        assert (await look()) is not seen[0]
        nursery.cancel_scope.cancel()
