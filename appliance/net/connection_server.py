"""Accepts connections, limits them, enforces their deadlines and shuts down: one server for HTTP and SMTP.

The limits apply in all, and per client network, credential and account. A full table still admits new clients. It
evicts the unauthenticated connection that has waited longest for its client, and reserves a share for networks whose
clients authenticated lately. Only such a network can evict an authenticated connection, and only while that is idle. A
connection with a request or message under way is never evicted. One account gets at most half of the table; so do
messages of clients that do not authenticate, such as other mail servers.

An error in one connection ends that connection only. On shutdown the server accepts nothing more, closes idle
connections at once, and gives the others their part of `server.shutdown_timeout`.
"""

import errno
import ipaddress
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import trio
from msgspec import Struct, field

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.values import Endpoint, Network
from appliance.net.address_policy import client_network
from appliance.net.dial import SHORTAGE_ERRNOS
from appliance.shutdown import CONNECTIONS_PART
from appliance.telemetry.log import Log, get_logger
from appliance.telemetry.metrics import OPEN_CONNECTIONS

# Shares of the table, as divisors of its size.
RESERVED_PART = 4  # reserved for known networks, once there are any
ACCOUNT_CONNECTIONS_PART = 2  # connections of one account
MESSAGES_PART = 2  # messages of unauthenticated clients
QUEUED_PART = 2  # clients that wait until their network has fewer connections
NETWORK_QUEUED_PART = 8  # those of one network

NETWORKS_KNOWN = 10_000  # the least recently seen are forgotten first
KNOWN_FOR = 24 * 60 * 60.0  # seconds after a client authenticated


class KnownNetworks:
    """Networks from which a client authenticated within the last day, in memory; shared by HTTP and SMTP."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen: TtlCache[str, bool] = TtlCache(NETWORKS_KNOWN, KNOWN_FOR, clock)

    def note(self, address: str) -> None:
        self.seen.put(client_network(address), True)


class Evictable(Protocol):
    def evict(self) -> None:
        """Close at once; the table has already removed the connection."""


Connection = TypeVar("Connection", bound=Evictable)


class _Rank(IntEnum):
    """The eviction order of idle connections, lowest first."""

    UNKNOWN = 0  # unauthenticated, from an unknown network
    KNOWN = 1  # unauthenticated, from a known network
    AUTHENTICATED = 2  # evicted for known networks only


class _Entry(Struct):
    network: str
    unknown: bool  # unauthenticated, from an unknown network
    credential: str | None = None
    account: str = ""  # of the credential
    rank: _Rank | None = None  # None: busy with a request or message


class ConnectionTable(Struct, Generic[Connection]):
    limit: int
    limit_per_address: int  # unauthenticated connections of one network; HTTP counts all of them
    trusted: tuple[Network, ...] = ()  # proxies, exempt from the limit per address
    known: KnownNetworks = field(default_factory=KnownNetworks)
    open: dict[Connection, _Entry] = field(default_factory=dict)
    by_address: Counter[str] = field(default_factory=Counter)  # by network, without those that logged in
    by_credential: Counter[str] = field(default_factory=Counter)
    by_account: Counter[str] = field(default_factory=Counter)
    _from_unknown: int = 0
    _messages: set[Connection] = field(default_factory=set)  # unauthenticated, kept for their message
    _waiting: tuple[OrderedDict[Connection, None], ...] = field(
        default_factory=lambda: tuple(OrderedDict() for _ in _Rank)
    )
    _queues: dict[str, trio.lowlevel.ParkingLot] = field(default_factory=dict)  # by network
    _queued: int = 0

    def admits(self, address: str) -> bool:
        """Return whether this address may open a connection; evict another one if the table is full."""
        if self.is_crowded(address):
            return False
        unknown = self._is_unknown(address)
        reserved = self.limit // RESERVED_PART if len(self.known.seen) else 0
        over_share = unknown and self._from_unknown >= self.limit - reserved
        if not over_share and len(self.open) < self.limit:
            return True
        highest = _Rank.AUTHENTICATED if not unknown else _Rank.UNKNOWN if over_share else _Rank.KNOWN
        for waiting in self._waiting[: highest + 1]:
            if waiting:
                connection = next(iter(waiting))
                self.remove(connection)
                connection.evict()
                return True
        return False

    def is_crowded(self, address: str) -> bool:
        return self.by_address[client_network(address)] >= self.limit_per_address and not self._is_trusted(address)

    async def queue(self, address: str, patience: float) -> bool:
        """Wait until a crowded address may connect. Return False after `patience` seconds, or if the queue is full."""
        network = client_network(address)
        queued = len(self._queues.get(network) or ())
        if self._queued >= self.limit // QUEUED_PART or queued >= self.limit // NETWORK_QUEUED_PART:
            return False
        self._queued += 1
        try:
            with trio.move_on_after(patience):
                while self.is_crowded(address):
                    await self._queues.setdefault(network, trio.lowlevel.ParkingLot()).park()
        finally:
            self._queued -= 1
            if not self._queues.get(network, True):
                del self._queues[network]
        return not self.is_crowded(address)

    def _is_trusted(self, address: str) -> bool:
        return any(ipaddress.ip_address(address.partition("%")[0]) in network for network in self.trusted)

    def _is_unknown(self, address: str) -> bool:
        return client_network(address) not in self.known.seen and not self._is_trusted(address)

    @contextmanager
    def tracking(self, connection: Connection, address: str) -> Iterator[None]:
        """Count a connection while it is open; it starts idle."""
        network, unknown = client_network(address), self._is_unknown(address)
        self.open[connection] = _Entry(network, unknown)
        self.by_address[network] += 1
        self._from_unknown += unknown
        self.mark_idle(connection)
        try:
            yield
        finally:
            self.remove(connection)

    def mark_idle(self, connection: Connection, *, authenticated: bool = False) -> None:
        """The connection waits for its client and can be evicted. Repeated calls keep its place in the order."""
        entry = self.open.get(connection)
        if entry is None:
            return
        if authenticated:
            self._mark_known(entry)
            rank = _Rank.AUTHENTICATED
        else:
            rank = _Rank.UNKNOWN if entry.unknown else _Rank.KNOWN
        if rank is not entry.rank:
            self._move(connection, entry, rank)

    def mark_busy(self, connection: Connection) -> None:
        entry = self.open.get(connection)
        if entry is not None and entry.rank is not None:
            self._move(connection, entry, None)

    def mark_session(self, connection: Connection, *, busy: bool, has_message: bool) -> None:
        """Mark an SMTP session busy or idle. Without a login only a message keeps it from eviction."""
        entry = self.open.get(connection)
        if entry is None:
            return
        if entry.credential is not None:
            self._move(connection, entry, None if busy else _Rank.AUTHENTICATED)
        elif not (busy and has_message):
            self._messages.discard(connection)
            self.mark_idle(connection)
        elif len(self._messages) < max(1, self.limit // MESSAGES_PART):
            self._messages.add(connection)
            self.mark_busy(connection)

    def log_in(self, connection: Connection, account: str, credential: str, limit: int) -> bool:
        """Count a connection by its credential. Return False if that has `limit` already, or the account its share."""
        entry = self.open.get(connection)
        if entry is None:
            return False
        if entry.credential == credential:
            return True
        others = self.by_account[account] - (entry.account == account)
        if self.by_credential[credential] >= limit or others >= max(1, self.limit // ACCOUNT_CONNECTIONS_PART):
            return False
        self._uncount(entry)
        entry.credential, entry.account = credential, account
        self.by_credential[credential] += 1
        self.by_account[account] += 1
        self._mark_known(entry)
        self._move(connection, entry, _Rank.AUTHENTICATED)
        return True

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection: a client that has quit may reconnect before its socket is closed."""
        entry = self.open.pop(connection, None)
        if entry is not None:
            self._mark_known(entry)
            self._move(connection, entry, None)
            self._messages.discard(connection)
            self._uncount(entry)

    def _move(self, connection: Connection, entry: _Entry, rank: _Rank | None) -> None:
        if entry.rank is not None:
            del self._waiting[entry.rank][connection]
        entry.rank = rank
        if rank is not None:
            self._waiting[rank][connection] = None

    def _mark_known(self, entry: _Entry) -> None:
        self._from_unknown -= entry.unknown
        entry.unknown = False

    def _uncount(self, entry: _Entry) -> None:
        if entry.credential is not None:
            _decrease(self.by_credential, entry.credential)
            _decrease(self.by_account, entry.account)
            return
        _decrease(self.by_address, entry.network)
        if waiting := self._queues.get(entry.network):
            waiting.unpark()


def _decrease(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


ACCEPT_BACKLOG: Final = 1_024  # connections that the kernel queues
ACCEPT_PAUSE: Final = 0.1  # seconds, while the system is out of descriptors or memory
DEADLINE_CHECK: Final = 0.25  # seconds by which a client can exceed a deadline
# The connection broke before it was accepted. accept(2) says to treat these like EAGAIN.
_LOST_BEFORE_ACCEPT: Final = {
    errno.ECONNABORTED, errno.ECONNRESET, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
}  # fmt: skip

log = get_logger("connections")


class SocketListener(trio.abc.Listener[Any]):
    """A listening socket that returns plain sockets, up to `per_turn` of them in one turn of Trio's scheduler.

    Trio starts the tasks of one turn in random order. With one connection per turn, clients enter the table in the
    order in which they connected, so the first is evicted first.
    """

    def __init__(self, listening: socket.socket, scheme: str = "", *, secure: bool = False, per_turn: int = 1) -> None:
        listening.setblocking(False)
        self._socket = listening
        self.address = str(Endpoint(*listening.getsockname()[:2]))  # as in a URL
        self.url = f"{scheme}://{self.address}"
        self.secure = secure  # TLS from the first byte
        self._per_turn = per_turn
        self._accepted = 0  # in this turn

    async def accept(self) -> socket.socket:
        """Return the next connection. Raises OSError when the system is out of descriptors or memory."""
        while True:
            if self._accepted == self._per_turn:
                self._accepted = 0
                await trio.lowlevel.checkpoint()
            self._accepted += 1
            try:
                client, _ = self._socket.accept()
            except BlockingIOError:
                self._accepted = 0
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                if error.errno not in _LOST_BEFORE_ACCEPT:
                    raise
            else:
                return client

    async def aclose(self) -> None:
        self._socket.close()
        await trio.lowlevel.checkpoint()


async def listen(bind: Endpoint, scheme: str = "", *, secure: bool = False, per_turn: int = 1) -> list[SocketListener]:
    opened = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=ACCEPT_BACKLOG)
    sockets = [socket.socket(fileno=listener.socket.detach()) for listener in opened]
    return [SocketListener(listening, scheme, secure=secure, per_turn=per_turn) for listening in sockets]


async def accept_connections(
    listener: trio.abc.Listener[Any], connected: Callable[[Any], Any], connections: trio.Nursery
) -> None:
    """Accept until cancelled. When the system is out of descriptors or memory, log that once, pause and retry."""
    is_short = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in SHORTAGE_ERRNOS:
                    raise
                if not is_short:
                    log.warning("no more connections can be opened", reason=error.strerror)
                is_short = True
                await trio.sleep(ACCEPT_PAUSE)
            else:
                is_short = False
                connections.start_soon(connected, stream)


class ServedConnection(Evictable, Protocol):
    def close_if_late(self, now: float) -> None:
        """Close if the client missed a deadline."""

    def drain(self) -> None:
        """Shut down: close now if idle, otherwise after the current request or message."""


Served = TypeVar("Served", bound=ServedConnection)


class ConnectionServer(Struct, Generic[Served]):
    """Calls `serve(client, address, secure)` or `refuse(client, secure)` for each connection; both close it."""

    name: str  # in metrics
    table: ConnectionTable[Served]
    serve: Callable[[socket.socket, str, bool], Awaitable[None]]
    refuse: Callable[[socket.socket, bool], Awaitable[None]]
    log: Log
    admission_timeout: float = 0.0  # seconds that a client waits while its network has too many connections

    async def run(
        self,
        listeners: Sequence[SocketListener],
        stopping: trio.Event,
        *,
        shutdown_timeout: float,
        started: Callable[[], None],
        begin_shutdown: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serve until `stopping` is set and all connections are closed; `begin_shutdown` runs before they drain."""
        OPEN_CONNECTIONS[self.name] = lambda: len(self.table.open)
        async with trio.open_nursery() as watch:
            watch.start_soon(self._enforce_deadlines)
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        connected = partial(self._connected, secure=listener.secure)
                        accepting.start_soon(accept_connections, listener, connected, connections)
                    started()
                    await stopping.wait()
                    accepting.cancel_scope.cancel()
                if begin_shutdown is not None:
                    await begin_shutdown()
                for connection in list(self.table.open):
                    connection.drain()
                connections.cancel_scope.deadline = trio.current_time() + shutdown_timeout * CONNECTIONS_PART
            watch.cancel_scope.cancel()

    async def _connected(self, client: socket.socket, *, secure: bool) -> None:
        try:
            address = str(client.getpeername()[0])
        except OSError:  # the client has disconnected
            client.close()
            return
        if self.admission_timeout and self.table.is_crowded(address):
            await self.table.queue(address, self.admission_timeout)
        try:
            if self.table.admits(address):
                await self.serve(client, address, secure)
            else:
                with suppress(OSError):
                    await self.refuse(client, secure)
        except Exception:
            self.log.exception("connection failed", client=address)

    async def _enforce_deadlines(self) -> None:
        """Check all connections together: cheaper than a timer for each request."""
        while True:
            await trio.sleep(DEADLINE_CHECK)
            now = trio.current_time()
            for connection in list(self.table.open):
                connection.close_if_late(now)
