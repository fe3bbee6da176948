"""In charge of who is let in: connections are counted, in all and by address, and accepted as long as there is room."""

import errno
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import trio

from appliance.config import Network
from appliance.log import get_logger

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
NO_ROOM_PAUSE = 0.1  # seconds

Connection = TypeVar("Connection")

log = get_logger("door")


@dataclass(slots=True)
class Doorkeeper(Generic[Connection]):
    """Counts connections, in all and by address, and knows the open ones."""

    most: int
    most_per_address: int
    trusted: tuple[Network, ...] = ()  # proxies, which bring many clients each
    open: dict[Connection, str] = field(default_factory=dict)  # and where each comes from
    by_address: Counter[str] = field(default_factory=Counter)

    def admits(self, address: str) -> bool:
        """Whether one more connection from this address is within the limits."""
        if len(self.open) >= self.most:
            return False
        return self.by_address[address] < self.most_per_address or self._is_trusted(address)

    def _is_trusted(self, address: str) -> bool:
        return any(ipaddress.ip_address(address.partition("%")[0]) in network for network in self.trusted)

    @contextmanager
    def inside(self, connection: Connection, address: str) -> Iterator[None]:
        """Count a connection for as long as it lasts."""
        self.open[connection] = address
        self.by_address[address] += 1
        try:
            yield
        finally:
            self.leave(connection)

    def leave(self, connection: Connection) -> None:
        """Count a connection no longer whose client has said goodbye: it may be back before this one is quite gone."""
        address = self.open.pop(connection, None)
        if address is not None:
            self.by_address[address] -= 1
            if not self.by_address[address]:
                del self.by_address[address]


async def accept_forever(
    listener: trio.abc.Listener[Any], connected: Callable[[Any], Any], connections: trio.Nursery
) -> None:
    """Accept for ever, and wait out a descriptor table that is full.

    As trio.serve_listeners does, which would write a traceback to the log ten times a second until there is room.
    """
    full = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                if not full:
                    log.warning("no more connections can be opened", reason=error.strerror)
                full = True
                await trio.sleep(NO_ROOM_PAUSE)
            else:
                full = False
                connections.start_soon(connected, stream)
