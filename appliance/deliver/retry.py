"""In charge of when a recipient is tried again. PURE."""

from collections.abc import Callable, Sequence

JITTER = 0.1  # of a delay, to either side: what was deferred together need not come back together


def next_attempt(now: int, attempts: int, delays: Sequence[float], random: Callable[[], float]) -> int | None:
    """When to try again after so many attempts (microseconds); None when they are used up.

    `delays` are the seconds before the second attempt, the third and so on; `random` gives numbers from 0 to 1.
    """
    if attempts > len(delays):
        return None
    factor = 1 - JITTER + 2 * JITTER * random()
    return now + round(delays[attempts - 1] * factor * 1_000_000)
