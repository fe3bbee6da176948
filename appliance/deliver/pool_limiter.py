"""Limits of one pool: slots, a rate, slow-downs that its servers ask for, and the reason to hold it. No I/O.

Slots and rate:
- a transaction takes a slot and, if the pool has a rate, a token;
- results not yet on disk are limited to the number of slots, so a crash repeats at most two transactions per slot;
- a request for less mail halves the slots and stops new transactions for a pause, which doubles each time;
- deliveries reopen the pool: one more slot per full round of slots. Once all slots are back, the pause is short again.

A verdict counts for the limiter of the server that gave it (`PoolLimiters.at`), and only as far as the evidence goes,
because an account can provoke any reply to its own mail:

| verdict of the server | about mail from | effect |
|---|---|---|
| slow down, before MAIL: about this machine | any account | slows the pool |
| slow down, later: about this mail | one account of several | slows that account's mail to the pool |
| | a second account while the first is slowed | slows the pool |
| | the only account | slows the pool |
| 5.7.x, 10 in a row | several accounts, at most 5 counted for each | holds the pool |
| | one account of several | limits that account to one transaction every 15 minutes |
| | the only account, at an organisation's own servers | holds the pool |
| | the only account, to two or more domains of a provider | holds the pool |
| 5.7.x, before MAIL or with our address | any account, from a source | holds the pool for that source |
| 5.7.x, 30 in a row | the only account, to one domain of a provider | holds the pool |

In a row means without a delivery in between, by the pool or by the account; after a week without a verdict the count
starts again.

`feedback/reply_rules.toml` decides which verdicts slow a pool and which count as refusals. A 4xx without a reason, such
as unnamed greylisting, slows the account only if the same verdict (code and status) meets two recipients to whom the
pool accepted the account's mail before, without a delivery of the account's mail in between.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from appliance.concurrency.fair_share import LOW_TURN
from appliance.deliver.providers import PoolLimits
from appliance.model.queue import SlowedAccount
from appliance.model.sources import pool_and_source
from appliance.times import DAY, SECOND

FIRST_PAUSE = 15 * SECOND
LONGEST_PAUSE = 15 * 60 * SECOND
SENDER_FAULTS = 10  # in a row: one refused message may be bad luck, ten mean a blocked server
OF_ONE_ACCOUNT = 5  # refusals counted for one account of several
OF_ONE_DOMAIN = 30  # in a row from one domain of a provider: they may be that domain's policy alone
REPEATED = 2  # recipients accepted before that meet the same verdict: it is not about one of them
REPEATS_KEPT = 8  # verdicts remembered of an account, each with its recipients
VERDICTS_KEPT_FOR = 7 * DAY  # after the last one; otherwise a destination that never accepts mail keeps its limiter


class JudgedSender(NamedTuple):
    account: str
    domain: str  # of the recipients
    only: bool = False  # the installation has no other account


class Throttle(Struct):
    """Slots that shrink when a server asks for less mail, and grow again with deliveries."""

    limit: int
    allowed: float  # slots usable now
    slowed_until: int = 0
    slowed_by: str | None = None
    _pause: int = FIRST_PAUSE

    @property
    def slots(self) -> int:
        return max(1, int(self.allowed))

    def is_slowed(self, now: int) -> bool:
        """A pause longer than the longest one means that the clock was set back, and does not count."""
        return now < self.slowed_until <= now + LONGEST_PAUSE

    def slow_down(self, now: int, reason: str) -> None:
        """A server asked for less mail; requests during a pause count once."""
        self.slowed_by = reason
        if self.is_slowed(now):
            return
        self.allowed = max(1.0, self.allowed / 2)
        self.slowed_until = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def shut(self, now: int, reason: str) -> None:
        """Allow one transaction after the longest pause, and the next after another one."""
        self.slowed_by, self.slowed_until = reason, now + LONGEST_PAUSE
        self.allowed, self._pause = 1.0, LONGEST_PAUSE

    def delivered(self) -> None:
        if self.allowed < self.limit:
            self.allowed = min(self.limit, self.allowed + 1 / self.slots)
        else:
            self._pause, self.slowed_by = FIRST_PAUSE, None

    def is_at_rest(self, now: int) -> bool:
        return self.slowed_by is None or abs(now - self.slowed_until) >= LONGEST_PAUSE


@dataclass(slots=True)
class _Standing:
    """An account whose mail the servers of the pool refused or slowed."""

    throttle: Throttle
    faults: int = 0  # in a row
    domains: set[str] = field(default_factory=set)  # whose servers refused it


@dataclass(slots=True)
class PoolLimiter:
    """The limits of one pool, for mail from one source. `shared`: a provider's pool, with many customers' domains."""

    pool: str  # with the source, as in model/sources.py
    limits: PoolLimits
    shared: bool = False
    start: int | None = None  # initial slots, if not all
    provider: str | None = None  # whose host name this limiter has while no server has answered there
    nodes: Callable[[], int] | None = (
        None  # that share the limits, if any; a provider limits each address, so each node
    )
    in_use: int = 0
    unrecorded: int = 0  # finished transactions whose results are not on disk yet
    hold_reason: str | None = None  # set once the pool must be held
    base: str = field(init=False)  # the pool's name without the source
    source: str = field(init=False)
    throttle: Throttle = field(init=False)
    _of_account: dict[str, int] = field(default_factory=dict)  # slots in use, never 0
    _standings: dict[str, _Standing] = field(default_factory=dict)  # by account
    _faults: Counter[str] = field(default_factory=Counter)  # refusals in a row, by account; "" is about this machine
    # By account: verdicts without a reason, and the recipients accepted before that met them.
    _repeats: dict[str, dict[tuple[int | None, str | None], set[int]]] = field(default_factory=dict)
    _verdict_at: int = 0  # the last one that `_faults`, `_repeats` or a standing remembers
    _tokens: float = 0.0
    _tokens_at: int = 0

    def __post_init__(self) -> None:
        self.base, self.source = pool_and_source(self.pool)
        self.lift()
        self._tokens = float(self.limits.per_minute or 0)

    def _nodes(self) -> int:
        return 1 if self.shared or self.nodes is None else self.nodes()

    @property
    def slots(self) -> int:
        slots = int(self.throttle.allowed)
        return max(1, slots if self.shared or self.nodes is None else slots // self.nodes())

    @property
    def rate(self) -> float | None:
        """Messages a minute allowed on this node; None: no limit."""
        return None if self.limits.per_minute is None else self.limits.per_minute / self._nodes()

    # ---- slots

    def is_open(self, now: int) -> bool:
        """Whether another transaction may begin, if its account is not slowed."""
        slots = self.slots
        return (
            self.in_use < slots
            and self.unrecorded < slots
            and self.hold_reason is None
            and not self.throttle.is_slowed(now)
            and (self.limits.per_minute is None or self.has_token(now))
        )

    def lets_pass(self, account: str, now: int) -> bool:
        """Whether an account's transaction may begin, if the limiter is open."""
        standing = self._standings.get(account)
        if standing is None:
            return True
        return not standing.throttle.is_slowed(now) and self._of_account.get(account, 0) < standing.throttle.slots

    def is_at_rest(self, now: int) -> bool:
        """Whether this limiter can be dropped and made again without losing anything."""
        rate = self.rate
        used = rate is not None and self.has_token(now) and self._tokens < max(1.0, rate)
        if self.in_use or self.unrecorded or used or not self.throttle.is_at_rest(now):
            return False
        remembers = self._faults or self._repeats or any(standing.faults for standing in self._standings.values())
        if remembers and abs(now - self._verdict_at) < VERDICTS_KEPT_FOR:
            return False
        return all(standing.throttle.is_at_rest(now) for standing in self._standings.values())

    def enter(self, account: str, now: int) -> None:
        self.in_use += 1
        self._of_account[account] = self._of_account.get(account, 0) + 1
        if self.limits.per_minute is not None and self.has_token(now):
            self._tokens -= 1

    def leave(self, account: str) -> None:
        """Return the slot; the outcome is still to be recorded."""
        self._free(account)
        self.unrecorded += 1

    def leave_unused(self, account: str) -> None:
        """Return slot and token: the transaction goes to a server of another pool."""
        self._free(account)
        self._return_token()

    def undo(self) -> None:
        """After `leave`: the session ended without an attempt, so there is no outcome and the token is returned."""
        self.unrecorded -= 1
        self._return_token()

    def _free(self, account: str) -> None:
        self.in_use -= 1
        if count := self._of_account.pop(account) - 1:
            self._of_account[account] = count

    def slowed_accounts(self, now: int) -> list[SlowedAccount]:
        """The accounts whose mail alone is delayed here: by a pause, or because all their slots are in use."""
        return [
            SlowedAccount(account, throttle.slowed_until, throttle.slowed_by or "", throttle.slots)
            for account, throttle in sorted((key, standing.throttle) for key, standing in self._standings.items())
            if not self.lets_pass(account, now)
        ]

    # ---- verdicts of servers

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
        """A server asked for less mail; `about_us`: before it knew whose mail it was."""
        is_another_slowed = any(
            account != sender.account and standing.throttle.is_slowed(now)
            for account, standing in self._standings.items()
        )
        if about_us or sender.only or is_another_slowed:
            self.throttle.slow_down(now, reason)
        else:
            self._standing(sender.account).throttle.slow_down(now, reason)

    def repeats(self, now: int, account: str, verdict: tuple[int | None, str | None], recipient: int) -> bool:
        """Add a recipient that was accepted before; return whether the verdict has met enough of them."""
        self._note_verdict(now)
        verdicts = self._repeats.setdefault(account, {})
        if verdict not in verdicts and len(verdicts) >= REPEATS_KEPT:
            verdicts.clear()
        recipients = verdicts.setdefault(verdict, set())
        if len(recipients) < REPEATED:
            recipients.add(recipient)
        return len(recipients) >= REPEATED

    def refused_as_sender(
        self, now: int, reply: str, status: str, sender: JudgedSender, *, about_us: bool, about_source: bool = False
    ) -> None:
        """A server refused this sender. The hold's reason has only `status`: a reply may quote an account's address.

        One refusal of a source's address is enough to hold its mail, because other sources can take it.
        """
        self._note_verdict(now)
        self._faults["" if about_us else sender.account] += 1
        count = sum(count if account == "" else min(count, OF_ONE_ACCOUNT) for account, count in self._faults.items())
        if not about_us:
            standing = self._standing(sender.account)
            standing.faults += 1
            if len(standing.domains) < 2:  # more than one is all that matters
                standing.domains.add(sender.domain)
            is_one_domain = sender.only and self.shared and len(standing.domains) == 1
            if standing.faults >= (OF_ONE_DOMAIN if is_one_domain else SENDER_FAULTS):
                if sender.only:
                    count = standing.faults
                else:
                    standing.throttle.shut(now, reply)
        if about_source:
            self.hold_reason = f"a server refuses mail from the source {self.source} with {status}"
        elif count >= SENDER_FAULTS and self.hold_reason is None:
            self.hold_reason = f"{count} refusals in a row of mail from this server, the last with {status}"

    def reopen(self) -> None:
        self._faults.clear()
        self._standings.clear()
        self.hold_reason = None

    def lift(self) -> None:
        """Forget every verdict: the operator resumed the pool."""
        self.reopen()
        self._repeats.clear()
        self.throttle = Throttle(self.limits.concurrency, float(self.start or self.limits.concurrency))

    def _note_verdict(self, now: int) -> None:
        if now - self._verdict_at >= VERDICTS_KEPT_FOR:
            self._faults.clear()
            self._repeats.clear()
            for standing in self._standings.values():
                standing.faults = 0
                standing.domains.clear()
        self._verdict_at = now

    def _standing(self, account: str) -> _Standing:
        if (standing := self._standings.get(account)) is None:
            limit = self.limits.concurrency
            standing = self._standings[account] = _Standing(Throttle(limit, float(limit)))
        return standing

    # ---- the rate

    def has_token(self, now: int) -> bool:
        if (rate := self.rate) is None:
            return True
        elapsed = max(0, now - self._tokens_at)
        self._tokens = min(max(1.0, rate), self._tokens + elapsed * rate / (60 * SECOND))  # 1: a rate may be below it
        self._tokens_at = now
        return self._tokens >= 1

    def has_spare_token(self, now: int) -> bool:
        """Whether mail with low priority may take a token: it leaves a tenth of them for other mail."""
        return self.has_token(now) and (self.rate is None or self._tokens >= min(self.rate, 1 + self.rate / LOW_TURN))

    def _return_token(self) -> None:
        if (rate := self.rate) is not None:
            self._tokens = min(max(1.0, rate), self._tokens + 1)
