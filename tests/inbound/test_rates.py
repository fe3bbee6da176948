"""A flood of mail does not keep other mail out: the real listener and store, and no worker, so that nothing is read."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.concurrency.fair_share import MemoryBudget, Workers
from appliance.feedback.return_path import ReturnPaths
from appliance.inbound.listener import FeedbackListener
from appliance.inbound.rates import RATES, FeedbackRates
from appliance.model.feedback import ShareScope
from appliance.store.feedback_shares import SHARE_PARTS, QueueLimits
from appliance.submission.protocol import SmtpProtocol
from tests.inbound.bounces import bounce
from tests.inbound.conftest import KEY, NAME, Read
from tests.inbound.test_listener import Fakes, Talk

SECOND = 1_000_000
OTHER_NAME = "bounces.example.org"
OTHER_NETWORK = "198.51.100.7"
FLOODER = "192.0.2.1"


@dataclass
class Clock:
    """A time that a test sets."""

    now: int

    def __call__(self) -> int:
        """The time."""
        return self.now


@dataclass
class Server:
    """The listener on a real store, with a clock of its own."""

    read: Read
    listener: FeedbackListener
    clock: Clock

    async def send(self, network: str, *addresses: str) -> str:
        """Send one mail; the code of the reply that decided."""
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
        """The return path of a new recipient."""
        return ReturnPaths(KEY).address(self.read.env.identifier("rcp"), name)


@pytest.fixture
async def server(read: Read) -> Server:
    """With a second account, which sends from example.org."""
    other = await read.store.accounts.create("other", "other@example.org", "hash")
    await read.store.access.add_domain(other.id, "example.org", usable=True)
    clock = Clock(read.env.now())
    env = replace(read.env, now=clock)
    intake = cast(Any, SimpleNamespace(check_disk=lambda: None, workers=Workers()))
    return Server(
        read, FeedbackListener(env, read.store, intake, ReturnPaths(KEY), FeedbackRates(env), "mail.example.com"), clock
    )


async def queued(server: Server) -> int:
    """How many mails wait."""
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
    """Mail without a token has a rate for each network, and a share for each address."""
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
    """A client has all addresses of its /64."""
    most = int(RATES[ShareScope.NETWORK][1])
    replies = [await server.send(f"2001:4860:4860::{number:x}", server.token()) for number in range(most + 1)]
    assert replies == ["250"] * most + ["MAIL 451"]
    assert await server.send("2001:4860:4861::1", server.token()) == "250"
    server.clock.now += SECOND
    assert await server.send("2001:4860:4860::1", server.token()) == "250"
