"""The database as operators see it, pending upgrades of it, and what the nodes that share it tell each other."""

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from msgspec import Struct

from appliance.times import SECOND


class TableRows(Struct, frozen=True):
    name: str
    live: int
    dead: int  # rows not yet vacuumed


class ServerFacts(Struct, frozen=True):
    place: str  # without user and password
    version: str
    schema: int  # 0: empty database
    newest_schema: int  # known to this version
    compatible_since: int  # the oldest schema version whose programs can use it
    due_schema: int  # after the next start; 0: unchanged
    older_nodes: tuple[str, ...]  # that delay the remaining steps
    key_fingerprint: str | None
    settings: Mapping[str, str]  # for our connections
    synchronous_standbys: int | None  # connected; None: not permitted to see
    round_trip: float
    skew: float  # of the database's clock ahead of this machine's
    oldest_transaction: float
    connections: int
    tables: tuple[TableRows, ...] = ()

    @property
    def is_too_new(self) -> bool:
        return self.compatible_since > self.newest_schema

    @property
    def can_be_read(self) -> bool:
        """Whether it can be opened without changing it."""
        return bool(self.schema) and not self.due_schema and not self.is_too_new


class LastStart(Struct, frozen=True):
    version: str
    settings: tuple[str, ...]  # the setting names it knew


class PendingUpgrade(Struct, frozen=True):
    schema: int  # 0: empty database
    newest: int  # known to this version
    steps: tuple[str, ...]  # names of the migrations at the next start
    last_start: LastStart | None  # None: not recorded
    waiting: tuple[str, ...] = ()  # steps that wait for `older_nodes`
    older_nodes: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str], ...] = ()  # running: name and version
    kept: str = ""  # the copy of the database before the upgrade
    space: int = 0  # bytes of disk that the upgrade needs


# ---- nodes that share the database


class NodeState(Struct, frozen=True):
    name: str
    address: str
    version: str
    started_at: int
    beat_at: int  # last renewal of the lease
    lease: int  # remaining microseconds; 0: expired
    skew: int  # microseconds of its clock ahead of the database's
    in_flight: int  # recipients in SMTP sessions
    waiting: int  # recipients assigned to it
    draining: bool
    ended: bool  # other nodes may take over its recipients

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.draining:
            return "draining"
        return "running" if self.lease > 0 else "away"

    @property
    def lease_seconds(self) -> float:
        return round(max(0, self.lease) / SECOND, 1)

    @property
    def skew_seconds(self) -> float:
        return round(self.skew / SECOND, 3)


class OtherNodes(Struct, frozen=True):
    """Hosts and addresses of the other live nodes: no mail and no event is sent there."""

    names: frozenset[str] = frozenset()  # host names
    addresses: frozenset[IPv4Address | IPv6Address] = frozenset()


NO_OTHERS = OtherNodes()


class Feature(StrEnum):
    """What nodes of earlier versions would treat wrongly."""

    CONFIDENTIAL = "confidential mail"  # they show its contents in the dashboard
    FORMATS = "webhook formats"  # they post the native one
    SCHEDULE = "scheduled messages"  # they can neither release nor cancel them
    RECEIVING = "receiving mail"  # they take it for feedback, and drop it
    RAMP = "mail under a ramp"  # they would send it by the other route


class FailureKind(StrEnum):
    """What was wrong, and so how the failure counts (see `intake.login_throttle`)."""

    LOGIN = "login"
    CODE = "code"  # two-factor code from a network that the account does not know
    KNOWN_CODE = "known_code"  # two-factor code from a known network
    CREDENTIAL = "credential"  # API key, token, cookie or SMTP password; has no account


class LoginFailure(NamedTuple):
    kind: FailureKind
    account: str  # as the client sent it
    network: str
    at: int


class CancelRequest(Struct, frozen=True):
    id: str
    message_id: str
    account_id: str | None  # None: the operator asks
    reason: str


class CancelAnswer(Struct, frozen=True):
    cancelled: int
    refusal: str | None = None


# ---- a database that cannot be opened
class NewerDatabase(Exception):
    """A later version wrote the database; opening it would lose data that this version does not know."""

    def __init__(self, schema: int, newest: int) -> None:
        text = f"the database is at schema {schema}, this version knows only {newest}: run the newer appliance"
        super().__init__(text)


class OlderDatabase(Exception):
    """An earlier version wrote the database, and the command that opened it must not change it."""

    def __init__(self, schema: int, newest: int) -> None:
        super().__init__(
            f"the database is of an earlier version (schema {schema}, and this version needs {newest}): "
            "start the service, or run `appliance upgrade`"
        )


class NoDatabase(Exception):
    """The database is empty, and the command that opened it must not create tables."""


class DatabaseRefused(Exception):
    """The database server cannot be used, and nothing was written; the text says why and what to do."""


UNFINISHED_COPY = "unfinished_copy"  # a table that exists while a copy into the database is unfinished


class UnfinishedCopy(Exception):
    """A copy into this database is incomplete; only the copy may continue."""

    def __init__(self) -> None:
        super().__init__(
            "`appliance store copy` into it has not been finished: run that again, with the settings of the old "
            "database, or continue with the old database"
        )
