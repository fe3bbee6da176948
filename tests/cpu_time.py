"""CPU time of short work, as a quiet machine would take it: for tests of what may hold the event loop.

A busy host counts the time it takes from a machine as that of the thread that ran, two threads of one core slow each
other, and an older processor is slower anyway: the same work can take three times as long. So a fixed piece of Python
runs before and after each try, and where both took longer than on the quiet machine for which the limits are set, the
try counts for as much less. The least of some tries is the result.
"""

import sys
import time
from collections.abc import Callable

_QUIET = 0.85e-3  # seconds that `_fixed` takes on that machine, by Debian 12's Python; a faster one is not held to less


def cpu_seconds(work: Callable[[], object], tries: int = 5) -> float:
    """The least of some tries; what `work` raises is raised."""
    return _least(lambda: _taken(work), tries)


def longest_hold(work: Callable[[], object], tries: int = 3) -> float:
    """The longest time between two calls or returns in Python: in it no other thread gets the interpreter lock."""
    return _least(lambda: _held(work), tries)


def slowness() -> float:
    """How many times as long as the quiet machine this one takes now."""
    return max(1.0, min(_taken(_fixed) for _ in range(5)) / _QUIET)


def _least(measured: Callable[[], float], tries: int) -> float:
    least = float("inf")
    for _ in range(tries):
        before = _taken(_fixed)
        taken = measured()
        slowness = max(1.0, min(before, _taken(_fixed)) / _QUIET)
        least = min(least, taken / slowness)
    return least


def _held(work: Callable[[], object]) -> float:
    longest, began = 0.0, time.thread_time()

    def note(*_event: object) -> None:
        nonlocal longest, began
        longest = max(longest, time.thread_time() - began)
        began = time.thread_time()

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return longest


def _taken(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _fixed() -> int:
    """Calls, numbers and strings, like the code that is measured."""
    found = 0
    for number in range(4_000):
        text = str(number)
        if text.startswith("1") and len(text) > 1:
            found += int(text)
    return found
