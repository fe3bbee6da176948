"""Idle SMTP connections, kept for the next message to the same server."""

from collections.abc import Hashable
from typing import NamedTuple

import trio

from appliance.deliver.smtp.connection import SmtpConnection
from appliance.net.idle_pool import IdlePool

SMTP_IDLE_LIMIT = 20.0  # seconds; servers close idle connections after 30 to 300
IDLE_CONNECTIONS = 100  # kept open in all


class ConnectionKey(NamedTuple):
    """Connections with the same key are interchangeable."""

    host: str
    address: str
    port: int
    tls: Hashable  # the demand, without the domain that makes it: a provider's domains share connections
    relay: Hashable = None  # the relay and the login there


class Connections(IdlePool[ConnectionKey, SmtpConnection]):
    def __init__(self, most_idle: int = IDLE_CONNECTIONS) -> None:
        super().__init__()
        self.most_idle = most_idle
        self.to_quit: list[SmtpConnection] = []

    def give_back(self, key: ConnectionKey, connection: SmtpConnection, most_transactions: int) -> None:
        """Keep a connection for the next message, or queue it for QUIT after `most_transactions`.

        QUIT comes later, because the outcome must be recorded without waiting for its reply.
        """
        if not connection.reusable:
            return
        if connection.transactions >= most_transactions or len(self) >= self.most_idle:
            self.to_quit.append(connection)
        else:
            self.put(key, connection)

    async def close_idle(self, older_than: float = SMTP_IDLE_LIMIT) -> None:
        """Send QUIT on connections that were idle for too long."""
        limit = trio.current_time() - older_than
        while (connection := self.take_oldest(idle_since=limit)) is not None:
            self.to_quit.append(connection)
        await self.quit_ended()

    async def drop_idle(self) -> None:
        """Close all idle connections without QUIT: this machine needs the descriptors."""
        dropped, self.to_quit = self.to_quit, []
        while (connection := self.take_oldest()) is not None:
            dropped.append(connection)
        for connection in dropped:
            await connection.aclose()

    async def quit_ended(self) -> None:
        """Send QUIT on the connections that are queued for it."""
        ending, self.to_quit = self.to_quit, []
        async with trio.open_nursery() as nursery:
            for connection in ending:
                nursery.start_soon(connection.quit)
