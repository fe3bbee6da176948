"""When the store is polled next, and for what. Pure: no I/O, no state.

The earliest row whose condition holds decides. A poll reads everything due if the last one that did is `all_every`
seconds ago, else only what has become due since.

| condition | time |
|---|---|
| a poll is asked for, or a recipient is due; and few envelopes are pending, or a pool has room for what was left | `POLL_AT_ONCE` after the last poll |
| the same, with enough envelopes pending | `POLL_SOON` after the last poll, or when everything is to be read again |
| due mail was left in the store: its pool was full or held, or one poll could not read it all | `all_every` after everything was read |
| ready mail waits for a session: limiters open with time, and holds end | no poll; limiters are checked `all_every` after the last check |
| always | `SLEEP_LIMIT` after the last poll |
"""  # noqa: E501 - a table

from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from appliance.concurrency.wake import SLEEP_LIMIT

POLL_AT_ONCE = 0.005  # seconds: what comes in within them is read by one poll
POLL_SOON = 0.1  # seconds: there is enough to do, but it may all be for one slow pool


class Poll(Enum):
    ALL = auto()  # everything due, and the holds of pools
    NEW = auto()  # what has become due since the last poll
    LIMITERS = auto()  # no mail: the holds of pools, so that what is ready may go


@dataclass(slots=True)
class PollState:
    """What the time of the next poll depends on; times on Trio's clock."""

    polled_at: float = -inf
    polled_all_at: float = -inf
    checked_at: float = -inf  # limiters; apart from the above, for it must not put off what only a poll finds
    asked: bool = True
    room: bool = False  # a pool has room for mail that was left in the store
    due_in: float = inf  # seconds until the next recipient is due
    few: bool = True  # few envelopes are pending
    left: bool = False  # due mail was left in the store
    waiting: bool = False  # ready mail waits for a session


def next_poll(state: PollState, now: float, all_every: float) -> tuple[float, Poll]:
    """In how many seconds something is to be read, and what; 0: now."""
    all_at = state.polled_all_at + all_every
    soonest = min(state.polled_at + (POLL_AT_ONCE if state.few or state.room else POLL_SOON), all_at)
    at = min(
        soonest if state.asked else inf,
        max(now + state.due_in, soonest),
        all_at if state.left else inf,
        state.polled_at + SLEEP_LIMIT,
    )
    seconds = max(0.0, at - now)
    until_check = max(0.0, state.checked_at + all_every - now)
    if state.waiting and until_check < seconds:
        return until_check, Poll.LIMITERS
    return seconds, Poll.ALL if now + seconds >= all_at else Poll.NEW
