"""When the store is polled next, and for what: the table of `next_poll`, row by row."""

from dataclasses import replace
from math import inf

import pytest

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.deliver.pending import POLL_AT_ONCE, POLL_SOON, Poll, PollState, next_poll

NOW = 1_000.0
ALL_EVERY = 1.0
# Everything was read just now, and there is nothing to do.
REST = PollState(polled_at=NOW, polled_all_at=NOW, checked_at=NOW, is_requested=False)
BUSY = replace(REST, is_short=False)  # enough envelopes are pending
LATER = NOW + ALL_EVERY + 0.5

TABLE = [
    # a poll is asked for
    (replace(REST, is_requested=True), NOW, POLL_AT_ONCE, Poll.NEW),
    (replace(REST, is_requested=True), NOW + POLL_AT_ONCE, 0.0, Poll.NEW),
    (replace(BUSY, is_requested=True), NOW, POLL_SOON, Poll.NEW),
    (replace(BUSY, is_requested=True, has_room=True), NOW, POLL_AT_ONCE, Poll.NEW),
    (replace(BUSY, is_requested=True, polled_at=NOW + 0.98), NOW + 0.98, 0.02, Poll.ALL),
    (replace(REST, is_requested=True), LATER, 0.0, Poll.ALL),
    (replace(REST, is_requested=True, polled_at=LATER), LATER, 0.0, Poll.ALL),
    # a recipient is due
    (replace(REST, due_in=30.0), NOW, 30.0, Poll.ALL),
    (replace(REST, due_in=0.5), NOW, 0.5, Poll.NEW),
    (replace(REST, due_in=-5.0), NOW, POLL_AT_ONCE, Poll.NEW),
    (replace(BUSY, due_in=-5.0), NOW, POLL_SOON, Poll.NEW),
    (replace(REST, due_in=600.0), NOW, SLEEP_LIMIT, Poll.ALL),
    # due mail was left in the store
    (replace(BUSY, has_left=True), NOW, ALL_EVERY, Poll.ALL),
    (replace(BUSY, has_left=True, polled_at=LATER), LATER, 0.0, Poll.ALL),
    (replace(BUSY, has_left=True, is_requested=True), NOW, POLL_SOON, Poll.NEW),
    # ready mail waits for a session
    (replace(BUSY, has_ready=True), NOW, ALL_EVERY, Poll.LIMITERS),
    (replace(BUSY, has_ready=True, checked_at=NOW - 5), NOW, 0.0, Poll.LIMITERS),
    (replace(BUSY, has_ready=True, checked_at=NOW - 5, is_requested=True), NOW + POLL_SOON, 0.0, Poll.NEW),
    (replace(BUSY, has_ready=True, checked_at=NOW - 5, is_requested=True), NOW, 0.0, Poll.LIMITERS),
    (replace(BUSY, has_ready=True, has_left=True), NOW, ALL_EVERY, Poll.ALL),
    # always
    (REST, NOW, SLEEP_LIMIT, Poll.ALL),
    (BUSY, NOW + 20, SLEEP_LIMIT - 20, Poll.ALL),
    (REST, NOW + 2 * SLEEP_LIMIT, 0.0, Poll.ALL),
    (PollState(), 0.0, 0.0, Poll.ALL),  # at the start
]


@pytest.mark.parametrize(("state", "now", "seconds", "poll"), TABLE)
def test_the_earliest_reason_decides(state: PollState, now: float, seconds: float, poll: Poll) -> None:
    """Each row of the table gives its time and what is read then; of several the earliest counts."""
    until, what = next_poll(state, now, ALL_EVERY)
    assert until == pytest.approx(seconds)
    assert what is poll


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("due_in", [-1.0, 0.2, 100.0, inf])
def test_no_sleep_is_too_long(few: bool, asked: bool, left: bool, waiting: bool, due_in: float) -> None:
    """Whatever holds, something is read within a minute, and never at once after everything was."""
    state = replace(REST, is_short=few, is_requested=asked, has_left=left, has_ready=waiting, due_in=due_in)
    seconds, _ = next_poll(state, NOW, ALL_EVERY)
    assert seconds + 1e-9 >= POLL_AT_ONCE
    assert seconds <= SLEEP_LIMIT
