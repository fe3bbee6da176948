"""The queue for operators and customers: queued mail, and the state of each provider pool."""

from msgspec import Struct

from appliance.model.warmup import WarmupStatus


class WaitingMail(Struct, frozen=True):
    pool: str | None  # None: not looked up yet
    domain: str | None  # None: all of the pool
    due: int  # ready for delivery
    deferred: int  # waiting for a retry
    oldest_at: int  # acceptance time of the oldest message
    next_attempt_at: int | None  # of deferred recipients


class AllWaiting(Struct, frozen=True):
    due: int
    deferred: int
    oldest_at: int | None  # acceptance time of the oldest message


class PoolHold(Struct, frozen=True):
    """A held pool; an automatic hold sends one message as a probe at `probe_at`.

    Servers judge the source address, so each node has its own automatic holds.
    """

    pool: str
    reason: str
    held_at: int
    probe_at: int | None = None  # None: the operator holds it
    probes: int = 0  # that reached a server and failed
    node: str = ""  # empty: all nodes

    @property
    def by_node(self) -> str:
        return f" by node {self.node}" if self.node else ""


class SlowedAccount(Struct, frozen=True):
    """An account whose mail to a pool is throttled by the servers, or waits for a session."""

    account_id: str
    until: int  # no delivery before
    reason: str
    slots: int = 1  # afterwards; 0: waiting for a session

    @property
    def waits_for_session(self) -> bool:
        return self.slots == 0


class PoolState(Struct, frozen=True):
    pool: str
    in_use: int
    allowed: int
    slowed_until: int | None
    slowed_by: str | None
    updated_at: int
    rate: int | None = None  # messages per minute, if that limits the pool
    slowed_accounts: tuple[SlowedAccount, ...] = ()

    def is_slowed(self, now: int) -> bool:
        slowed = any(not account.waits_for_session for account in self.slowed_accounts)
        return slowed or (self.slowed_until or 0) > now


class ResumedPool(Struct, frozen=True):
    holds: tuple[PoolHold, ...] = ()
    slowed: PoolState | None = None

    @property
    def was_held(self) -> bool:
        return bool(self.holds) or self.slowed is not None


class SourceView(Struct, frozen=True):
    name: str
    reason: str | None  # why it is out for a pool; None: in use


class PoolView(Struct, frozen=True):
    """A pool: no name before the domain is looked up, no state before its first use."""

    name: str | None = None
    hold: PoolHold | None = None
    state: PoolState | None = None
    pause: PoolHold | None = None  # of all mail
    warmups: tuple[WarmupStatus, ...] = ()  # active for this pool
    for_operator: bool = True  # False: without other accounts' mail, our addresses and shell commands
    slowed: SlowedAccount | None = None  # the account, if it alone is throttled
    node_holds: tuple[PoolHold, ...] = ()  # of single nodes
    sources: tuple[SourceView, ...] = ()  # of the account's stream; none: the system chooses the address

    @property
    def has_no_source(self) -> bool:
        """Whether all sources are out, so that the mail stays queued."""
        return bool(self.sources) and all(source.reason is not None for source in self.sources)

    def hold_on(self, node: str) -> PoolHold | None:
        return self.hold or next((hold for hold in self.node_holds if hold.node == node), None)
