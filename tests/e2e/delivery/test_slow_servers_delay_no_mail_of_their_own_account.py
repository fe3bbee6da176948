"""Servers that are slow or silent delay none of the other mail of the account that sends to them.

Every domain is a pool of its own. All slow ones share one address, which counts their sessions.
"""

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx

GOOD = 20  # domains with a server that answers; each gets two messages
LATE = 10.0  # seconds: ten times the target, for a busy machine; it was 75 while slow sessions kept other mail waiting
TOGETHER = 50  # recipients of one message


@dataclass
class SlowServer:
    """Serves any number of slow sessions. `speak` is what happens in one of them."""

    speak: Callable[[trio.SocketStream], Awaitable[None]]
    open: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Count a session while it lasts."""
        self.open += 1
        try:
            async with stream:
                await self.speak(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1


async def be_silent(stream: trio.SocketStream) -> None:
    """Say nothing until the client ends the session."""
    while await stream.receive_some():
        pass


async def drip(stream: trio.SocketStream) -> None:
    """Greet with one byte a second."""
    for byte in b"220-" + b"welcome " * 60:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)


@asynccontextmanager
async def black_hole(made: World, name: str) -> AsyncIterator[None]:
    """A host that drops SYNs: its queue of connections is full, and nobody accepts them."""
    address = await made.host(name, None)
    with socket.socket() as listener, socket.socket() as queued:
        listener.bind((address, made.mx_port))
        listener.listen(0)
        queued.connect((address, made.mx_port))
        yield


async def send_to_all(made: World, domains: list[str]) -> list[str]:
    """One recipient at each domain, fifty to a message; the ids of the messages."""
    groups = [domains[start : start + TOGETHER] for start in range(0, len(domains), TOGETHER)]
    return [await made.send(*(f"ada@{domain}" for domain in group)) for group in groups]


async def latencies(made: World, domains: list[str]) -> list[float]:
    """Seconds from the request to the delivery of a message to each domain, one after the other; sorted."""
    seconds = []
    for domain in domains:
        began = time.monotonic()
        sent = await made.send(f"ada@{domain}")
        await made.final(sent)
        assert made.recipient(sent).status == "delivered"
        seconds.append(time.monotonic() - began)
    return sorted(seconds)


@pytest.mark.parametrize(("servers", "copies"), [(200, 2), (2_000, 1)])
@pytest.mark.parametrize("kind", ["silent", "dripping", "black hole"])
async def test_mail_to_healthy_servers_does_not_wait(tmp_path: Path, kind: str, servers: int, copies: int) -> None:
    """A message to a healthy server, known or new, goes at once, and no message to a slow one loses an attempt."""
    async with world(tmp_path) as made:
        slow = [f"slow{number}.test" for number in range(servers)]
        tarpit = SlowServer(be_silent if kind == "silent" else drip)
        async with black_hole(made, "mx.tarpit.test"):
            if kind != "black hole":
                await made.host("mx.tarpit.test", tarpit.serve)
            (address,) = made.dns.zone["mx.tarpit.test"]["A"]
            for name in slow:
                made.publish(name, MX=[f"10 mx.{name}."])
                made.publish(f"mx.{name}", A=[address])
            good = [f"good{number}.test" for number in range(GOOD)]
            for name in good:
                await made.domain(name, FakeMx())
            for _ in range(copies):
                await send_to_all(made, slow)
            await trio.sleep(3)
            new = await latencies(made, good)
            known = await latencies(made, good)
            print(f"{kind}, {servers}: to new servers p50 {new[GOOD // 2]:.3f}, worst {new[-1]:.3f} s;", end=" ")
            print(f"to known ones p50 {known[GOOD // 2]:.3f}, worst {known[-1]:.3f} s; {tarpit.open} slow sessions")
            assert max(new[-1], known[-1]) < LATE
            assert made.rows("SELECT count(*) FROM attempts WHERE mx_host LIKE 'mx.slow%'") == [(0,)]
