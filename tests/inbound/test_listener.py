"""The protocol of the listener by itself: which envelopes are taken, and how guessing ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from appliance.concurrency.fair_share import MemoryBudget, Workers
from appliance.environment import Environment
from appliance.errors import Code, Refused, StorageUnavailable
from appliance.feedback.return_path import LIFETIME, ReturnPaths
from appliance.inbound import listener
from appliance.inbound.listener import RATES, FeedbackListener, checked_mail
from appliance.message.addresses import Address
from appliance.message.limits import HEADER_LINES
from appliance.model.feedback import QueueShare, ShareScope
from appliance.store.feedback import SHARE_PARTS, QueueLimits
from appliance.submission import dialogue
from appliance.submission.content import FindRecipient, PlainAction, Submit
from appliance.submission.protocol import MAX_ERRORS, SmtpProtocol
from tests.inbound.bounces import bounce
from tests.inbound.conftest import KEY, NAME, Read
from tests.submission.offline_client import MESSAGE


@dataclass
class Fakes:
    names: tuple[str, ...] = (NAME,)
    full: bool = False
    asked: list[str] = field(default_factory=list)
    added: list[tuple[tuple[str, ...], bytes]] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    workers: Workers = field(default_factory=Workers)

    async def find(self, address: str) -> None:
        """No domain receives mail here; test_receiving.py has those that do."""
        self.looked_up.append(address)

    async def of_return_path(self, name: str) -> list[tuple[str, str]]:
        self.asked.append(name)
        return [("acc_1", "example.com")] if name in self.names else []

    async def check_room(self, _: Iterable[QueueShare]) -> None:
        """There always is."""

    async def add(self, addresses: tuple[str, ...], mime: bytes, _: Iterable[QueueShare]) -> str:
        self.added.append((addresses, mime))
        return "fbm_1"

    def check_disk(self) -> None:
        if self.full:
            raise StorageUnavailable("The server is low on disk space.")


@dataclass
class Talk:
    listener: FeedbackListener
    protocol: SmtpProtocol
    fakes: Fakes
    env: Environment

    async def send(self, data: bytes) -> list[bytes]:
        action = self.protocol.receive(data)
        while action is not None:
            if isinstance(action, FindRecipient):
                self.protocol.recipient_found(await self.protocol.backend.find_recipient(action))
            elif isinstance(action, Submit):
                try:
                    self.protocol.submitted(await self.protocol.backend.submit(action))
                except Refused as refused:
                    self.protocol.submitted(refused)
            else:
                assert action is PlainAction.YIELD
                self.protocol.resume()
            action = self.protocol.proceed()
        lines = b"".join(self.protocol.out).splitlines(keepends=True)
        self.protocol.out.clear()
        return [line for line in lines if line[3:4] != b"-"]

    async def say(self, line: bytes) -> bytes:
        (reply,) = await self.send(line + b"\r\n")
        return reply

    def token(self, name: str = NAME, age: int = 0) -> bytes:
        given = Environment(now=lambda: self.env.now() - age)
        return ReturnPaths(KEY).address(given.identifier("rcp"), name).encode()


def made() -> Talk:
    env, fakes = Environment(), Fakes()
    engine = SimpleNamespace(reads_at_once=False)  # as in a cluster; test_receiving.py has the embedded database
    store = cast(Any, SimpleNamespace(domains=fakes, feedback=fakes, receiving=fakes, engine=engine))
    feedback = FeedbackListener(env, store, cast(Any, fakes), ReturnPaths(KEY), "mail.example.com")
    backend = feedback.backend_for("192.0.2.1", lambda _: False)
    protocol = SmtpProtocol("mail.example.com", backend, MemoryBudget(2**20, owner_part=2), secure=False)
    protocol.out.clear()
    return Talk(feedback, protocol, fakes, env)


async def talk() -> Talk:
    new = made()
    await new.say(b"EHLO mx.example.net")
    assert await new.say(b"MAIL FROM:<>") == dialogue.SENDER_OK
    return new


async def test_an_address_to_unsubscribe() -> None:
    new = await talk()
    paths, id_ = ReturnPaths(KEY), new.env.identifier("rcp")
    old = Environment(now=lambda: new.env.now() - LIFETIME - 1_000_000).identifier("rcp")
    good, expired = (paths.unsubscribe_address(each, NAME, 0).encode() for each in (id_, old))
    forged = (b"u+b" + good[3:], b"b+" + good[3:], good.replace(b".com", b".org"), b"u+a" + new.token()[2:])
    for address in forged:
        assert await new.say(b"RCPT TO:<" + address + b">") == listener.NO_SUCH_TOKEN
    assert await new.say(b"RCPT TO:<" + expired + b">") == listener.TOKEN_EXPIRED
    assert await new.say(b"RCPT TO:<" + good.upper() + b">") == dialogue.RECIPIENT_OK
    await new.send(b"DATA\r\n")
    assert [each[:4] for each in await new.send(MESSAGE + b".\r\n")] == [b"250 "]
    assert [addresses for addresses, _ in new.fakes.added] == [(good.decode(),)]


@pytest.mark.parametrize("address", [b"postmaster", b"Postmaster", b"postmaster@MAIL.example.com"])
async def test_the_server_has_a_postmaster(address: bytes) -> None:
    """Without a domain it is this server's (RFC 5321 4.5.1), and needs no registered return path."""
    new = await talk()
    for _ in range(2):  # the second time, the owners are cached
        assert await new.say(b"RCPT TO:<" + address + b">") == dialogue.RECIPIENT_OK
    await new.send(b"DATA\r\n")
    assert [line[:4] for line in await new.send(MESSAGE + b".\r\n")] == [b"250 "]
    ((addresses, _),) = new.fakes.added
    assert set(addresses) == {"postmaster@mail.example.com"}
    await new.say(b"MAIL FROM:<>")
    for other in (b"abuse", b"abuse@mail.example.com", b"root"):
        assert (await new.say(b"RCPT TO:<" + other + b">")).startswith(b"550 ")


async def test_what_is_offered() -> None:
    new = made()
    new.protocol.receive(b"EHLO mx.example.net\r\n")
    offered = b"".join(new.protocol.out)
    new.protocol.out.clear()
    assert b"STARTTLS" in offered
    assert b"AUTH" not in offered
    assert await new.say(b"AUTH PLAIN AGEAYg==") == dialogue.NOT_IMPLEMENTED
    assert b"AUTH" not in await new.say(b"HELP")
    assert await new.say(b"RCPT TO:<a@b.example>") == dialogue.MAIL_FIRST


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"MAIL FROM:<>", b"250 2.1.0"),
        (b"MAIL FROM:<mailer-daemon@example.net>", b"250 2.1.0"),
        (b"MAIL FROM:<mailer-daemon@localhost>", b"250 2.1.0"),
        (b"MAIL FROM:<> SIZE=1000 BODY=8BITMIME SMTPUTF8", b"250 2.1.0"),
        (b"MAIL FROM:<> SIZE=10485761", b"552 5.3.4"),
        (b"MAIL FROM:<> RET=HDRS", b"555 5.5.4"),
        (b"MAIL FROM:<> ENVID=1", b"555 5.5.4"),
        ("MAIL FROM:<ä@example.net>".encode(), b"553 5.6.7"),
    ],
)
async def test_any_sender_is_taken(line: bytes, code: bytes) -> None:
    new = made()
    await new.say(b"EHLO mx.example.net")
    assert (await new.say(line)).startswith(code)


async def test_a_full_disk_refuses_for_now() -> None:
    new = made()
    new.fakes.full = True
    await new.say(b"EHLO mx.example.net")
    assert (await new.say(b"MAIL FROM:<>")).startswith(b"451 4.3.0 ")


async def test_wrong_tokens_are_refused_without_the_database() -> None:
    new = await talk()
    good = new.token()
    assert await new.say(b"RCPT TO:<" + new.token(age=LIFETIME + 10**9) + b">") == listener.TOKEN_EXPIRED
    local, _, _ = good.partition(b"@")
    assert await new.say(b"RCPT TO:<" + local + b"@bounces.example.org>") == listener.NO_SUCH_TOKEN
    forged = good[:20] + (b"b" if good[20:21] == b"a" else b"a") + good[21:]
    assert await new.say(b"RCPT TO:<" + forged + b">") == listener.NO_SUCH_TOKEN
    assert new.fakes.asked == []
    assert await new.say(b"RCPT TO:<" + good + b">") == dialogue.RECIPIENT_OK
    assert await new.say(b"RCPT TO:<" + good.upper() + b">") == dialogue.RECIPIENT_OK
    assert (await new.say(b"DATA")).startswith(b"354 ")
    assert await new.send(MESSAGE + b".\r\n") == [dialogue.queued("fbm_1")]
    assert new.fakes.added == [((good.decode(),), MESSAGE)]


@pytest.mark.parametrize("kind", [b"fbl", b"DMARC", b"tlsrpt", b"postmaster", b"Abuse"])
async def test_reports_are_taken_at_known_names(kind: bytes) -> None:
    new = await talk()
    for _ in range(2):
        assert await new.say(b"RCPT TO:<" + kind + b"@Bounces.example.com>") == dialogue.RECIPIENT_OK
        assert await new.say(b"RCPT TO:<" + kind + b"@bounces.example.org>") == listener.NAME_UNKNOWN
    assert new.fakes.asked == [NAME, "bounces.example.org"]


@pytest.mark.parametrize(
    "address",
    [
        b"ada@example.net", b"webmaster@bounces.example.com", b"fbl", b"b+@bounces.example.com",
        b"fbl@bounces.example.com@example.net", b"fbl%example.net@bounces.example.com",
        b"@example.net:fbl@bounces.example.com", b'"fbl"@bounces.example.com',
    ],
)  # fmt: skip
async def test_nothing_else_is_taken(address: bytes) -> None:
    new = await talk()
    assert await new.say(b"RCPT TO:<" + address + b">") == listener.NO_RELAY
    assert await new.say(b"DATA") == dialogue.RCPT_FIRST


async def test_recipients_have_no_parameters() -> None:
    new = await talk()
    assert await new.say(b"RCPT TO:<" + new.token() + b"> NOTIFY=NEVER") == dialogue.NO_SUCH_PARAMETER


async def test_a_thousand_guesses_end_early() -> None:
    new = await talk()
    guesses = b"".join(b"RCPT TO:<b+%024d@bounces.example.com>\r\n" % 2 for _ in range(500))
    guesses += b"RCPT TO:<fbl@bounces.example.org>\r\n" * 500
    heard = await new.send(guesses.replace(b"0", b"a"))
    assert len(heard) == MAX_ERRORS + 1
    assert heard[-1] == dialogue.TOO_MANY_ERRORS
    assert len(new.fakes.asked) <= 1


async def test_few_recipients_are_taken() -> None:
    new = await talk()
    heard = await new.send(b"".join(b"RCPT TO:<" + new.token() + b">\r\n" for _ in range(12)))
    assert heard == [dialogue.RECIPIENT_OK] * 10 + [dialogue.TOO_MANY_RECIPIENTS] * 2


def test_what_is_kept_of_a_mail() -> None:
    assert checked_mail(lambda: MESSAGE) == MESSAGE
    assert len(checked_mail(lambda: MESSAGE + b"x" * (5 * 2**20))) == len(MESSAGE) + 5 * 2**20
    for wrong in (MESSAGE + b"\n", b"a\rb\r\n", b"A: b\r\n" * (HEADER_LINES + 1)):
        with pytest.raises(Refused) as refused:
            checked_mail(lambda wrong=wrong: wrong)  # type: ignore[misc]
        assert refused.value.code is Code.INVALID_REQUEST


async def test_an_address_is_kept_in_lower_case() -> None:
    new = made()
    found = await new.listener.find_recipient(FindRecipient("192.0.2.1", new.token().decode().upper()))
    assert isinstance(found, Address)
    assert found.key == found.spelling == found.key.lower()


async def test_a_foreign_domain_is_looked_up_once() -> None:
    new = await talk()
    for _ in range(3):
        assert await new.say(b"RCPT TO:<ada@example.net>") == listener.NO_RELAY
        assert await new.say(b"RCPT TO:<bob@EXAMPLE.net>") == listener.NO_RELAY
    assert new.fakes.looked_up == ["ada@example.net"]


SECOND = 1_000_000
OTHER_NAME = "bounces.example.org"
OTHER_NETWORK = "198.51.100.7"
FLOODER = "192.0.2.1"


@dataclass
class Clock:
    now: int

    def __call__(self) -> int:
        return self.now


@dataclass
class Server:
    read: Read
    listener: FeedbackListener
    clock: Clock

    async def send(self, network: str, *addresses: str) -> str:
        backend = self.listener.backend_for(network, lambda _: False)
        protocol = SmtpProtocol("mail.example.com", backend, MemoryBudget(2**24, owner_part=1), secure=False)
        talk = Talk(self.listener, protocol, Fakes(), self.read.env)
        lines = [
            b"EHLO mx.example.net",
            b"MAIL FROM:<>",
            *(b"RCPT TO:<" + address.encode() + b">" for address in addresses),
            b"DATA",
        ]
        for line in lines:
            reply = (await talk.send(line + b"\r\n"))[-1].decode()
            if reply[0] not in "23":
                return f"{line[:4].decode()} {reply[:3]}"
        (reply_bytes,) = await talk.send(bounce("ada@example.net") + b".\r\n")
        return reply_bytes[:3].decode()

    def token(self, name: str = NAME) -> str:
        return ReturnPaths(KEY).address(self.read.env.identifier("rcp"), name)


@pytest.fixture
async def server(read: Read) -> Server:
    other = await read.store.accounts.create("other", "other@example.org", "hash")
    await read.store.access.add_domain(other.id, "example.org", usable=True)
    clock = Clock(read.env.now())
    env = replace(read.env, now=clock)
    intake = cast(Any, SimpleNamespace(check_disk=lambda: None, workers=Workers()))
    return Server(read, FeedbackListener(env, read.store, intake, ReturnPaths(KEY), "mail.example.com"), clock)


async def queued(server: Server) -> int:
    ((count,),) = await server.read.rows("SELECT count(*) FROM feedback_mail")
    return int(count)


async def test_one_token_from_one_network_does_not_fill_the_queue(server: Server) -> None:
    """The flood is refused at RCPT and then at MAIL; bounces of others, and of the same account, still get 250."""
    token = server.token()
    replies = [await server.send(FLOODER, token) for _ in range(300)]
    assert set(replies) == {"250", "RCPT 451", "MAIL 451"}
    assert replies[-1] == "MAIL 451"
    assert await queued(server) == RATES[ShareScope.TOKEN][1]
    for network, name in ((OTHER_NETWORK, NAME), (OTHER_NETWORK, OTHER_NAME)):
        assert await server.send(network, server.token(name)) == "250"


async def test_a_patient_flood_is_stopped_by_the_shares_of_the_queue(server: Server) -> None:
    """Below all rates, for days, with a worker that reads nothing: each share fills up, and others still get 250."""
    server.read.store.feedback = replace(server.read.store.feedback, limits=QueueLimits(mails=640))
    token = server.token()
    replies = []
    for _ in range(640 // SHARE_PARTS[ShareScope.TOKEN] + 1):
        server.clock.now += 100 * SECOND
        replies.append(await server.send(FLOODER, token))
    assert replies == ["250"] * (640 // SHARE_PARTS[ShareScope.TOKEN]) + ["RCPT 451"]
    while replies[-1] == "250" or len(replies) < 20:  # now with tokens enough
        server.clock.now += SECOND
        replies.append(await server.send(FLOODER, server.token()))
    assert await queued(server) == 640 // SHARE_PARTS[ShareScope.NETWORK]
    assert await server.send(OTHER_NETWORK, server.token()) == "RCPT 451", "the account's share is as large"
    assert await server.send(OTHER_NETWORK, server.token(OTHER_NAME)) == "250"


async def test_a_flood_of_reports_leaves_room_for_others(server: Server) -> None:
    flooded = f"dmarc@{NAME}"
    replies = [await server.send(FLOODER, flooded) for _ in range(100)]
    assert replies.count("250") == RATES[ShareScope.ADDRESS][1]
    assert set(replies) == {"250", "RCPT 451"}
    assert await server.send(OTHER_NETWORK, flooded) == "250"
    for number in range(1, 20):
        for _ in range(50):
            await server.send(f"203.0.113.{number}", flooded)
    assert await queued(server) <= 10_000 // SHARE_PARTS[ShareScope.ADDRESS]
    assert await server.send(OTHER_NETWORK, flooded) == "RCPT 451"
    assert await server.send(OTHER_NETWORK, f"dmarc@{OTHER_NAME}") == "250"
    assert await server.send(OTHER_NETWORK, server.token()) == "250"


async def test_a_network_of_ipv6_is_one_client(server: Server) -> None:
    most = int(RATES[ShareScope.NETWORK][1])
    replies = [await server.send(f"2001:4860:4860::{number:x}", server.token()) for number in range(most + 1)]
    assert replies == ["250"] * most + ["MAIL 451"]
    assert await server.send("2001:4860:4861::1", server.token()) == "250"
    server.clock.now += SECOND
    assert await server.send("2001:4860:4860::1", server.token()) == "250"
