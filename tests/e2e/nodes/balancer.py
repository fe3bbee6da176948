"""A plain TCP load balancer before nodes, and clients behind it that send, and send again what was not answered."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import httpx
import trio

from tests.e2e.delivery.world import SENDER
from tests.running_appliance import NO_TLS

CHUNK = 65_536


@dataclass
class Balancer:
    """Each connection goes to the next of the nodes; one that refuses it is passed over."""

    ports: Callable[[], list[int]]
    _turns: "count[int]" = field(default_factory=count)

    async def serve(self, client: trio.SocketStream) -> None:
        """One connection, to its end."""
        ports = self.ports()
        for _ in ports:
            try:
                server = await trio.open_tcp_stream("127.0.0.1", ports[next(self._turns) % len(ports)])
            except OSError:
                continue
            async with server, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, client, server, nursery.cancel_scope)
                nursery.start_soon(_pump, server, client, nursery.cancel_scope)
            return


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    """Pass on what comes until one end closes, and then close both."""
    with suppress(trio.BrokenResourceError):
        while piece := await source.receive_some(CHUNK):
            await sink.send_all(piece)
    both.cancel()


@dataclass
class Load:
    """Messages that clients send, each with one recipient of its own."""

    port: int
    headers: Mapping[str, str]
    domains: int
    pause: float  # seconds between two messages of a client
    stopping: bool = False
    acknowledged: dict[str, str] = field(default_factory=dict)  # ids by keys
    repeated: Counter[str] = field(default_factory=Counter)  # why a request was

    async def send(self, client_name: str) -> None:
        """Send one message after the other until told to stop."""
        address = f"http://127.0.0.1:{self.port}"
        with httpx.Client(base_url=address, trust_env=False, timeout=20, verify=NO_TLS) as client:
            for number in count():
                if self.stopping:
                    return
                await self._send(client, f"{client_name}-{number}", f"d{number % self.domains}.test")
                await trio.sleep(self.pause)

    async def _send(self, client: httpx.Client, key: str, domain: str) -> None:
        body = {"from": SENDER, "to": [f"{key}@{domain}"], "subject": key, "text": "Hello,\nAda.\n"}
        headers = {**self.headers, "Idempotency-Key": key}
        # In a thread: trio complains of what an asynchronous client leaves behind when its connection is lost.
        post = partial(client.post, "/emails", json=body, headers=headers)
        while True:
            try:
                answer = await trio.to_thread.run_sync(post)
            except httpx.TransportError as error:
                self.repeated[type(error).__name__] += 1
            else:
                if answer.status_code == 202:
                    self.acknowledged[key] = answer.json()["id"]
                    return
                assert answer.status_code == 503, answer.text
                assert "Retry-After" in answer.headers
                self.repeated["503"] += 1
            await trio.sleep(0.1)
