"""How much mail one pool takes at the moment: slots, rate, slowing down when asked, and when to stop. No I/O.

Slots and rate:
- a transaction takes a slot and, where the pool has a rate, a token;
- as many results as there are slots may wait for the disk, so that a crash repeats no more than two for each slot;
- a request for less halves the slots and lets nothing pass for a while, twice as long each time;
- every delivery opens it a little: one slot more for each full round of slots, and the next pause is a short one again
  once all slots are back.

What a server says counts for the limiter of that server (`PoolLimiters.at`), and only as far as the evidence reaches,
because one account can bring about any answer to its own mail:

| the server says | of mail from | what waits |
|---|---|---|
| a verdict that slows, before MAIL: about this machine | any account | the pool |
| a verdict that slows, later: about this mail | one account of several | that account's mail to the pool |
| | a second account while the first one waits for that | the pool |
| | the only account there is | the pool |
| 5.7.x, 10 in a row | several accounts, each counted up to 5 times | the pool is held |
| | one account of several | that account's mail: one transaction every 15 minutes |
| | the only account, to one organisation's own servers | the pool is held |
| | the only account, to two domains or more of a provider | the pool is held |
| 5.7.x, 30 in a row | the only account, to one domain of a provider | the pool is held |

In a row means without a delivery between them: in the pool, or of the account.

Which verdicts slow and which count as refusals stands in `feedback/reply_rules.toml`. A 4xx without a reason, such as
an unnamed greylisting, slows only once the same verdict (code and status) met two recipients that servers of the pool
accepted from the account before, without a delivery of the account's mail between them.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.deliver.providers import PoolLimits
from appliance.model.queue import SlowedAccount
from appliance.report.explain import QUOTED_REPLY
from appliance.times import SECOND

FIRST_PAUSE = 15 * SECOND
LONGEST_PAUSE = 15 * 60 * SECOND
SENDER_FAULTS = 10  # in a row: one wrong message is bad luck, ten are a blocked server
OF_ONE_ACCOUNT = 5  # of them count from one account of several
OF_ONE_DOMAIN = 30  # in a row from one domain of a provider: it may be that domain's opinion alone
REPEATED = 2  # recipients accepted before that meet the same verdict: it is not about one of them
REPEATS_KEPT = 8  # of an account, each with its recipients


class JudgedSender(NamedTuple):
    account: str
    domain: str  # the recipients'
    only: bool = False  # there is no other account


@dataclass(slots=True)
class Throttle:
    """Slots that shrink when less is asked for, and grow again with deliveries."""

    limit: int
    allowed: float  # slots that may be used now
    slowed_until: int = 0
    slowed_by: str | None = None
    _pause: int = FIRST_PAUSE

    @property
    def slots(self) -> int:
        return max(1, int(self.allowed))

    def is_slowed(self, now: int) -> bool:
        """Not if that were for longer than any pause: then the clock was set back."""
        return now < self.slowed_until <= now + LONGEST_PAUSE

    def slow_down(self, now: int, reason: str) -> None:
        """A server asked for less. What is said during a pause counts once."""
        self.slowed_by = reason
        if self.is_slowed(now):
            return
        self.allowed = max(1.0, self.allowed / 2)
        self.slowed_until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def shut(self, now: int, reason: str) -> None:
        """Let one transaction start after the longest pause, and the next after another one."""
        self.slowed_by, self.slowed_until = reason, now + LONGEST_PAUSE
        self.allowed, self._pause = 1.0, LONGEST_PAUSE

    def delivered(self) -> None:
        """A server took a message: allow a little more."""
        if self.allowed < self.limit:
            self.allowed = min(self.limit, self.allowed + 1 / self.slots)
        else:
            self._pause, self.slowed_by = FIRST_PAUSE, None

    def is_at_rest(self, now: int) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        return self.slowed_by is None or abs(now - self.slowed_until) >= LONGEST_PAUSE


@dataclass(slots=True)
class _Standing:
    """What is remembered of an account whose mail the servers of the pool have refused or slowed."""

    throttle: Throttle
    faults: int = 0  # in a row
    domains: set[str] = field(default_factory=set)  # of these faults


@dataclass(slots=True)
class PoolLimiter:
    """The limits of one pool. `shared`: a provider's pool, with the domains of many customers."""

    pool: str
    limits: PoolLimits
    shared: bool = False
    start: int | None = None  # slots to begin with, if not all
    provider: str | None = None  # whose host this is named like, without a proof; None: the pool is what it says
    nodes: Callable[[], int] = lambda: 1  # that share the limits; a provider's are for each address, so for each node
    in_use: int = 0
    unrecorded: int = 0  # transactions that are over, and whose results are not on disk yet
    hold_reason: str | None = None  # why the pool should be held, once it should
    throttle: Throttle = field(init=False)
    _of_account: dict[str, int] = field(default_factory=dict)  # slots in use; none of 0
    _standings: dict[str, _Standing] = field(default_factory=dict)  # of accounts with something to remember
    _faults: Counter[str] = field(default_factory=Counter)  # refusals in a row, by account; "" is about this machine
    # By account: verdicts without a reason, and the recipients accepted before that met them.
    _repeats: dict[str, dict[tuple[int | None, str | None], set[int]]] = field(default_factory=dict)
    _tokens: float = 0.0
    _tokens_at: int = 0

    def __post_init__(self) -> None:
        self.lift()
        self._tokens = float(self.limits.per_minute or 0)

    def _nodes(self) -> int:
        return 1 if self.shared else self.nodes()

    @property
    def slots(self) -> int:
        """Transactions that this node may have at once."""
        return max(1, self.throttle.slots // self._nodes())

    @property
    def rate(self) -> float | None:
        """Messages a minute that this node may send; None: as fast as it goes."""
        return None if self.limits.per_minute is None else self.limits.per_minute / self._nodes()

    # ---- slots

    def is_open(self, now: int) -> bool:
        """Whether one more transaction may begin, of an account that has nothing against it."""
        slots = self.slots
        return (
            self.in_use < slots
            and self.unrecorded < slots
            and self.hold_reason is None
            and not self.throttle.is_slowed(now)
            and self.has_token(now)
        )

    def lets_pass(self, account: str, now: int) -> bool:
        """Whether an account's transaction may begin, if the limiter is open."""
        standing = self._standings.get(account)
        if standing is None:
            return True
        return not standing.throttle.is_slowed(now) and self._of_account.get(account, 0) < standing.throttle.slots

    def is_at_rest(self, now: int) -> bool:
        """Whether nothing would be lost if this limiter were forgotten and made anew."""
        rate = self.rate
        used = rate is not None and self.has_token(now) and self._tokens < max(1.0, rate)
        remembers = self._faults or self._repeats
        at_rest = self.throttle.is_at_rest(now) and not (self.in_use or self.unrecorded or remembers or used)
        return at_rest and all(
            standing.throttle.is_at_rest(now) and not standing.faults for standing in self._standings.values()
        )

    def enter(self, account: str, now: int) -> None:
        self.in_use += 1
        self._of_account[account] = self._of_account.get(account, 0) + 1
        if self.limits.per_minute is not None and self.has_token(now):
            self._tokens -= 1

    def leave(self, account: str) -> None:
        """Give the slot back; the outcome is still to be recorded."""
        self.go_elsewhere(account)
        self.unrecorded += 1

    def go_elsewhere(self, account: str) -> None:
        """Give the slot back: nothing will be recorded."""
        self.in_use -= 1
        if left := self._of_account.pop(account) - 1:
            self._of_account[account] = left

    def slowed_accounts(self, now: int) -> list[SlowedAccount]:
        """The accounts whose mail alone waits here: for a pause to end, or for the few slots they are left with."""
        return [
            SlowedAccount(account, throttle.slowed_until, throttle.slowed_by or "", throttle.slots)
            for account, throttle in sorted((each, standing.throttle) for each, standing in self._standings.items())
            if not self.lets_pass(account, now)
        ]

    # ---- what servers say

    def delivered(self, account: str) -> None:
        if self._faults:
            self._faults.clear()
        if self._repeats:
            self._repeats.pop(account, None)
        if (standing := self._standings.get(account)) is not None:
            standing.faults = 0
            standing.domains.clear()
            standing.throttle.delivered()
            if standing.throttle.slowed_by is None:
                del self._standings[account]
        self.throttle.delivered()

    def slow_down(self, now: int, reason: str, sender: JudgedSender, *, about_us: bool) -> None:
        """A server asked for less; `about_us`: before it knew whose mail it would get."""
        others = any(
            account != sender.account and standing.throttle.is_slowed(now)
            for account, standing in self._standings.items()
        )
        if about_us or sender.only or others:
            self.throttle.slow_down(now, reason)
        else:
            self._standing(sender.account).throttle.slow_down(now, reason)

    def repeats(self, account: str, verdict: tuple[int | None, str | None], recipient: int) -> bool:
        """Whether a verdict has now met enough recipients that were accepted before; `recipient` is one more."""
        verdicts = self._repeats.setdefault(account, {})
        if verdict not in verdicts and len(verdicts) >= REPEATS_KEPT:
            verdicts.clear()
        recipients = verdicts.setdefault(verdict, set())
        if len(recipients) < REPEATED:
            recipients.add(recipient)
        return len(recipients) >= REPEATED

    def refused_as_sender(self, now: int, reason: str, sender: JudgedSender, *, about_us: bool) -> None:
        self._faults["" if about_us else sender.account] += 1
        count = sum(count if account == "" else min(count, OF_ONE_ACCOUNT) for account, count in self._faults.items())
        if not about_us:
            standing = self._standing(sender.account)
            standing.faults += 1
            if len(standing.domains) < 2:  # more than one is all that matters
                standing.domains.add(sender.domain)
            alone = sender.only and self.shared and len(standing.domains) == 1
            if standing.faults >= (OF_ONE_DOMAIN if alone else SENDER_FAULTS):
                if sender.only:
                    count = standing.faults
                else:
                    standing.throttle.shut(now, reason)
        if count >= SENDER_FAULTS:
            self.hold_reason = f"{count} refusals of us as a sender in a row{QUOTED_REPLY}{reason}"

    def reopen(self) -> None:
        """Forget the reason to hold the pool."""
        self._faults.clear()
        self._standings.clear()
        self.hold_reason = None

    def lift(self) -> None:
        """Forget every reason to hold or slow the pool: the operator wants its mail to go."""
        self.reopen()
        self._repeats.clear()
        self.throttle = Throttle(self.limits.concurrency, float(self.start or self.limits.concurrency))

    def _standing(self, account: str) -> _Standing:
        if (standing := self._standings.get(account)) is None:
            limit = self.limits.concurrency
            standing = self._standings[account] = _Standing(Throttle(limit, float(limit)))
        return standing

    # ---- the rate

    def has_token(self, now: int) -> bool:
        if (rate := self.rate) is None:
            return True
        # At least one, or a part of less than one a minute would never let anything pass.
        most = max(1.0, rate)
        self._tokens = min(most, self._tokens + max(0, now - self._tokens_at) * rate / (60 * SECOND))
        self._tokens_at = now
        return self._tokens >= 1
