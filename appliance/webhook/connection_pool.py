"""In charge of the connections that are kept for the next event: how many, for how long, and for whom."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.net.address_policy import Address
from appliance.webhook.limited_stream import Transport

IDLE_LIMIT = 30.0  # seconds a connection is kept without use
AGE_LIMIT = 300.0  # seconds it is used at all, so that the receiver's certificate is looked at again soon
KEPT = 200  # connections in all
KEPT_FOR_HOST = 16


class Place(NamedTuple):
    """Whom a connection leads to: a name, verified by the certificate, at an address that was checked."""

    host: str
    port: int
    address: Address


@dataclass(eq=False, slots=True)
class Connection:
    """An open connection to a receiver."""

    place: Place
    stream: trio.abc.Stream  # encrypted
    transport: Transport  # beneath it
    opened: float
    used: float = 0.0

    def begin(self) -> None:
        """Another answer is awaited."""
        self.transport.begin()

    async def aclose(self) -> None:
        """Close at once: receivers do not wait for a goodbye, and neither do we."""
        await trio.aclose_forcefully(self.stream)


@dataclass(slots=True)
class KeptConnections:
    """The idle connections. Of one place the one used last is taken first, so that the others run out."""

    _places: dict[Place, deque[Connection]] = field(default_factory=dict)  # each in the order of their last use
    _by_use: dict[Connection, None] = field(default_factory=dict)  # all of them, in that order
    _of_host: dict[tuple[str, int], int] = field(default_factory=dict)
    _closed: bool = False

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._by_use)

    async def take(self, place: Place) -> Connection | None:
        """An idle connection to there that seems alive, no longer kept; dead ones are closed on the way."""
        while waiting := self._places.get(place):
            connection = waiting[-1]
            self._remove(connection)
            if connection.transport.silent:
                return connection
            await connection.aclose()
        return None

    async def give_back(self, connection: Connection) -> None:
        """Keep it for the next event; when there are too many, the one unused for longest goes."""
        now = connection.used = trio.current_time()
        key = connection.place[:2]
        count = self._of_host.get(key, 0)
        if self._closed or count >= KEPT_FOR_HOST or now - connection.opened >= AGE_LIMIT:
            await connection.aclose()
            return
        self._places.setdefault(connection.place, deque()).append(connection)
        self._by_use[connection] = None
        self._of_host[key] = count + 1
        if len(self._by_use) > KEPT:
            await self._drop(next(iter(self._by_use)))

    async def drop_all_to(self, place: Place) -> None:
        """Close those to a place that has just let one of them down: they would waste an attempt each."""
        while waiting := self._places.get(place):
            await self._drop(waiting[0])

    async def close_idle(self) -> None:
        """Close those that nobody has used for a while."""
        limit = trio.current_time() - IDLE_LIMIT
        while self._by_use and (oldest := next(iter(self._by_use))).used <= limit:
            await self._drop(oldest)

    async def drop_all(self) -> None:
        """Close all that are kept now."""
        while self._by_use:
            await self._drop(next(iter(self._by_use)))

    async def aclose(self) -> None:
        """Close all, and keep none any more."""
        self._closed = True
        await self.drop_all()

    async def _drop(self, connection: Connection) -> None:
        self._remove(connection)
        await connection.aclose()

    def _remove(self, connection: Connection) -> None:
        """Forget it. It is the first or the last of its place: used before or after all others there."""
        place = connection.place
        waiting = self._places[place]
        if waiting[-1] is connection:
            waiting.pop()
        else:
            waiting.remove(connection)
        if not waiting:
            del self._places[place]
        del self._by_use[connection]
        self._of_host[place[:2]] -= 1
        if not self._of_host[place[:2]]:
            del self._of_host[place[:2]]
