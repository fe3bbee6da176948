"""Idle SMTP connections, kept for the next message to the same server and closed with QUIT when none comes."""

from collections.abc import Hashable
from typing import NamedTuple

import trio

from appliance.deliver.route import Relay
from appliance.deliver.smtp.connection import SmtpConnection
from appliance.net.idle_pool import IdlePool

SMTP_IDLE_LIMIT = 20.0  # seconds a connection waits for the next message; servers give up on idle ones at 30 to 300
IDLE_CONNECTIONS = 100  # kept open in all


class ConnectionKey(NamedTuple):
    """What makes two connections interchangeable: the same server, address, demand for TLS, and login."""

    host: str
    address: str
    port: int
    tls: Hashable  # the demand, without the domain whose it is: a provider's domains share connections
    relay: Relay | None = None  # whom we are logged in to, and as whom


class Connections(IdlePool[ConnectionKey, SmtpConnection]):
    def __init__(self, most_idle: int = IDLE_CONNECTIONS) -> None:
        super().__init__()
        self.most_idle = most_idle
        self.to_quit: list[SmtpConnection] = []

    def give_back(self, key: ConnectionKey, connection: SmtpConnection, most_transactions: int) -> None:
        """Keep a connection for the next message; one that has carried enough is to be closed.

        Not at once: what the server has just taken is to be recorded without waiting for its answer to QUIT.
        """
        if not connection.reusable:
            return
        if connection.transactions >= most_transactions or len(self) >= self.most_idle:
            self.to_quit.append(connection)
        else:
            self.put(key, connection)

    async def close_idle(self, older_than: float = SMTP_IDLE_LIMIT) -> None:
        """Say QUIT on the connections that have not been used for a while."""
        limit = trio.current_time() - older_than
        while (connection := self.take_oldest(idle_since=limit)) is not None:
            self.to_quit.append(connection)
        await self.quit_ended()

    async def drop_idle(self) -> None:
        """Close all idle connections at once, without QUIT: this machine needs the descriptors."""
        dropped, self.to_quit = self.to_quit, []
        while (connection := self.take_oldest()) is not None:
            dropped.append(connection)
        for connection in dropped:
            await connection.aclose()

    async def quit_ended(self) -> None:
        """Say QUIT on the connections that are to be closed."""
        ending, self.to_quit = self.to_quit, []
        async with trio.open_nursery() as nursery:
            for connection in ending:
                nursery.start_soon(connection.quit)
