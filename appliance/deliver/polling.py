"""Decides when delivery reads the store, and what. No I/O."""

from enum import Enum, auto
from math import inf

from msgspec import Struct

from appliance.concurrency.wake import SLEEP_LIMIT

POLL_AT_ONCE = 0.005  # seconds; one poll reads all mail that arrives within them
POLL_SOON = 0.1  # seconds; enough envelopes are pending, but they may all be for one slow pool


class Poll(Enum):
    ALL = auto()  # all due mail, and the holds of pools
    NEW = auto()  # mail that became due since the last poll
    LIMITERS = auto()  # no mail: the holds of pools, so that ready mail can go


class PollState(Struct):
    """The inputs of `next_poll`. Times are on Trio's clock."""

    polled_at: float = -inf
    polled_all_at: float = -inf
    checked_at: float = -inf  # limiters; checking them must not delay a poll for mail
    is_requested: bool = True
    has_room: bool = False  # a pool has room for mail that was left in the store
    due_in: float = inf  # seconds until the next recipient is due
    is_short: bool = True  # few envelopes are pending
    has_left: bool = False  # due mail was left in the store
    has_ready: bool = False  # envelopes are ready, but have no session


def next_poll(state: PollState, now: float, all_every: float) -> tuple[float, Poll]:
    """Return the seconds until the next poll (0: now) and what it reads.

    The earliest row whose condition holds decides. A poll reads all due mail if the last one that did so was
    `all_every` seconds ago, else only mail that became due since the last poll.

    | condition                                             | time                                                |
    |-------------------------------------------------------|-----------------------------------------------------|
    | a poll is requested or a recipient is due, and few    | `POLL_AT_ONCE` after the last poll                  |
    | envelopes are pending or a pool has room              |                                                     |
    | the same, with enough envelopes pending               | `POLL_SOON` after it, or once `all_every` is over   |
    | due mail was left in the store: its pool was full or  | `all_every` after all due mail was read             |
    | held, or it exceeded one poll                         |                                                     |
    | envelopes are ready without a session: limiters open  | no poll; limiters are checked `all_every` after the |
    | with time, and holds end                              | last check                                          |
    | always                                                | `SLEEP_LIMIT` after the last poll                   |
    """
    all_at = state.polled_all_at + all_every
    soonest = min(state.polled_at + (POLL_AT_ONCE if state.is_short or state.has_room else POLL_SOON), all_at)
    at = min(
        soonest if state.is_requested else inf,
        max(now + state.due_in, soonest),
        all_at if state.has_left else inf,
        state.polled_at + SLEEP_LIMIT,
    )
    seconds = max(0.0, at - now)
    until_check = max(0.0, state.checked_at + all_every - now)
    if state.has_ready and until_check < seconds:
        return until_check, Poll.LIMITERS
    return seconds, Poll.ALL if now + seconds >= all_at else Poll.NEW
