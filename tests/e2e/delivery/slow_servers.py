"""Mail servers that are slow or silent, for the real program to wait for: one address for any number of domains."""

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import trio

from tests.e2e.delivery.world import World

TOGETHER = 50  # recipients of one message


class Slowness(StrEnum):
    SILENT = "silent"  # it accepts a connection, and says nothing
    DRIPPING = "dripping"  # it greets with one byte a second
    BLACK_HOLE = "black hole"  # it drops SYNs


@dataclass
class Tarpit:
    """Serves any number of slow sessions. `speak` is what happens in one of them."""

    speak: Callable[[trio.SocketStream], Awaitable[None]]
    open: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.open += 1
        try:
            async with stream:
                await self.speak(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1


async def _be_silent(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


async def _drip(stream: trio.SocketStream) -> None:
    for byte in b"220-" + b"welcome " * 60:
        await stream.send_all(bytes([byte]))
        await trio.sleep(1)


@asynccontextmanager
async def slow_domains(made: World, slowness: Slowness, count: int) -> AsyncIterator[tuple[list[str], Tarpit]]:
    """Domains, each a pool of its own, that all lead to one slow address; and what counts its sessions."""
    domains, tarpit = [f"slow{number}.test" for number in range(count)], Tarpit(_be_silent)
    with socket.socket() as listener, socket.socket() as queued:
        if slowness is Slowness.BLACK_HOLE:
            address = await made.host("mx.tarpit.test", None)
            listener.bind((address, made.mx_port))
            listener.listen(0)
            queued.connect((address, made.mx_port))  # fills the queue of connections, from which none is accepted
        else:
            tarpit.speak = _drip if slowness is Slowness.DRIPPING else _be_silent
            address = await made.host("mx.tarpit.test", tarpit.serve)
        for domain in domains:
            made.publish(domain, MX=[f"10 mx.{domain}."])
            made.publish(f"mx.{domain}", A=[address])
        yield domains, tarpit


async def send_to_all(made: World, domains: Sequence[str]) -> None:
    """Send to one recipient at each domain, fifty to a message, and wait until all domains are routed."""
    ((routed,),) = made.rows("SELECT count(*) FROM destinations WHERE domain LIKE 'slow%'")
    for start in range(0, len(domains), TOGETHER):
        await made.send(*(f"ada@{domain}" for domain in domains[start : start + TOGETHER]))
    query = "SELECT count(*) FROM destinations WHERE domain LIKE 'slow%'"
    await made.until(lambda: made.rows(query) == [(max(routed, len(domains)),)], within=180)


async def latencies(made: World, domains: Sequence[str]) -> list[float]:
    """Seconds from the request to the delivery of a message to each domain, one after the other; sorted."""
    seconds = []
    for domain in domains:
        began = time.monotonic()
        sent = await made.send(f"ada@{domain}")
        await made.final(sent)
        assert made.recipient(sent).status == "delivered"
        seconds.append(time.monotonic() - began)
    return sorted(seconds)
