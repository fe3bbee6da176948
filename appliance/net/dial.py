"""Dials the addresses of a host, keeps idle connections for reuse, and recognizes local resource shortages.

A shortage of descriptors, ports or memory says nothing about the mail server, webhook receiver or name to be reached.
So the work is retried later, and no attempt is counted.
"""

import errno
import os
import select
from collections.abc import Awaitable, Callable, Hashable, Sequence
from math import inf
from typing import Generic, TypeVar

import trio

from appliance.net.address_policy import Address

SHORTAGE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SHORTAGE_PAUSE = 1.0  # seconds before a retry

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]


class Shortage(Exception):
    """This machine is out of a resource; the text is the system's."""


def shortage_in(error: BaseException, address: str = "") -> str | None:
    """Return the system's text of the shortage that caused an error, if any; `address` is the one dialled."""
    if isinstance(error, OSError):
        no_port = error.errno == errno.EADDRNOTAVAIL and "." in address  # with IPv6 this machine mostly has no address
        if error.errno in SHORTAGE_ERRNOS or no_port:
            return error.strerror or str(error)
    causes: list[BaseException] = [] if error.__cause__ is None else [error.__cause__]
    if isinstance(error, BaseExceptionGroup):
        causes += error.exceptions
    return next((lack for cause in causes if (lack := shortage_in(cause, address)) is not None), None)


def raise_if_short(error: BaseException, address: str = "") -> None:
    if (lack := shortage_in(error, address)) is not None:
        raise Shortage(lack) from error


async def dial_first(
    dial: Dial, addresses: Sequence[Address], port: int, *, patience: float
) -> tuple[Address, trio.abc.Stream]:
    for number, address in enumerate(addresses, 1):
        last = number == len(addresses)
        with trio.move_on_after(inf if last else patience):
            try:
                return address, await dial(str(address), port)
            except OSError as error:
                raise_if_short(error, str(address))
                if last:
                    raise
    raise AssertionError("the last address returns or raises")


Key = TypeVar("Key", bound=Hashable)
Connection = TypeVar("Connection", bound=Hashable)


class IdlePool(Generic[Key, Connection]):
    """Idle connections by key; the caller closes them. The most recently used is taken first, so that others expire."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[Connection, None]] = {}  # in order of last use
        self._all: dict[Connection, tuple[Key, float]] = {}  # in that order: key and start of idleness

    def __len__(self) -> int:
        return len(self._all)

    def count(self, key: Key) -> int:
        return len(self._by_key.get(key, ()))

    def put(self, key: Key, connection: Connection) -> None:
        self._by_key.setdefault(key, {})[connection] = None
        self._all[connection] = key, trio.current_time()

    def take(self, key: Key, fits: Callable[[Connection], bool] | None = None) -> Connection | None:
        for connection in reversed(self._by_key.get(key, {})):
            if fits is None or fits(connection):
                return self._remove(connection)
        return None

    def take_oldest(self, idle_since: float = inf) -> Connection | None:
        """Remove and return the longest idle connection, if it is idle since `idle_since` (Trio's clock) or earlier."""
        for connection, (_, since) in self._all.items():
            return self._remove(connection) if since <= idle_since else None
        return None

    def _remove(self, connection: Connection) -> Connection:
        key, _ = self._all.pop(connection)
        waiting = self._by_key[key]
        del waiting[connection]
        if not waiting:
            del self._by_key[key]
        return connection


# ---- a stream for short writes and reads, as in SMTP and HTTP

ONE_WRITE_BYTES = 64 * 1024  # a longer write makes checkpoints, so that other tasks run


class FastSocketStream(trio.abc.Stream):
    """A stream for one writer and one reader, whose short writes are one system call.

    Trio's `SocketStream` makes a checkpoint after every write, and tries to read before a reply can have arrived.
    Measured over loopback: 107 µs of CPU for two writes and two reads on Trio's stream, 68 µs here.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    def send_now(self, data: bytes | bytearray | memoryview) -> int:
        try:
            return os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything, with a checkpoint only if the socket's buffer is full."""
        sent = self.send_now(data) if 0 < len(data) <= ONE_WRITE_BYTES else 0
        if sent < len(data):
            await self._stream.send_all(memoryview(data)[sent:])

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            try:
                await trio.lowlevel.wait_readable(self._fd())
                return os.read(self._fd(), max_bytes or ONE_WRITE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    def _fd(self) -> int:
        fd = self._stream.socket.fileno()
        if fd < 0:
            raise trio.ClosedResourceError
        return fd

    def is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def faster(stream: trio.abc.Stream) -> trio.abc.Stream:
    return FastSocketStream(stream) if type(stream) is trio.SocketStream else stream
