"""A wall clock that tests set while a forked program runs, by a file that says how many seconds it is ahead.

Unlike libfaketime it leaves `time.sleep` alone, which that library makes fail once the monotonic clock is not set too.
"""

import time
from pathlib import Path

CLOCK_FILE = "TESTS_CLOCK_FILE"  # in the environment
SEEN_WITHIN = 0.05  # seconds


def set_clock(file: Path, seconds: int) -> None:
    """Set the clock of programs that use this file: so far ahead of the right time."""
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)  # so that no process reads half of it


def use_clock(file: Path) -> None:
    right, ahead, read_at = time.time_ns, 0, -SEEN_WITHIN

    def time_ns() -> int:
        nonlocal ahead, read_at
        if (now := time.monotonic()) >= read_at + SEEN_WITHIN:
            ahead, read_at = int(file.read_text()) * 1_000_000_000, now
        return right() + ahead

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1_000_000_000
