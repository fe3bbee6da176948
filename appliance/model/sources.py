"""Sources: the outgoing addresses that streams and accounts send from, and the names of their limits.

Receivers judge the address that mail comes from, so each source has limits of its own in every pool: `google@news`
names the limits of the source `news` in the pool `google`. Mail without a source uses the limits named `google`.
"""

import socket
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from appliance.config.settings import Config
from appliance.config.values import Address

AT = "@"  # in no name of a pool or of a source


class OutgoingSource(Struct, frozen=True):
    name: str
    addresses: tuple[Address, ...]  # one or none of each family
    hostname: str  # for EHLO
    node: str = ""  # empty: every node
    named: bool = True  # the hostname is the source's own

    def address(self, version: int) -> Address | None:
        return next((address for address in self.addresses if address.version == version), None)

    @property
    def spf_hosts(self) -> list[str]:
        """What an SPF record lists: the source's own hostname, which DNS leads to its public addresses, or these."""
        return [self.hostname] if self.named else [str(address) for address in self.addresses]

    def only(self, addresses: tuple[Address, ...]) -> "OutgoingSource":
        return self if addresses == self.addresses else replace(self, addresses=addresses)


def limits_name(pool: str, source: str) -> str:
    return f"{pool}{AT}{source}" if source else pool


def pool_and_source(name: str) -> tuple[str, str]:
    pool, _, source = name.partition(AT)
    return pool, source


class SourceTable(Struct, frozen=True):
    """The sources of the settings, and the streams that use them."""

    by_name: Mapping[str, OutgoingSource] = field(default_factory=dict)
    by_stream: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def used_by(self, stream: str, own: Mapping[str, tuple[str, ...]] | None = None) -> tuple[str, ...]:
        """The names of a stream's sources; `own`: those an account has instead, by stream. None: the system chooses."""
        return (own or {}).get(stream) or self.by_stream.get(stream, ())

    def of_node(self, node: str) -> list[OutgoingSource]:
        return [source for source in self.by_name.values() if source.node in ("", node)]

    def of_account(self, own: Mapping[str, tuple[str, ...]]) -> list[OutgoingSource]:
        """The sources that an account's mail may leave from, in the order of the settings."""
        names = {name for stream in (*self.by_stream, *own) for name in self.used_by(stream, own)}
        return [source for name, source in self.by_name.items() if name in names]


def node_name(config: Config) -> str:
    return config.server.node or socket.gethostname()


def configured_sources(config: Config) -> SourceTable:
    delivery, hostname = config.delivery, config.server.hostname
    by_name = {
        name: OutgoingSource(
            name,
            tuple(address for address in (chosen.ipv6, chosen.ipv4) if address is not None),
            chosen.hostname or hostname,
            chosen.node,
            bool(chosen.hostname),
        )
        for name, chosen in delivery.sources.items()
    }
    by_stream = {name: stream.sources for name, stream in delivery.streams.items() if stream.sources}
    return SourceTable(by_name, by_stream)


class SourceState(Struct, frozen=True):
    """What a node last found about a source."""

    source: str
    node: str
    is_here: bool  # a session can bind to one of its addresses
    detail: str  # the addresses that cannot be bound, and why; empty: none
    changed_at: int


class PoolDay(Struct, frozen=True):
    """Recipients of a day's attempts from a source to a pool, and the last reply that deferred or refused one."""

    delivered: int = 0
    deferred: int = 0
    blocked: int = 0  # refused as mail from this source or sender
    reply: str | None = None
    reply_at: int | None = None

    def plus(self, other: "PoolDay") -> "PoolDay":
        last = max(self, other, key=lambda day: day.reply_at or 0)
        delivered, deferred = self.delivered + other.delivered, self.deferred + other.deferred
        return PoolDay(delivered, deferred, self.blocked + other.blocked, last.reply, last.reply_at)
