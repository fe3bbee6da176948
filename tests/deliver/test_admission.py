"""Which due mail is taken from the store: by the pool, the account, what is pending already, and holds."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from appliance.deliver.due_mail import Envelope
from appliance.deliver.pending import (
    FEW_PENDING,
    PENDING_OF_NEW,
    PENDING_OF_ONE,
    PENDING_PER_POOL,
    PENDING_WITH_RETRIES,
    UNROUTED_NEW,
    Admission,
    Pending,
)
from appliance.deliver.pool_limiters import UNROUTED
from appliance.model.mail import DueRecipient


@dataclass
class Pools:
    """Routes of domains, and held pools."""

    held: set[str] = field(default_factory=set)
    probes: set[str] = field(default_factory=set)
    limit: int = 10**9  # of the warm-up

    def pool_of(self, domain: str) -> str:
        """As `PoolLimiters.pool_of`; domains that begin with x have no known route."""
        return UNROUTED if domain.startswith("x") else domain

    def is_held(self, pool: str) -> bool:
        """As `PoolLimiters.is_held`."""
        return pool in self.held

    def may_probe(self, pool: str, account: str) -> bool:
        """As `PoolLimiters.may_probe`."""
        return pool in self.probes

    def pending_limit(self, pool: str) -> int:
        """As `Warmup.pending_limit`."""
        return self.limit


def envelope(account: str, domain: str, *, tries: int = 0) -> Envelope:
    """One message to one recipient."""
    sender = "shop@example.com"
    recipient = DueRecipient("r", "m", account, f"ada@{domain}", domain, tries, None, None, sender, "s", 1, 1, sender)
    return Envelope("m", account, domain, (recipient,))


def admission(pending: dict[tuple[str, str], int], pools: Pools | None = None) -> Admission:
    """With so many pending envelopes by pool and account."""
    counts, states = Pending(), pools or Pools()
    for (pool, account), number in pending.items():
        for _ in range(number):
            counts.add(pool, account)
    return Admission(counts, states, states)


class Case(NamedTuple):
    """Account "me" asks for domain a.test, or for x.test, which has no route."""

    pending: dict[tuple[str, str], int]
    is_taken: bool
    domain: str = "a.test"
    tries: int = 0
    pools: Pools = Pools()


FULL = {("a.test", "other"): PENDING_PER_POOL}
DUE = {
    "nothing is pending": Case({}, True),
    "the pool is full": Case({("a.test", "me"): PENDING_PER_POOL}, False),
    "the pool is full of others' mail": Case(FULL, True),
    "the account has its minimum": Case({**FULL, ("a.test", "me"): PENDING_OF_ONE}, False),
    "a retry to a full pool": Case({("a.test", "me"): PENDING_PER_POOL}, True, tries=1),
    "a retry, with very much pending": Case({("a.test", "me"): PENDING_WITH_RETRIES}, False, tries=1),
    "a warm-up permits few": Case({("a.test", "me"): PENDING_OF_ONE}, False, pools=Pools(limit=5)),
    "the pool is held": Case({}, False, pools=Pools(held={"a.test"})),
    "the pool is held, and a probe is due": Case({}, True, pools=Pools({"a.test"}, {"a.test"})),
    "a probe is pending": Case({("a.test", "me"): 1}, False, pools=Pools({"a.test"}, {"a.test"})),
    "no route, one account": Case({(UNROUTED, "me"): PENDING_PER_POOL * 4 // 5}, False, "x.test"),
    "no route, another account": Case({(UNROUTED, "other"): PENDING_PER_POOL * 4 // 5}, True, "x.test"),
}


@pytest.mark.parametrize("name", DUE)
def test_due_mail(name: str) -> None:
    """Mail that is not taken is remembered as left, so that polls read it once there is room."""
    case = DUE[name]
    made = admission(case.pending, case.pools)
    pool = made.pool_for_due(envelope("me", case.domain, tries=case.tries))
    assert (pool == case.pools.pool_of(case.domain)) == case.is_taken
    assert (pool is None) == made.has_left != case.is_taken
    if not case.tries:
        assert made.may_take("me", case.domain) == case.is_taken


@pytest.mark.parametrize(
    ("pending", "domain", "is_behind", "expected"),
    [
        ({}, "a.test", False, "a.test"),
        ({("a.test", "me"): PENDING_PER_POOL}, "a.test", False, "a.test"),
        ({("a.test", "me"): PENDING_OF_NEW}, "a.test", False, None),
        ({("a.test", "me"): 1}, "a.test", True, None),
        ({("b.test", "me"): 1}, "a.test", True, "a.test"),
        ({}, "x.test", True, UNROUTED_NEW),
        ({(UNROUTED_NEW, "me"): PENDING_OF_NEW}, "x.test", False, None),
    ],
)
def test_new_mail(pending: dict[tuple[str, str], int], domain: str, is_behind: bool, expected: str | None) -> None:
    """Mail in memory never passes older mail of its account and pool; unrouted mail has its own room."""
    assert admission(pending).pool_for_new(envelope("me", domain), is_behind=is_behind) == expected


def test_new_mail_does_not_pass_mail_left_in_the_store() -> None:
    """Only for the pool and the account whose mail was left."""
    made = admission({("a.test", "me"): 1, ("a.test", "other"): 1})
    made.leave("a.test", "me")
    assert made.pool_for_new(envelope("me", "a.test"), is_behind=False) is None
    assert made.pool_for_new(envelope("other", "a.test"), is_behind=False) == "a.test"
    made.forget_left()
    assert made.pool_for_new(envelope("me", "a.test"), is_behind=False) == "a.test"


@pytest.mark.parametrize(
    ("pending", "left", "is_behind", "held", "expected"),
    [
        (0, None, False, False, False),
        (0, "a.test", False, False, True),
        (0, "b.test", False, False, False),
        (0, UNROUTED_NEW, False, False, True),
        (FEW_PENDING, "a.test", False, False, False),
        (FEW_PENDING, None, True, False, False),
        (FEW_PENDING - 1, None, True, False, True),
        (0, "a.test", False, True, False),
    ],
)
def test_room_for_mail_that_was_left(
    pending: int, left: str | None, is_behind: bool, held: bool, expected: bool
) -> None:
    """When an envelope for a.test ends, a poll is worth it if its pool, or one without a route, has room."""
    made = admission({("a.test", "me"): pending}, Pools({"a.test"} if held else set()))
    if left is not None:
        made.leave(left, "me")
    assert made.should_poll("me", "a.test", is_behind=is_behind) == expected
