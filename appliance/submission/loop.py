"""trio-asyncio's event loop as submission runs it: callbacks together, sockets attached directly, errors logged.

This file is the fence around trio-asyncio (written against 0.16.0). In use are `open_loop`, and the loop's timers,
transports and TLS, which are asyncio's. Tasks of asyncio are not used: since Python 3.14 they fail on a loop that
asyncio does not run itself. `run_coroutine` runs a coroutine of asyncio in a task of Trio instead.

Four internals are replaced or called directly, as there is no public way; `tests/submission/test_loop.py` fails when
one of them moves:

- `_main_loop_one` runs one callback in a turn of Trio's scheduler. A connection takes four, a handshake many more: with
  twenty clients at work each new one waited 40 ms for its greeting. Ours runs what is queued, as asyncio does.
- `_add_reader` has a task for each socket, which registers it with epoll before every wait, and after each read waits
  until every queued callback has run. Ours registers a socket once, and one task reads from all: a sixth of the time
  that a message costs. Nothing here depends on that order: a session answers within the read, and what it schedules
  (only its end) finds the reader removed already. Nor does anything ask asyncio for the running loop, which there is
  none of in a read.
- `_add_writer` gets a `context` from the transports of Python 3.15, which trio-asyncio's rejects. Ours drops it:
  sessions use no context variables.
- `_make_socket_transport` is what `connect_accepted_socket` calls without TLS, less a task and two futures: 0.8 ms of
  each connection.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar, cast

import trio

from appliance.net.socket_stream import ReadCallback, current_poller
from appliance.telemetry.log import get_logger

CALLBACKS_PER_TURN: Final = 64  # before other Trio tasks have a turn

log = get_logger("submission")

T = TypeVar("T")


def prepare(loop: Any) -> None:
    """Replace parts of a loop that was just opened; trio-asyncio has no types."""
    loop.set_exception_handler(_log_error)
    _read_by_callbacks(loop)
    run_one = loop._main_loop_one

    async def run_many(no_wait: bool = False) -> None:
        await run_one(no_wait=no_wait)
        try:
            for _ in range(CALLBACKS_PER_TURN):
                await run_one(no_wait=True)
        except trio.WouldBlock:
            pass

    loop._main_loop_one = run_many
    add_writer = loop._add_writer

    def add_writer_in_context(fd: int, callback: Callable[..., object], *args: Any, context: object = None) -> Any:
        return add_writer(fd, callback, *args)

    loop._add_writer = add_writer_in_context


def attach(loop: Any, protocol: asyncio.Protocol, client: socket.socket) -> None:
    """Have the loop read and write an accepted socket for a protocol."""
    client.setblocking(False)
    loop._make_socket_transport(client, protocol)


async def run_coroutine(coroutine: Coroutine[Any, None, T]) -> T:
    """Run a coroutine of asyncio that waits for futures only. Cancelling the Trio task cancels the coroutine."""
    try:
        while True:
            future: asyncio.Future[object] = coroutine.send(None)
            future._asyncio_future_blocking = False  # as asyncio's own tasks do: it can be awaited again
            done = trio.Event()
            future.add_done_callback(lambda _, done=done: done.set())  # type: ignore[misc]
            try:
                await done.wait()
            finally:
                future.cancel()  # without effect if it is done
    except StopIteration as result:
        return cast(T, result.value)
    finally:
        coroutine.close()


def _read_by_callbacks(loop: Any) -> None:
    poller = current_poller()  # now: later there may be no descriptor for it
    readers: dict[int, tuple[asyncio.Handle, ReadCallback]] = {}

    def add_reader(
        fd: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        remove_reader(fd)
        handle = asyncio.Handle(callback, args, loop, context)
        try:
            readers[fd] = handle, ReadCallback(poller, fd, handle._run)
        except OSError as error:  # no memory, or too many are watched: the client would never be heard
            log.warning("a connection was closed: this machine is short", of=str(error))
            loop.call_soon(loop._transports[fd].abort)
        return handle

    def remove_reader(fd: int) -> bool:
        if fd not in readers:
            return False
        handle, watch = readers.pop(fd)
        watch.close()
        handle.cancel()
        return True

    loop._add_reader, loop._remove_reader = add_reader, remove_reader


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error in a callback; without a handler, trio-asyncio lets it end the process."""
    error = context.get("exception")
    # A broken connection or TLS handshake is the client's fault.
    if not isinstance(error, OSError | ssl.SSLError):
        log.exception("connection failed", error, message=str(context.get("message", "")))
