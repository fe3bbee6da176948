"""Customers who send through a balancer before the nodes, and repeat each message until it is acknowledged."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import trio

from tests.e2e.delivery.world import SENDER
from tests.running_appliance import NO_TLS, Provisioned, Running

DOMAINS = 6
PATIENCE = 5.0  # seconds until a customer tries again without an answer


@dataclass
class Load:
    """Customers that send one message after the other, each with a key, and repeat it until it is acknowledged."""

    url: str
    account: Provisioned
    acknowledged: dict[str, str] = field(default_factory=dict)  # ids by key
    statuses: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds from the first try to the acknowledgement
    paused: bool = True
    busy: int = 0
    changed: list[str] = field(default_factory=list)  # keys that were answered with two ids

    async def run(self, number: int, pause: float) -> None:
        for count in range(1_000_000):
            while self.paused:  # noqa: ASYNC110 - others change it as they like
                await trio.sleep(0.05)
            self.busy += 1
            try:
                await self._send(f"c{number}-{count}")
            finally:
                self.busy -= 1
            await trio.sleep(pause)

    async def repeat(self, keys: list[str]) -> None:
        """Send some again: each must have the id it had."""
        for key in keys:
            await self._send(key)

    async def _send(self, key: str) -> None:
        domain = f"d{int(key.rpartition('-')[2]) % DOMAINS}.test"
        body = {"from": SENDER, "to": [f"{key}@{domain}"], "subject": key, "text": "Hello.\n"}
        headers = {**self.account.bearer, "Idempotency-Key": key}
        began = time.monotonic()
        while (message_id := await self._tried(body, headers)) is None:  # noqa: ASYNC110 - it tries
            await trio.sleep(0.3)
        if self.acknowledged.setdefault(key, message_id) != message_id:
            self.changed.append(key)
        self.slowest = max(self.slowest, time.monotonic() - began)

    async def _tried(self, body: Mapping[str, object], headers: dict[str, str]) -> str | None:
        try:
            async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=PATIENCE, verify=NO_TLS) as client:
                answer = await client.post("/emails", json=body, headers=headers)
        except httpx.HTTPError as error:
            self.statuses[type(error).__name__] += 1
            return None
        self.statuses[str(answer.status_code)] += 1
        return str(answer.json()["id"]) if answer.status_code == 202 else None


@dataclass
class Balancer:
    """A TCP proxy before the nodes: one after the other, passing over those that do not listen."""

    nodes: dict[str, Running]
    _turn: int = 0

    async def serve(self, client: trio.SocketStream) -> None:
        async with client:
            for _ in self.nodes:
                self._turn += 1
                node = list(self.nodes.values())[self._turn % len(self.nodes)]
                if not node.url:  # it is being replaced
                    continue
                try:
                    server = await trio.open_tcp_stream("127.0.0.1", httpx.URL(node.url).port or 0)
                except OSError:
                    continue
                async with server, trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, client, server)
                    await _pump(server, client)
                    nursery.cancel_scope.cancel()  # the node has ended it
                return


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for piece in source:
            await sink.send_all(piece)
        await sink.send_eof()
