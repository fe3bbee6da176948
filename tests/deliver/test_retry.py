"""When a recipient is tried again: twelve attempts in two days, none at the same moment as its neighbours."""

from random import Random

import pytest

from appliance.config.settings import DeliverySettings
from appliance.deliver.retry import next_attempt

DELAYS = DeliverySettings().retry_delays
HOUR = 3_600_000_000  # microseconds


def attempts(random: float) -> list[int]:
    """The times of all attempts, from 0, with randomness that always says the same."""
    times = [0]
    while (at := next_attempt(times[-1], len(times), DELAYS, lambda: random)) is not None:
        times.append(at)
    return times


def test_twelve_attempts_in_48_hours() -> None:
    """The default schedule has 12 attempts and ends 48 hours after the first."""
    times = attempts(0.5)
    assert len(times) == 12
    assert times[-1] == 48 * HOUR
    assert times[1] == 5 * 60_000_000


@pytest.mark.parametrize(("random", "hours"), [(0.0, 43.2), (1.0, 52.8)])
def test_jitter_is_a_tenth_to_either_side(random: float, hours: float) -> None:
    """Each delay is at most a tenth shorter or longer."""
    assert attempts(random)[-1] == pytest.approx(hours * HOUR)


def test_jitter_spreads() -> None:
    """A thousand deferrals of the same moment come back spread over the whole of the jitter."""
    random = Random(1).random
    times = sorted(next_attempt(0, 1, [100], random) or 0 for _ in range(1000))
    assert times[0] >= 90_000_000
    assert times[-1] <= 110_000_000
    assert times[-1] - times[0] > 19_000_000


@pytest.mark.parametrize("made", [3, 4, 100])
def test_used_up(made: int) -> None:
    """After the last attempt there is no next one."""
    assert next_attempt(0, made, [1, 1], lambda: 0.5) is None


def test_no_delay() -> None:
    """A delay of nothing means at once."""
    assert next_attempt(7, 1, [0], lambda: 1.0) == 7
