"""Idle connections to receivers, kept for the next event: bounded in all and per host, by idle time and by age.

A connection is reused only for the same name, port and checked address.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.net.address_policy import Address
from appliance.net.idle_pool import IdlePool
from appliance.webhook.connect import ReceiverConnection, ReceiverEndpoint

IDLE_SECONDS = 30.0  # a connection is kept without use
CONNECTION_AGE = 300.0  # seconds a connection is used at all, so that the certificate is verified again soon
CONNECTIONS_KEPT = 200
CONNECTIONS_PER_HOST = 16


@dataclass(slots=True)
class IdleConnections:
    idle_seconds: float = IDLE_SECONDS
    limit: int = CONNECTIONS_KEPT
    limit_per_host: int = CONNECTIONS_PER_HOST
    pool: IdlePool[tuple[str, int], ReceiverConnection] = field(default_factory=IdlePool)  # by host name and port
    _closed: bool = False

    async def take(self, host: str, port: int, addresses: Container[Address]) -> ReceiverConnection | None:
        """An idle connection to one of these addresses that seems alive; dead ones found on the way are closed."""
        while connection := self.pool.take((host, port), lambda kept: kept.endpoint.address in addresses):
            if connection.transport.silent:
                return connection
            await connection.aclose()
        return None

    async def give_back(self, connection: ReceiverConnection) -> None:
        """Keep a connection for the next event; above the limit the one unused for longest is closed."""
        host = connection.endpoint[:2]
        too_old = trio.current_time() - connection.opened >= CONNECTION_AGE
        if self._closed or too_old or self.pool.count(host) >= self.limit_per_host:
            await connection.aclose()
            return
        self.pool.put(host, connection)
        if len(self.pool) > self.limit and (oldest := self.pool.take_oldest()):
            await oldest.aclose()

    async def drop_all_to(self, endpoint: ReceiverEndpoint) -> None:
        """Close all to an endpoint that has just broken one of them: each would waste an attempt."""
        while connection := self.pool.take(endpoint[:2], lambda kept: kept.endpoint == endpoint):
            await connection.aclose()

    async def close_idle(self) -> None:
        await self.drop_all(idle_since=trio.current_time() - self.idle_seconds)

    async def drop_all(self, idle_since: float = inf) -> None:
        while connection := self.pool.take_oldest(idle_since):
            await connection.aclose()

    async def aclose(self) -> None:
        """Close all, and keep none from now on."""
        self._closed = True
        await self.drop_all()
