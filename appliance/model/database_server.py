"""What an examination of a database finds out: how a PostgreSQL is set up, and what an upgrade would change."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableRows:
    name: str
    live: int
    dead: int  # rows, whose index entries are dead, too, as long as they are not vacuumed


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Times are in seconds."""

    place: str  # without user and password
    version: str
    schema: int  # 0: nothing is there yet
    newest_schema: int  # that this version knows
    compatible_since: int  # the oldest schema that a program must know to use it
    due_schema: int  # to which the next start brings it; 0: it changes nothing
    older_nodes: tuple[str, ...]  # for which the rest has to wait
    key_fingerprint: str | None
    settings: Mapping[str, str]  # as they are for our connections
    synchronous_standbys: int | None  # connected; None: our user may not know
    round_trip: float
    skew: float  # by which the database's clock is ahead of this machine's
    oldest_transaction: float
    connections: int
    tables: tuple[TableRows, ...] = field(default=())

    @property
    def is_too_new(self) -> bool:
        """Whether this version cannot use it."""
        return self.compatible_since > self.newest_schema

    @property
    def can_be_read(self) -> bool:
        """Whether it can be opened, and is not changed by that."""
        return bool(self.schema) and not self.due_schema and not self.is_too_new


@dataclass(frozen=True, slots=True)
class LastStart:
    """The server that started last on a database."""

    version: str
    settings: tuple[str, ...]  # the keys that it knew


@dataclass(frozen=True, slots=True)
class PendingUpgrade:
    """What this version would change in a database."""

    schema: int  # 0: nothing is there yet
    newest: int  # that this version knows
    steps: tuple[str, ...]  # the names of those that the next start takes
    last_start: LastStart | None  # None: the version that started last did not note it
    waiting: tuple[str, ...] = ()  # steps that wait for `older_nodes`
    older_nodes: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()  # that run: name and version
    kept: str = ""  # the file in which the database is kept as it was
    space: int = 0  # bytes that the upgrade takes on the disk
