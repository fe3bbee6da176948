"""In charge of SMTP connections: dialled when needed, used again while the server lets us, closed when idle."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.deliver.route import Relay
from appliance.deliver.smtp.connection import Connection

IDLE_LIMIT = 20.0  # seconds a connection is kept open for the next message; servers give up on idle ones at 30 to 300
IDLE_CONNECTIONS = 100  # kept open in all


class Place(NamedTuple):
    """What makes two connections interchangeable: the same server, address, demand for TLS, and login."""

    host: str
    address: str
    port: int
    tls: str  # the demand in words
    relay: Relay | None = None  # whom we are logged in to, and as whom


@dataclass(slots=True)
class _Idle:
    connection: Connection
    since: float


@dataclass(slots=True)
class Connections:
    """The idle connections, by place; the one used last is taken first, so that the others run out."""

    clock: Callable[[], float] = trio.current_time
    _idle: dict[Place, deque[_Idle]] = field(default_factory=dict)
    _count: int = 0
    _leaving: list[Connection] = field(default_factory=list)

    def take(self, place: Place) -> Connection | None:
        """An idle connection to that place, no longer kept here."""
        waiting = self._idle.get(place)
        if not waiting:
            return None
        self._count -= 1
        idle = waiting.pop()
        if not waiting:
            del self._idle[place]
        return idle.connection

    def give_back(self, place: Place, connection: Connection, most_transactions: int) -> None:
        """Keep a connection for the next message; one that has carried enough is to leave.

        Not at once: what the server has just taken is to be recorded before anybody waits for its goodbye.
        """
        if not connection.reusable:
            return
        if connection.transactions >= most_transactions or self._count >= IDLE_CONNECTIONS:
            self._leaving.append(connection)
            return
        self._idle.setdefault(place, deque()).append(_Idle(connection, self.clock()))
        self._count += 1

    @property
    def some_leave(self) -> bool:
        """Whether there are connections to take leave of."""
        return bool(self._leaving)

    async def close_idle(self, older_than: float = IDLE_LIMIT) -> None:
        """Take leave of the servers whose connection has not been used for a while."""
        limit = self.clock() - older_than
        old = len(self._leaving)
        for place in list(self._idle):
            waiting = self._idle[place]
            while waiting and waiting[0].since <= limit:
                self._leaving.append(waiting.popleft().connection)
            if not waiting:
                del self._idle[place]
        self._count -= len(self._leaving) - old
        await self.take_leave()

    async def drop_idle(self) -> None:
        """Close all that are kept, at once and without a word: this machine needs the descriptors."""
        dropped = [idle.connection for waiting in self._idle.values() for idle in waiting] + self._leaving
        self._idle.clear()
        self._leaving.clear()
        self._count = 0
        for connection in dropped:
            await connection.aclose()

    async def take_leave(self) -> None:
        """Say goodbye on the connections that are to leave."""
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        async with trio.open_nursery() as nursery:
            for connection in leaving:
                nursery.start_soon(connection.quit)
