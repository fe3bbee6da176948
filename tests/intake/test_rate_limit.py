"""In charge of rates: a credential has its share each second and a burst of two, and is told when there is room."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.intake import rate_limit as rates_module
from appliance.intake.rate_limit import RequestRate
from appliance.outside import Outside
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
    rate = RequestRate(10, Outside(now=clock))
    assert taken(rate, "key:1", 100) == 20
    clock.now += SECOND
    assert taken(rate, "key:1", 100) == 10
    clock.now += 3600 * SECOND
    assert taken(rate, "key:1", 100) == 20


def test_the_refusal_says_when_there_is_room() -> None:
    """Who waits as long as told is let in."""
    clock = Clock()
    rate = RequestRate(1, Outside(now=clock))
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
    rate = RequestRate(10, Outside(now=clock))
    taken(rate, "key:1", 10_000)
    clock.now += SECOND // 2
    assert taken(rate, "key:1", 100) == 5


def test_each_credential_has_its_own() -> None:
    """One that is at its limit takes nothing from another."""
    rate = RequestRate(10, Outside(now=Clock()))
    taken(rate, "key:1", 100)
    assert taken(rate, "key:2", 100) == 20


def test_zero_is_no_limit() -> None:
    """The operator can turn it off."""
    rate = RequestRate(0, Outside(now=Clock()))
    assert taken(rate, "key:1", 10_000) == 10_000


def test_a_burst_of_its_own_and_a_slow_rate() -> None:
    """What may come at once need not follow from the rate, which may be less than one a second."""
    clock = Clock()
    rate = RequestRate(0.2, Outside(now=clock), burst=30, refusal="Wait.")
    assert taken(rate, "account", 100) == 30
    with pytest.raises(Refused, match="Wait") as refused:
        rate.take("account")
    assert refused.value.retry_after == 5
    clock.now += 10 * SECOND
    assert taken(rate, "account", 100) == 2


def test_a_clock_that_jumps_back_lends_nothing_and_takes_nothing() -> None:
    """Two days back and forth leave everybody with what they had, at most a burst."""
    clock = Clock()
    rate = RequestRate(10, Outside(now=clock))
    assert taken(rate, "key:1", 15) == 15
    clock.now -= 2 * 86_400 * SECOND
    assert taken(rate, "key:1", 100) == 5
    clock.now += SECOND
    assert taken(rate, "key:1", 100) == 10


def test_only_so_many_credentials_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused go first; one that is in use stays limited."""
    monkeypatch.setattr(rates_module, "BUCKETS", 10)
    rate = RequestRate(10, Outside(now=Clock()))
    taken(rate, "busy", 100)
    for number in range(1000):
        rate.take(f"key:{number}")
        assert taken(rate, "busy", 1) == 0
    assert len(rate._buckets) == 10


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 30)), max_size=30), st.integers(1, 20))
def test_no_pattern_gets_more_than_its_share(pattern: list[tuple[int, int]], per_second: int) -> None:
    """Whatever the rhythm: never more than a burst and the rate over the time that has passed."""
    clock, passed, waited = Clock(), 0, 0
    rate = RequestRate(per_second, Outside(now=clock))
    for pause, tries in pattern:
        clock.now += pause
        waited += pause
        passed += taken(rate, "key:1", tries)
        assert passed <= 2 * per_second + waited * per_second / SECOND + 1e-6
