"""Decides which due mail delivery takes from the store, and remembers whose mail it left there. No I/O.

Accounts take turns only among pending envelopes, so no account may fill all of them. Each pool and account always has
room for its first few envelopes, and mail in memory never passes older mail of the same account and pool.
"""

from dataclasses import dataclass, field
from typing import Protocol

from appliance.concurrency.fair_share import may_take
from appliance.deliver.due_mail import Envelope
from appliance.deliver.pending import Pending
from appliance.deliver.pool_limiters import UNROUTED

PENDING_PER_POOL = 100  # envelopes of one pool, or for domains without a known route
PENDING_OF_NEW = 1_000  # envelopes in total up to which new mail is taken from memory, and need not be read later
PENDING_WITH_RETRIES = 2_000  # envelopes in total up to which retries are taken: they go before pending mail
PENDING_OF_ONE = 5  # envelopes of one account for one pool that are always taken
FEW_PENDING = 50  # envelopes, in total or of one pool, below which a poll for more is worth it at any time
UNROUTED_NEW = "*new"  # as UNROUTED, for mail from memory: older mail that is being routed must not delay it


class PoolRules(Protocol):
    """The part of `PoolLimiters` that decides."""

    def pool_of(self, domain: str) -> str: ...
    def is_held(self, pool: str) -> bool: ...
    def may_probe(self, pool: str, account: str) -> bool: ...


class PendingLimits(Protocol):
    """The part of `Warmup` that decides."""

    def pending_limit(self, pool: str) -> float: ...


@dataclass(slots=True)
class Admission:
    pending: Pending
    limiters: PoolRules
    warmup: PendingLimits
    _left: dict[str, set[str]] = field(default_factory=dict)  # by pool: accounts whose due mail was left in the store

    @property
    def has_left(self) -> bool:
        return bool(self._left)

    def leave(self, pool: str, account: str) -> None:
        """Note that due mail of an account stays in the store."""
        self._left.setdefault(UNROUTED if pool == UNROUTED_NEW else pool, set()).add(account)

    def forget_left(self) -> None:
        """A poll is about to read all due mail."""
        self._left.clear()

    def may_take(self, account: str, domain: str) -> bool:
        """Whether to read more of an account's untried mail for a domain."""
        return self._admits(account, self.limiters.pool_of(domain), PENDING_PER_POOL)

    def pool_for_due(self, envelope: Envelope) -> str | None:
        """The pool under which an envelope from the store becomes pending; None: it stays in the store."""
        pool = self.limiters.pool_of(envelope.domain)
        is_urgent = envelope.is_retry and self.pending.total < PENDING_WITH_RETRIES
        limit = PENDING_WITH_RETRIES if is_urgent else PENDING_PER_POOL
        return pool if self._admits(envelope.account_id, pool, limit) else None

    def pool_for_new(self, envelope: Envelope, *, is_behind: bool) -> str | None:
        """The same for an envelope that was just accepted; `is_behind`: the store has a backlog.

        Behind a backlog, mail for a pool without pending mail of the account is still taken: the rounds of the store
        visit one domain after the other, and a message to a healthy domain must not wait for thousands of others.
        """
        account, pool = envelope.account_id, self.limiters.pool_of(envelope.domain) or UNROUTED_NEW
        has_older = is_behind or account in self._left.get(pool, ())
        if has_older and pool != UNROUTED_NEW and self.pending.of(pool, account) > 0:
            return None
        limit = PENDING_OF_NEW if self.pending.total < PENDING_OF_NEW else PENDING_PER_POOL
        return pool if self._admits(account, pool, limit) else None

    def _admits(self, account: str, pool: str, limit: int) -> bool:
        pending, own = self.pending[pool], self.pending.of(pool, account)
        if pool in (UNROUTED, UNROUTED_NEW):
            # These envelopes wait for the name servers of their domains: no account may take all the room.
            has_room = may_take(own, limit - pending)
        else:
            has_room = pending < min(limit, self.warmup.pending_limit(pool))
        if (has_room or own < PENDING_OF_ONE) and not self.limiters.is_held(pool):
            return True
        if not pending and self.limiters.may_probe(pool, account):
            return True
        self.leave(pool, account)
        return False

    def should_poll(self, account: str, domain: str, *, is_behind: bool) -> bool:
        """Whether the end of an envelope made room for mail that was left in the store.

        Only its pool counts, and domains without a route: other pending mail may be for a server that never replies.
        """
        pool = self.limiters.pool_of(domain)
        if is_behind and self.pending[pool] < FEW_PENDING:
            return True
        return bool(self._left) and (self._has_room(pool, account) or self._has_room(UNROUTED, account))

    def _has_room(self, pool: str, account: str) -> bool:
        accounts = self._left.get(pool)
        if accounts is None or self.limiters.is_held(pool):
            return False
        has_few = account in accounts and self.pending.of(pool, account) < PENDING_OF_ONE
        return has_few or self.pending[pool] < FEW_PENDING
