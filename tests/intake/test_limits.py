"""The limits of intake: requests a second of each credential, and the bytes an account may keep."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.config.values import MIB, Share
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.intake.limits import LEAST_SHARE, SHARE_KEPT, FreeSpace, Quota, RequestRate, share_of
from appliance.times import SECOND


@dataclass
class Clock:
    """The time, which tests move."""

    now: int = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        """The time."""
        return self.now


def taken(rate: RequestRate, credential: str, tries: int) -> int:
    """How many of so many requests are let through."""
    passed = 0
    for _ in range(tries):
        try:
            rate.take(credential)
            passed += 1
        except Refused:
            pass
    return passed


def test_a_burst_is_twice_the_rate_and_then_the_rate_holds() -> None:
    """Twenty at once, then ten a second."""
    clock = Clock()
    rate = RequestRate(10, Environment(now=clock))
    assert taken(rate, "key:1", 100) == 20
    clock.now += SECOND
    assert taken(rate, "key:1", 100) == 10
    clock.now += 3600 * SECOND
    assert taken(rate, "key:1", 100) == 20


def test_the_refusal_says_when_there_is_room() -> None:
    """Who waits as long as told is let in."""
    clock = Clock()
    rate = RequestRate(1, Environment(now=clock))
    assert taken(rate, "key:1", 2) == 2
    with pytest.raises(Refused) as refused:
        rate.take("key:1")
    assert refused.value.code is Code.RATE_LIMITED
    assert refused.value.retry_after == 1
    clock.now += refused.value.retry_after * SECOND
    rate.take("key:1")


def test_refused_requests_cost_nothing() -> None:
    """Asking in vain does not push the next turn further away."""
    clock = Clock()
    rate = RequestRate(10, Environment(now=clock))
    taken(rate, "key:1", 10_000)
    clock.now += SECOND // 2
    assert taken(rate, "key:1", 100) == 5


def test_each_credential_has_its_own() -> None:
    """One that is at its limit takes nothing from another."""
    rate = RequestRate(10, Environment(now=Clock()))
    taken(rate, "key:1", 100)
    assert taken(rate, "key:2", 100) == 20


def test_zero_is_no_limit() -> None:
    """The operator can turn it off."""
    rate = RequestRate(0, Environment(now=Clock()))
    assert taken(rate, "key:1", 10_000) == 10_000


def test_a_burst_of_its_own_and_a_slow_rate() -> None:
    """What may come at once need not follow from the rate, which may be less than one a second."""
    clock = Clock()
    rate = RequestRate(0.2, Environment(now=clock), burst=30, refusal="Wait.")
    assert taken(rate, "account", 100) == 30
    with pytest.raises(Refused, match="Wait") as refused:
        rate.take("account")
    assert refused.value.retry_after == 5
    clock.now += 10 * SECOND
    assert taken(rate, "account", 100) == 2


def test_a_clock_that_jumps_back_lends_nothing_and_takes_nothing() -> None:
    """Two days back and forth leave each credential with what it had, at most a burst."""
    clock = Clock()
    rate = RequestRate(10, Environment(now=clock))
    assert taken(rate, "key:1", 15) == 15
    clock.now -= 2 * 86_400 * SECOND
    assert taken(rate, "key:1", 100) == 5
    clock.now += SECOND
    assert taken(rate, "key:1", 100) == 10


def test_only_so_many_credentials_are_remembered() -> None:
    """The longest unused go first; one that is in use stays limited."""
    rate = RequestRate(10, Environment(now=Clock()), remembered=10)
    taken(rate, "busy", 100)
    for number in range(1000):
        rate.take(f"key:{number}")
        assert taken(rate, "busy", 1) == 0
    assert len(rate._buckets) == 10


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 30)), max_size=30), st.integers(1, 20))
def test_no_pattern_gets_more_than_its_share(pattern: list[tuple[int, int]], per_second: int) -> None:
    """Whatever the rhythm: never more than a burst and the rate over the time that has passed."""
    clock, passed, waited = Clock(), 0, 0
    rate = RequestRate(per_second, Environment(now=clock))
    for pause, tries in pattern:
        clock.now += pause
        waited += pause
        passed += taken(rate, "key:1", tries)
        assert passed <= 2 * per_second + waited * per_second / SECOND + 1e-6


GIB = 1024 * MIB


def quota(directory: Path, setting: Share, *, min_bytes: int = 0, min_percent: int = 0, now: list[int]) -> Quota:
    """A quota for a database in this directory."""
    return Quota(setting, FreeSpace(directory, min_bytes, min_percent, Environment(now=lambda: now[0])))


def test_a_size_is_that_size_and_0_none(tmp_path: Path) -> None:
    """Neither asks the file system."""
    nowhere = tmp_path / "nowhere"
    assert quota(nowhere, Share(bytes=5 * GIB), now=[0]).bytes() == 5 * GIB
    assert quota(nowhere, Share(), now=[0]).bytes() is None


@pytest.mark.parametrize(("fillable", "expected"), [(100 * GIB, 25 * GIB), (1, LEAST_SHARE), (-5 * GIB, LEAST_SHARE)])
def test_a_share_is_of_what_mail_may_fill(fillable: int, expected: int) -> None:
    """On a disk that is nearly full already an account still has the least there is."""
    assert share_of(25, fillable) == expected


def test_what_the_database_takes_counts_as_free(tmp_path: Path) -> None:
    """An account's own mail does not make its quota smaller, and the watermark is not for it."""
    facts = os.statvfs(tmp_path)
    free = facts.f_bavail * facts.f_frsize
    empty = quota(tmp_path, Share(percent=50), now=[0]).bytes()
    assert empty == pytest.approx(free // 2, rel=0.05)
    with (tmp_path / "appliance.db").open("wb") as database:
        database.truncate(100 * GIB)  # a hole: nothing is written
    full = quota(tmp_path, Share(percent=50), now=[0]).bytes()
    assert full == pytest.approx(free // 2 + 50 * GIB, rel=0.05)
    below = quota(tmp_path, Share(percent=50), min_bytes=60 * GIB, now=[0]).bytes()
    assert below == pytest.approx(free // 2 + 20 * GIB, rel=0.05)


def test_it_looks_now_and_then_and_after_a_reload(tmp_path: Path) -> None:
    """Most messages cost no system call; another setting counts at once."""
    now = [1_000_000_000]
    limit = quota(tmp_path, Share(percent=50), now=now)
    first = limit.bytes()
    with (tmp_path / "appliance.db").open("wb") as database:
        database.truncate(100 * GIB)
    assert limit.bytes() == first
    now[0] += SHARE_KEPT
    assert limit.bytes() != first
    limit.adopt(Share(bytes=7))
    assert limit.bytes() == 7
