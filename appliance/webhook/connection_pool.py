"""Idle connections to receivers, kept for the next event: bounded in all and per host, by idle time and by age.

A connection is reused only for the same name, port and checked address. Of several the one used last is taken first,
so that the others become idle and are closed.
"""

from collections import deque
from dataclasses import dataclass, field

import trio

from appliance.webhook.connect import ReceiverConnection, ReceiverEndpoint

IDLE_SECONDS = 30.0  # a connection is kept without use
CONNECTION_AGE = 300.0  # seconds a connection is used at all, so that the certificate is verified again soon
CONNECTIONS_KEPT = 200
CONNECTIONS_PER_HOST = 16


@dataclass(slots=True)
class IdleConnections:
    """The idle connections of one poster."""

    idle_seconds: float = IDLE_SECONDS
    limit: int = CONNECTIONS_KEPT
    limit_per_host: int = CONNECTIONS_PER_HOST
    _by_endpoint: dict[ReceiverEndpoint, deque[ReceiverConnection]] = field(
        default_factory=dict
    )  # each in order of last use
    _by_use: dict[ReceiverConnection, None] = field(default_factory=dict)  # all of them, in that order
    _per_host: dict[tuple[str, int], int] = field(default_factory=dict)
    _closed: bool = False

    def __len__(self) -> int:
        return len(self._by_use)

    async def take(self, endpoint: ReceiverEndpoint) -> ReceiverConnection | None:
        """Remove and return an idle connection that seems alive; dead ones found on the way are closed."""
        while waiting := self._by_endpoint.get(endpoint):
            connection = waiting[-1]
            self._remove(connection)
            if connection.transport.silent:
                return connection
            await connection.aclose()
        return None

    async def give_back(self, connection: ReceiverConnection) -> None:
        """Keep a connection for the next event; above the limit the one unused for longest is closed."""
        now = connection.used = trio.current_time()
        host = connection.endpoint[:2]
        count = self._per_host.get(host, 0)
        if self._closed or count >= self.limit_per_host or now - connection.opened >= CONNECTION_AGE:
            await connection.aclose()
            return
        self._by_endpoint.setdefault(connection.endpoint, deque()).append(connection)
        self._by_use[connection] = None
        self._per_host[host] = count + 1
        if len(self._by_use) > self.limit:
            await self._drop(next(iter(self._by_use)))

    async def drop_all_to(self, endpoint: ReceiverEndpoint) -> None:
        """Close all to an endpoint that has just broken one of them: each would waste an attempt."""
        while waiting := self._by_endpoint.get(endpoint):
            await self._drop(waiting[0])

    async def close_idle(self) -> None:
        """Close those unused for `idle_seconds`."""
        limit = trio.current_time() - self.idle_seconds
        while self._by_use and (oldest := next(iter(self._by_use))).used <= limit:
            await self._drop(oldest)

    async def drop_all(self) -> None:
        while self._by_use:
            await self._drop(next(iter(self._by_use)))

    async def aclose(self) -> None:
        """Close all, and keep none from now on."""
        self._closed = True
        await self.drop_all()

    async def _drop(self, connection: ReceiverConnection) -> None:
        self._remove(connection)
        await connection.aclose()

    def _remove(self, connection: ReceiverConnection) -> None:
        waiting = self._by_endpoint[connection.endpoint]
        if waiting[-1] is connection:
            waiting.pop()
        else:
            waiting.remove(connection)
        if not waiting:
            del self._by_endpoint[connection.endpoint]
        del self._by_use[connection]
        host = connection.endpoint[:2]
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
