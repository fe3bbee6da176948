"""The queue as operators and customers see it: how much mail waits, and the state of each provider pool."""

from dataclasses import dataclass

from appliance.model.warmup import WarmupStatus


@dataclass(frozen=True, slots=True)
class WaitingMail:
    """How much mail waits for a pool, or within it for one domain."""

    pool: str | None  # None: not looked up yet
    domain: str | None  # None: all of the pool
    due: int  # its time has come
    deferred: int  # to be tried later
    oldest_at: int  # acceptance of the oldest message
    next_attempt_at: int | None  # of what is deferred


@dataclass(frozen=True, slots=True)
class AllWaiting:
    """How much mail waits in all, by recipients, simulated mail too."""

    due: int
    deferred: int
    oldest_at: int | None  # acceptance of the oldest message


@dataclass(frozen=True, slots=True)
class PoolHold:
    """A pool whose mail is held, and why; an automatic hold has a time at which one message goes as a probe.

    Servers judge the address that mail comes from, so of several nodes each has automatic holds of its own.
    """

    pool: str
    reason: str
    held_at: int
    probe_at: int | None = None  # None: set by the operator, who alone ends it
    probes: int = 0  # that reached a server, and were not delivered
    node: str = ""  # whose mail alone is held; none: that of all nodes

    @property
    def by_node(self) -> str:
        """That it is of one node alone, in words that follow "held"."""
        return f" by node {self.node}" if self.node else ""


@dataclass(frozen=True, slots=True)
class SlowedAccount:
    """An account whose mail to a pool waits, because the servers there throttle it; or for a session."""

    account_id: str
    until: int  # none of its mail begins before
    reason: str
    slots: int = 1  # that it has from then on; 0: the pool has one for it, but there is no session

    @property
    def waits_for_session(self) -> bool:
        return self.slots == 0


@dataclass(frozen=True, slots=True)
class PoolState:
    pool: str
    in_use: int
    allowed: int
    slowed_until: int | None
    slowed_by: str | None
    updated_at: int
    rate: int | None = None  # messages a minute, as long as that is what its mail waits for
    slowed_accounts: tuple[SlowedAccount, ...] = ()

    def is_slowed(self, now: int) -> bool:
        """Whether servers have asked for less, of all mail to the pool or of single accounts' mail."""
        slowed = any(not account.waits_for_session for account in self.slowed_accounts)
        return slowed or (self.slowed_until or 0) > now


@dataclass(frozen=True, slots=True)
class ResumedPool:
    """What an operator lifted from a pool: holds, and a slow-down that the servers of the pool had asked for."""

    holds: tuple[PoolHold, ...] = ()
    slowed: PoolState | None = None

    @property
    def was_held(self) -> bool:
        return bool(self.holds) or self.slowed is not None


@dataclass(frozen=True, slots=True)
class PoolView:
    """What is known of a pool: no name for a domain not looked up yet, no state before the server has used it."""

    name: str | None = None
    hold: PoolHold | None = None
    state: PoolState | None = None
    pause: PoolHold | None = None  # of all mail
    warmups: tuple[WarmupStatus, ...] = ()  # under way at this pool
    for_operator: bool = True  # else without what concerns other accounts' mail, our addresses and the shell
    slowed: SlowedAccount | None = None  # the account whose mail it is, if that alone is slowed down
    node_holds: tuple[PoolHold, ...] = ()  # each for the mail of one node

    def hold_on(self, node: str) -> PoolHold | None:
        """The hold that keeps back what this node delivers."""
        return self.hold or next((hold for hold in self.node_holds if hold.node == node), None)
