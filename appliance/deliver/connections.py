"""Idle SMTP connections, kept for the next message to the same server and closed with QUIT when none comes."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.deliver.route import Relay
from appliance.deliver.smtp.connection import SmtpConnection

SMTP_IDLE_LIMIT = 20.0  # seconds a connection waits for the next message; servers give up on idle ones at 30 to 300
IDLE_CONNECTIONS = 100  # kept open in all


class ConnectionKey(NamedTuple):
    """What makes two connections interchangeable: the same server, address, demand for TLS, and login."""

    host: str
    address: str
    port: int
    tls: Hashable  # the demand, without the domain whose it is: a provider's domains share connections
    relay: Relay | None = None  # whom we are logged in to, and as whom


@dataclass(slots=True)
class Connections:
    """The idle connections, by key; the one used last is taken first, so that the others time out."""

    clock: Callable[[], float] = trio.current_time
    most_idle: int = IDLE_CONNECTIONS
    to_quit: list[SmtpConnection] = field(default_factory=list)  # to be closed, with `quit_ended`
    _idle: dict[ConnectionKey, deque[tuple[SmtpConnection, float]]] = field(default_factory=dict)  # since when
    _count: int = 0

    def take(self, key: ConnectionKey) -> SmtpConnection | None:
        """An idle connection with that key, no longer kept here."""
        waiting = self._idle.get(key)
        if not waiting:
            return None
        self._count -= 1
        connection, _ = waiting.pop()
        if not waiting:
            del self._idle[key]
        return connection

    def give_back(self, key: ConnectionKey, connection: SmtpConnection, most_transactions: int) -> None:
        """Keep a connection for the next message; one that has carried enough is to be closed.

        Not at once: what the server has just taken is to be recorded without waiting for its answer to QUIT.
        """
        if not connection.reusable:
            return
        if connection.transactions >= most_transactions or self._count >= self.most_idle:
            self.to_quit.append(connection)
            return
        self._idle.setdefault(key, deque()).append((connection, self.clock()))
        self._count += 1

    async def close_idle(self, older_than: float = SMTP_IDLE_LIMIT) -> None:
        """Say QUIT on the connections that have not been used for a while."""
        limit, old = self.clock() - older_than, len(self.to_quit)
        for key in list(self._idle):
            waiting = self._idle[key]
            while waiting and waiting[0][1] <= limit:
                self.to_quit.append(waiting.popleft()[0])
            if not waiting:
                del self._idle[key]
        self._count -= len(self.to_quit) - old
        await self.quit_ended()

    async def drop_idle(self) -> None:
        """Close all idle connections at once, without QUIT: this machine needs the descriptors."""
        dropped = [connection for waiting in self._idle.values() for connection, _ in waiting] + self.to_quit
        self._idle.clear()
        self.to_quit.clear()
        self._count = 0
        for connection in dropped:
            await connection.aclose()

    async def quit_ended(self) -> None:
        """Say QUIT on the connections that are to be closed."""
        ending, self.to_quit = self.to_quit, []
        async with trio.open_nursery() as nursery:
            for connection in ending:
                nursery.start_soon(connection.quit)
