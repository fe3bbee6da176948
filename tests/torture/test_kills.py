"""`kill -9` amid HTTP, submission, delivery and webhooks: nothing acknowledged is lost, nothing final is repeated."""

import pytest

from tests.torture import kills, ramp

KILLS, RAMP_KILLS, SEED = 10, 5, 9


@pytest.mark.slow
def test_kills_lose_nothing_and_repeat_only_what_was_in_flight() -> None:
    """After the last kill every message, credit, event and idempotency key is as the torture's books say."""
    _, faults = kills.run(SEED, KILLS, lambda _: None)
    assert faults == []


@pytest.mark.slow
def test_under_a_ramp_no_recipient_is_taken_by_both_routes() -> None:
    _, faults = ramp.run(SEED, RAMP_KILLS, lambda _: None)
    assert faults == []
