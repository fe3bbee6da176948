"""Connection tables: how many connections a listener has, in all, by client network and by credential.

A table that is full stays open to new clients: a connection whose client keeps it waiting without having authenticated
is closed for a new one, the one that waits longest first, and a share of the table is kept for networks from which
clients have authenticated lately. One that has authenticated and waits for its client gives way to such networks only,
and after all others; in the middle of a request or a message it is never closed. No account has more than half of the
table.
"""

import errno
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
from appliance.telemetry.log import get_logger

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
NO_ROOM_PAUSE = 0.1  # seconds
RESERVED_PART = 4  # one place in so many is for known networks, once there are any
# For each so many places of the table, one connection may wait until its network has a place: in all, of one network.
QUEUED_PART = 2
ACCOUNT_PART = 2  # one account has one place in so many at most
QUEUED_PART_OF_NETWORK = 8

NETWORKS_KNOWN = 10_000  # those unseen for longest are forgotten first
KNOWN_FOR = 24 * 60 * 60.0  # seconds since a client there authenticated

log = get_logger("door")


class KnownNetworks:
    """Networks from which a client has authenticated within the last day; shared by HTTP and SMTP.

    In memory: after a restart a network is known with its first authenticated request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen: TtlCache[str, bool] = TtlCache(NETWORKS_KNOWN, KNOWN_FOR, clock)

    def note(self, address: str) -> None:
        """A client has authenticated from this address."""
        self._seen.put(client_network(address), True)

    def __contains__(self, network: str) -> bool:
        return network in self._seen

    def __bool__(self) -> bool:
        """Whether there is one at all."""
        return len(self._seen) > 0


class GivesWay(Protocol):
    """A connection in a table."""

    def give_way(self) -> None:
        """End at once: the place is another's already."""


Connection = TypeVar("Connection", bound=GivesWay)


class _Rank(IntEnum):
    """Of the connections that wait for their clients, those of lower rank give way first."""

    UNKNOWN = 0  # not authenticated, from a network that is not known
    KNOWN = 1  # not authenticated, from a known network
    AUTHENTICATED = 2  # authenticated, and between two requests or messages; gives way to known networks only


@dataclass(slots=True)
class _Entry:
    network: str
    unknown: bool  # its network, and it has not authenticated
    credential: str | None = None
    account: str = ""  # of the credential
    rank: _Rank | None = None  # None: in the middle of something


@dataclass(slots=True)
class ConnectionTable(Generic[Connection]):
    """One listener's table."""

    most: int
    most_per_address: int  # connections of one network that have not authenticated, or all where that is never told
    trusted: tuple[Network, ...] = ()  # proxies, which bring many clients each
    known: KnownNetworks = field(default_factory=KnownNetworks)
    open: dict[Connection, _Entry] = field(default_factory=dict)
    by_address: Counter[str] = field(default_factory=Counter)  # by network, those without a credential
    by_credential: Counter[str] = field(default_factory=Counter)
    by_account: Counter[str] = field(default_factory=Counter)
    _from_unknown: int = 0
    _waiting: tuple[OrderedDict[Connection, None], ...] = field(
        default_factory=lambda: tuple(OrderedDict() for _ in _Rank)
    )
    _queues: dict[str, trio.lowlevel.ParkingLot] = field(default_factory=dict)  # by network
    _queued: int = 0

    def admits(self, address: str) -> bool:
        """Whether one more connection from this address may come in; for it another may have to give way."""
        return not self.is_crowded(address) and self._make_room(address)

    def is_crowded(self, address: str) -> bool:
        """Whether this address has all the connections it may have."""
        return self.by_address[client_network(address)] >= self.most_per_address and not self._is_trusted(address)

    async def queue(self, address: str, patience: float) -> bool:
        """Wait until an address that is crowded has a place; False when it had none in time, or too many wait."""
        network = client_network(address)
        of_network = len(self._queues.get(network) or ())
        if self._queued >= self.most // QUEUED_PART or of_network >= self.most // QUEUED_PART_OF_NETWORK:
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
        return bool(self.trusted) and any(
            ipaddress.ip_address(address.partition("%")[0]) in network for network in self.trusted
        )

    def _is_unknown(self, address: str) -> bool:
        return client_network(address) not in self.known and not self._is_trusted(address)

    def _make_room(self, address: str) -> bool:
        unknown = self._is_unknown(address)
        over_share = unknown and self._from_unknown >= self.most - self._reserved()
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

    def _reserved(self) -> int:
        return self.most // RESERVED_PART if self.known else 0

    @contextmanager
    def inside(self, connection: Connection, address: str) -> Iterator[None]:
        """Count a connection for as long as it lasts; it begins by waiting for its client."""
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
        """The connection waits for its client: it may have to give way. Its place among those who wait stays."""
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
        """The connection is in the middle of something, and does not give way."""
        entry = self.open.get(connection)
        if entry is not None and entry.rank is not None:
            self._move(connection, entry, None)

    def transacts(self, connection: Connection, *, busy: bool) -> None:
        """A connection that counts by its credential has a message under way, or has none any more."""
        entry = self.open.get(connection)
        if entry is not None and entry.credential is not None:
            self._move(connection, entry, None if busy else _Rank.AUTHENTICATED)

    def logged_in(self, connection: Connection, account: str, credential: str, most: int) -> bool:
        """Count a connection by its credential from now on; False when that has `most` already, or its account half."""
        entry = self.open.get(connection)
        if entry is None:
            return False
        if entry.credential == credential:
            return True
        of_account = self.by_account[account] - (entry.account == account)
        if self.by_credential[credential] >= most or of_account >= max(1, self.most // ACCOUNT_PART):
            return False
        self._count_off(entry)
        entry.credential, entry.account = credential, account
        self.by_credential[credential] += 1
        self.by_account[account] += 1
        self._recognise(entry)
        self._move(connection, entry, _Rank.AUTHENTICATED)
        return True

    def leave(self, connection: Connection) -> None:
        """Count a connection no longer whose client has said goodbye: it may be back before this one is quite gone."""
        entry = self.open.pop(connection, None)
        if entry is not None:
            self._recognise(entry)
            self._move(connection, entry, None)
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
        """Take a place out of the count it is in, and let in who waits for that."""
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
