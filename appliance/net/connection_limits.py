"""Connection limits of a listener: in all, by client network, by credential and by account.

A full table still admits new clients: the unauthenticated connection that has waited longest for its client is closed
for a new one, and a share of the table is reserved for networks from which clients have authenticated lately. An
authenticated connection between two requests gives way to such networks only, and after all others; during a request or
a message a connection is never closed. No account has more than half of the table, and messages of clients that do not
authenticate, as other mail servers do not, keep no more than half of it: further ones give way as if they waited.
"""

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.config.values import Network
from appliance.net.address_policy import client_network
from appliance.net.dial import SHORTAGE_ERRNOS
from appliance.telemetry.log import get_logger

ACCEPT_PAUSE = 0.1  # seconds
DEADLINE_CHECK = 0.25  # seconds, by which a client may exceed any of its deadlines
# Parts of the table: one connection in so many
RESERVED_PART = 4  # is reserved for known networks, once there are any
ACCOUNT_CONNECTIONS_PART = 2  # may belong to one account
MESSAGES_PART = 2  # may be kept for messages of unauthenticated clients
QUEUED_PART = 2  # more may wait until their networks have fewer connections
NETWORK_QUEUED_PART = 8  # of these, of one network

NETWORKS_KNOWN = 10_000  # those unseen for longest are forgotten first
KNOWN_FOR = 24 * 60 * 60.0  # seconds since a client there authenticated

log = get_logger("connections")


class KnownNetworks:
    """Networks from which a client has authenticated within the last day; shared by HTTP and SMTP.

    In memory: after a restart a network is known with its first authenticated request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen: TtlCache[str, bool] = TtlCache(NETWORKS_KNOWN, KNOWN_FOR, clock)

    def note(self, address: str) -> None:
        self.seen.put(client_network(address), True)


class Evictable(Protocol):
    def give_way(self) -> None:
        """Close at once; the connection is no longer counted."""


Connection = TypeVar("Connection", bound=Evictable)


class _Rank(IntEnum):
    """Of the connections that wait for their clients, those of lower rank are closed first."""

    UNKNOWN = 0  # not authenticated, from a network that is not known
    KNOWN = 1  # not authenticated, from a known network
    AUTHENTICATED = 2  # authenticated, between two requests or messages; closed for known networks only


@dataclass(slots=True)
class _Entry:
    network: str
    unknown: bool  # its network, and it has not authenticated
    credential: str | None = None
    account: str = ""  # of the credential
    rank: _Rank | None = None  # None: during a request or message


@dataclass(slots=True)
class ConnectionTable(Generic[Connection]):
    most: int
    most_per_address: int  # unauthenticated connections of one network; all where logins are not reported
    trusted: tuple[Network, ...] = ()  # proxies, which stand for many clients each
    known: KnownNetworks = field(default_factory=KnownNetworks)
    open: dict[Connection, _Entry] = field(default_factory=dict)
    by_address: Counter[str] = field(default_factory=Counter)  # by network, those without a credential
    by_credential: Counter[str] = field(default_factory=Counter)
    by_account: Counter[str] = field(default_factory=Counter)
    _from_unknown: int = 0
    _messages: set[Connection] = field(default_factory=set)  # without a credential, kept for the message on them
    _waiting: tuple[OrderedDict[Connection, None], ...] = field(
        default_factory=lambda: tuple(OrderedDict() for _ in _Rank)
    )
    _queues: dict[str, trio.lowlevel.ParkingLot] = field(default_factory=dict)  # by network
    _queued: int = 0

    def admits(self, address: str) -> bool:
        """Whether one more connection from this address is accepted; another may be closed for it."""
        if self.is_crowded(address):
            return False
        unknown = self._is_unknown(address)
        reserved = self.most // RESERVED_PART if len(self.known.seen) else 0
        over_share = unknown and self._from_unknown >= self.most - reserved
        if not over_share and len(self.open) < self.most:
            return True
        highest = _Rank.AUTHENTICATED if not unknown else _Rank.UNKNOWN if over_share else _Rank.KNOWN
        for waiting in self._waiting[: highest + 1]:
            if waiting:
                connection = next(iter(waiting))
                self.leave(connection)
                connection.give_way()
                return True
        return False

    def is_crowded(self, address: str) -> bool:
        return self.by_address[client_network(address)] >= self.most_per_address and not self._is_trusted(address)

    async def queue(self, address: str, patience: float) -> bool:
        """Wait until a crowded address may connect; False when that took too long, or too many wait."""
        network = client_network(address)
        of_network = len(self._queues.get(network) or ())
        if self._queued >= self.most // QUEUED_PART or of_network >= self.most // NETWORK_QUEUED_PART:
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
    def inside(self, connection: Connection, address: str) -> Iterator[None]:
        """Count a connection while it is open; it begins by waiting for its client."""
        network, unknown = client_network(address), self._is_unknown(address)
        self.open[connection] = _Entry(network, unknown)
        self.by_address[network] += 1
        self._from_unknown += unknown
        self.waits(connection)
        try:
            yield
        finally:
            self.leave(connection)

    def waits(self, connection: Connection, *, authenticated: bool = False) -> None:
        """The connection waits for its client, and may be closed for another; its position in the order stays."""
        entry = self.open.get(connection)
        if entry is None:
            return
        if authenticated:
            self._recognise(entry)
            rank = _Rank.AUTHENTICATED
        else:
            rank = _Rank.UNKNOWN if entry.unknown else _Rank.KNOWN
        if rank is not entry.rank:
            self._move(connection, entry, rank)

    def works(self, connection: Connection) -> None:
        """The connection is busy with a request or message, and is not closed for another."""
        entry = self.open.get(connection)
        if entry is not None and entry.rank is not None:
            self._move(connection, entry, None)

    def transacts(self, connection: Connection, *, busy: bool, message: bool) -> None:
        """A session is busy or waits for its client; without a login it is kept only for a `message` that it has."""
        entry = self.open.get(connection)
        if entry is None:
            return
        if entry.credential is not None:
            self._move(connection, entry, None if busy else _Rank.AUTHENTICATED)
        elif not (busy and message):
            self._messages.discard(connection)
            self.waits(connection)
        elif len(self._messages) < max(1, self.most // MESSAGES_PART):
            self._messages.add(connection)
            self.works(connection)

    def logged_in(self, connection: Connection, account: str, credential: str, most: int) -> bool:
        """Count a connection by its credential from now on; False when that has `most` already, or its account half."""
        entry = self.open.get(connection)
        if entry is None:
            return False
        if entry.credential == credential:
            return True
        of_account = self.by_account[account] - (entry.account == account)
        if self.by_credential[credential] >= most or of_account >= max(1, self.most // ACCOUNT_CONNECTIONS_PART):
            return False
        self._count_off(entry)
        entry.credential, entry.account = credential, account
        self.by_credential[credential] += 1
        self.by_account[account] += 1
        self._recognise(entry)
        self._move(connection, entry, _Rank.AUTHENTICATED)
        return True

    def leave(self, connection: Connection) -> None:
        """Stop counting a connection; its client has quit, and may reconnect before it is closed."""
        entry = self.open.pop(connection, None)
        if entry is not None:
            self._recognise(entry)
            self._move(connection, entry, None)
            self._messages.discard(connection)
            self._count_off(entry)

    def _move(self, connection: Connection, entry: _Entry, rank: _Rank | None) -> None:
        if entry.rank is not None:
            del self._waiting[entry.rank][connection]
        entry.rank = rank
        if rank is not None:
            self._waiting[rank][connection] = None

    def _recognise(self, entry: _Entry) -> None:
        self._from_unknown -= entry.unknown
        entry.unknown = False

    def _count_off(self, entry: _Entry) -> None:
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


async def accept_connections(
    listener: trio.abc.Listener[Any], connected: Callable[[Any], Any], connections: trio.Nursery
) -> None:
    """Accept until cancelled; without free descriptors, pause and log that once.

    trio.serve_listeners would log a traceback ten times a second.
    """
    full = False
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in SHORTAGE_ERRNOS:
                    raise
                if not full:
                    log.warning("no more connections can be opened", reason=error.strerror)
                full = True
                await trio.sleep(ACCEPT_PAUSE)
            else:
                full = False
                connections.start_soon(connected, stream)
