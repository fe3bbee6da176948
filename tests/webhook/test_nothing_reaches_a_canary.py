"""Hostile URLs, hostile names and a DNS server that changes its mind: a canary on loopback hears of none of them.

Nothing is dialled for real but loopback: what would go out into the world is noted and refused.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import cycle

import dns.message
import dns.rdatatype
import pytest
import trio
import trio.testing

from appliance.environment import Environment
from appliance.net.address_policy import Network
from appliance.net.local_addresses import LocalAddresses
from appliance.webhook.post import Poster
from tests.fakes.dns import DnsServer, Zone, serving
from tests.fakes.receiver import LOOPBACK, Receiver, answering, client_context, posting
from tests.webhook.hostile_urls import NAMES, OWN_NAMES, SPELLINGS

PUBLIC = "9.9.9.9"
EVENT = ([("Content-Type", "application/json")], b"{}")


@dataclass
class Canary:
    """A listener on loopback, and a poster without any allowance for it."""

    poster: Poster
    port: int
    dialled: list[str] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def canary(server: DnsServer, allowed: tuple[Network, ...] = ()) -> AsyncIterator[Canary]:
    """A canary on the loopback addresses, with the real resolver asking this server."""
    async with serving(server) as resolver, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        with suppress(OSError):  # a machine without IPv6 has no such loopback either
            listeners += await trio.open_tcp_listeners(port, host="::1")

        async def dial(address: str, to_port: int) -> trio.abc.Stream:
            here.dialled.append(address)
            if not ip_address(address).is_loopback:
                raise OSError(101, "Network is unreachable")
            return await Environment().dial(address, to_port)

        async def count(stream: trio.SocketStream) -> None:
            here.connections += 1

        context, own = client_context(), LocalAddresses()
        poster = Poster(resolver, dial, context, ports={port}, own_names=OWN_NAMES, allowed=allowed, own=own)
        here = Canary(poster, port)
        nursery.start_soon(trio.serve_listeners, count, listeners)
        yield here
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_no_spelling_leads_to_it() -> None:
    everything = {"A": ["127.0.0.1"], "AAAA": ["::1"]}
    names = {"hooks.example.com", "localhost", "intranet", "own.example", "mail.example.net", "hooks.own.example"}
    async with canary(DnsServer(dict.fromkeys(names, everything))) as here:
        for spelling in SPELLINGS:
            url = spelling.replace("{port}", str(here.port))
            assert await here.poster.check(url) is not None, url
            posted = await here.poster.post(url, *EVENT)
            assert posted.status is None, url
            assert posted.error, url
        assert (here.dialled, here.connections) == ([], 0)
    assert len(SPELLINGS) > 60


@pytest.mark.parametrize("name", NAMES)
async def test_no_name_leads_to_it(name: str) -> None:
    async with canary(DnsServer(NAMES)) as here:
        url = f"https://{name}:{here.port}/"
        assert "public addresses only" in str(await here.poster.check(url))
        assert "public addresses only" in str((await here.poster.post(url, *EVENT)).error)
        assert (here.dialled, here.connections) == ([], 0)


class Rebinding(DnsServer):
    """A server whose answers may not be kept, and are others every time."""

    def __init__(self, *addresses: str) -> None:
        super().__init__({}, ttl=0, negative_ttl=0)
        self._turns = cycle(addresses)

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        if query.question[0].rdtype == dns.rdatatype.A:
            self.zone["rebind.example"] = {"A": [next(self._turns)]}
        return super()._answer(query)


@pytest.mark.parametrize("addresses", [(PUBLIC, "127.0.0.1"), ("127.0.0.1", PUBLIC), (PUBLIC, "10.0.0.1", "127.0.0.1")])
async def test_a_name_that_changes_its_mind(addresses: tuple[str, ...]) -> None:
    """What is dialled is what was checked: a name looked up once cannot be another address the second time."""
    async with canary(Rebinding(*addresses)) as here:
        for _ in range(12):
            posted = await here.poster.post(f"https://rebind.example:{here.port}/", *EVENT)
            assert posted.status is None
        assert set(here.dialled) == {PUBLIC}
        assert here.connections == 0


async def test_a_name_is_looked_up_once_for_an_attempt() -> None:
    server = Rebinding(PUBLIC)
    async with canary(server) as here:
        await here.poster.post(f"https://rebind.example:{here.port}/", *EVENT)
        assert (server.count("rebind.example", "A"), here.dialled) == (1, [PUBLIC])


async def test_saved_while_good_and_posted_while_bad() -> None:
    server = DnsServer({"hooks.example.org": {"A": [PUBLIC]}}, ttl=0)
    async with canary(server) as here:
        url = f"https://hooks.example.org:{here.port}/"
        assert await here.poster.check(url) is None
        server.zone["hooks.example.org"] = {"A": ["127.0.0.1"]}
        assert "public addresses only" in str((await here.poster.post(url, *EVENT)).error)
        assert (here.dialled, here.connections) == ([], 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    zone: Zone = {"hooks.example.com": {"A": ["127.0.0.1"]}, "inside.example": {"A": ["127.0.0.1"]}}
    async with canary(DnsServer(zone)) as here:
        location = f"https://inside.example:{here.port}/"
        head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nRefresh: 0; url={location}\r\nContent-Length: 0"
        receiver = Receiver(answering(f"{head}\r\n\r\n".encode()))
        async with posting(receiver) as there:
            posted = await there.poster.post(there.url, *EVENT)
        assert (posted.status, posted.error, posted.accepted) == (status, None, False)
        assert (len(receiver.requests), here.connections) == (1, 0)


async def test_the_canary_can_sing() -> None:
    async with canary(DnsServer({"loopback.example": {"A": ["127.0.0.1"]}}), allowed=LOOPBACK) as here:
        posted = await here.poster.post(f"https://loopback.example:{here.port}/", *EVENT)
        assert "TLS handshake" in str(posted.error)
        assert (here.dialled, here.connections) == (["127.0.0.1"], 1)
