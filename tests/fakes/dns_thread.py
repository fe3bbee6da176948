"""The fake DNS server for tests without an event loop: it runs in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import trio

from appliance.config.values import Endpoint
from tests.fakes.dns import DnsServer


@contextmanager
def served(server: DnsServer) -> Iterator[Endpoint]:
    started: SimpleQueue[tuple[Endpoint, trio.lowlevel.TrioToken]] = SimpleQueue()
    ending = trio.Event()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            endpoint = await nursery.start(server.run)
            started.put((endpoint, trio.lowlevel.current_trio_token()))
            await ending.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    endpoint, token = started.get(timeout=10)
    try:
        yield endpoint
    finally:
        token.run_sync_soon(ending.set)
        thread.join(10)
