"""A node among those that share one database, as the others and the operator see it."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address


@dataclass(frozen=True, slots=True)
class NodeState:
    name: str
    address: str
    version: str
    started_at: int
    beat_at: int  # when it last renewed its lease
    lease: int  # microseconds that it still lasts; none: it has expired
    skew: int  # microseconds by which its clock is ahead of the database's
    in_flight: int  # recipients in SMTP sessions
    waiting: int  # recipients that it delivers
    draining: bool
    ended: bool  # others have, or may have, its rows

    @property
    def state(self) -> str:
        """In a word."""
        if self.ended:
            return "ended"
        if self.draining:
            return "draining"
        return "running" if self.lease > 0 else "away"


@dataclass(frozen=True, slots=True)
class OtherNodes:
    """Where the other live nodes are: no mail and no event goes there."""

    names: frozenset[str] = frozenset()  # of their hosts
    addresses: frozenset[IPv4Address | IPv6Address] = frozenset()


NO_OTHERS = OtherNodes()
