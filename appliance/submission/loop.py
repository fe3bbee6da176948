"""trio-asyncio's event loop as submission runs it: callbacks together, sockets attached directly, errors logged.

This file is the fence around trio-asyncio (written against 0.16.0). In use are `open_loop`, `aio_as_trio`, and the
loop's timers, transports and TLS, which are asyncio's. Three internals are replaced or called directly, as there is no
public way; `tests/submission/test_loop.py` fails when one of them moves:

- `_main_loop_one` runs one callback in a turn of Trio's scheduler. A connection takes four, a handshake many more: with
  twenty clients at work each new one waited 40 ms for its greeting. Ours runs what is queued, as asyncio does.
- `synchronize` waits after each read until every queued callback has run, two turns of the scheduler for every command,
  an eighth of the time that a message costs. Nothing here depends on that order: a session answers within the read,
  and what it schedules (only its end) finds the reader removed already. Ours does not wait.
- `_make_socket_transport` is what `connect_accepted_socket` calls without TLS, less a task and two futures: 0.8 ms of
  each connection.
"""

import asyncio
import socket
import ssl
from typing import Any, Final

import trio

from appliance.telemetry.log import get_logger

CALLBACKS_PER_TURN: Final = 64  # before other Trio tasks have a turn

log = get_logger("submission")


def prepare(loop: Any) -> None:
    """Replace parts of a loop that was just opened; trio-asyncio has no types."""
    loop.set_exception_handler(_log_error)
    loop.synchronize = _no_wait
    run_one = loop._main_loop_one

    async def run_many(no_wait: bool = False) -> None:
        await run_one(no_wait=no_wait)
        try:
            for _ in range(CALLBACKS_PER_TURN):
                await run_one(no_wait=True)
        except trio.WouldBlock:
            pass

    loop._main_loop_one = run_many


def attach(loop: Any, protocol: asyncio.Protocol, client: socket.socket) -> None:
    """Have the loop read and write an accepted socket for a protocol."""
    client.setblocking(False)
    loop._make_socket_transport(client, protocol)


async def _no_wait() -> None:
    pass


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error in a callback; without a handler, trio-asyncio lets it end the process."""
    error = context.get("exception")
    # A broken connection or TLS handshake is the client's fault.
    if not isinstance(error, OSError | ssl.SSLError):
        log.exception("connection failed", error, message=str(context.get("message", "")))
