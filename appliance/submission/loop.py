"""trio-asyncio's event loop, tuned for SMTP: batched callbacks, directly attached sockets, logged errors.

This file is the fence around trio-asyncio (written against 0.16.0). It uses no asyncio tasks: since Python 3.14 they
fail on a loop that asyncio does not run itself. `run_coroutine` runs an asyncio coroutine in a Trio task instead.

Four internals have no public equivalent. `tests/submission/test_loop.py` fails when one of them moves:

- `_main_loop_one` runs one callback per turn of Trio's scheduler. A connection needs four, a handshake many more: with
  twenty busy clients a new one waited 40 ms for its greeting. Ours runs all queued callbacks, as asyncio does.
- `_add_reader` starts a task per socket, which registers the socket with epoll before every wait. Ours registers it
  once (`Poller`), and one task reads from all sockets: that saves a sixth of the time per message. A session replies
  within the read and schedules only its end, so it does not depend on the order of callbacks.
- `_add_writer` gets a `context` from the transports of Python 3.15, which trio-asyncio's rejects. Ours drops it:
  sessions use no context variables.
- `_make_socket_transport` is what `connect_accepted_socket` calls without TLS. Calling it directly saves a task and two
  futures, 0.8 ms per connection.

trio-asyncio 0.16.0 derives classes from two names of asyncio that Python 3.14 removed, and the appliance uses neither
class. `_removed_names` adds the names during the import. Delete it once trio-asyncio supports Python 3.14.
"""

import asyncio
import asyncio.events
import select
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Final, TypeVar, cast

import trio

from appliance.telemetry.log import get_logger

CALLBACKS_PER_TURN: Final = 64  # before other Trio tasks run
EVENTS_PER_POLL: Final = 256  # epoll reports the others next time

log = get_logger("submission")

T = TypeVar("T")


@contextmanager
def _removed_names() -> Iterator[None]:
    replacements = (
        (asyncio.events, "BaseDefaultEventLoopPolicy", getattr(asyncio.events, "_BaseDefaultEventLoopPolicy", object)),
        (asyncio, "AbstractChildWatcher", object),
    )
    missing = [(module, name, base) for module, name, base in replacements if not hasattr(module, name)]
    for module, name, base in missing:
        setattr(module, name, base)
    try:
        yield
    finally:
        for module, name, _ in missing:
            delattr(module, name)


with _removed_names():
    from trio_asyncio import open_loop as open_loop


def prepare(loop: Any) -> None:
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
    client.setblocking(False)
    loop._make_socket_transport(client, protocol)


async def run_coroutine(coroutine: Coroutine[Any, None, T]) -> T:
    """Run an asyncio coroutine that waits only for futures. Cancelling the Trio task cancels the coroutine."""
    try:
        while True:
            future: asyncio.Future[object] = coroutine.send(None)
            future._asyncio_future_blocking = False  # as asyncio's tasks do, so that it can be awaited again
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


class Poller:
    """Calls a function for each socket that can be read; level-triggered, so unread data is reported again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def add(self, fd: int, callback: Callable[[], object]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Stop watching a socket; call it before the socket is closed."""
        del self._callbacks[fd]
        with suppress(OSError, ValueError):  # the socket, or at the end the epoll, is already closed
            self._epoll.unregister(fd)

    async def run(self) -> None:
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in self._epoll.poll(0, EVENTS_PER_POLL):
                    if (callback := self._callbacks.get(fd)) is not None:
                        callback()


def _read_by_callbacks(loop: Any) -> None:
    poller = Poller()  # now: later there may be no free descriptor
    trio.lowlevel.spawn_system_task(poller.run, name="epoll poller")
    handles: dict[int, asyncio.Handle] = {}

    def add_reader(
        fd: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        remove_reader(fd)
        handle = asyncio.Handle(callback, args, loop, context)
        try:
            poller.add(fd, handle._run)
            handles[fd] = handle
        except OSError as error:  # out of memory or epoll watches
            log.warning("connection closed: out of local resources", reason=str(error))
            loop.call_soon(loop._transports[fd].abort)
        return handle

    def remove_reader(fd: int) -> bool:
        if fd not in handles:
            return False
        poller.remove(fd)
        handles.pop(fd).cancel()
        return True

    loop._add_reader, loop._remove_reader = add_reader, remove_reader


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error in a callback; without a handler it would end the process."""
    error = context.get("exception")
    # A broken connection or TLS handshake is the client's fault. A loop that has ended queues no callbacks.
    ended = loop.is_closed() or isinstance(error, trio.ClosedResourceError | trio.BrokenResourceError)
    if not ended and not isinstance(error, OSError | ssl.SSLError):
        log.exception("connection failed", error, message=str(context.get("message", "")))
