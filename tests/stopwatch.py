"""Seconds that a program takes, without those in which it, or the test that waits for it, was kept from running.

On a busy machine a thread that could run waits for a processor, and Linux counts that time for each thread. A promise
of "within N seconds" is about the time that the program takes, so its test does not count this waiting: neither that
of the test's own thread nor that of the thread with the program's event loop. On a quiet machine there is none.
"""

import threading
import time
from pathlib import Path
from typing import Protocol


class Ending(Protocol):
    """A process that will end."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        ...


class Stopwatch:
    """Runs from when it is made, for the thread that made it and the main thread of a program."""

    def __init__(self, pid: int) -> None:
        self._waited = {thread: _seconds_waited(thread) for thread in (pid, threading.get_native_id())}
        self._waited_before = sum(self._waited.values())
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds of the clock: for promises of "not before"."""
        return time.monotonic() - self._began

    @property
    def taken(self) -> float:
        """Seconds without those in which one of the threads waited for a processor: for promises of "within"."""
        elapsed = self.elapsed
        for thread, waited in self._waited.items():
            self._waited[thread] = max(waited, _seconds_waited(thread))  # of one that has ended the last figure remains
        return elapsed - (sum(self._waited.values()) - self._waited_before)

    def exit_code(self, process: Ending, within: float) -> int:
        """Watch the program until it ends."""
        while (code := process.poll()) is None:
            assert self.taken < within, "the program has not ended"
            time.sleep(0.01)
        return code


def _seconds_waited(thread: int) -> float:
    """Seconds that a thread has waited for a processor; 0 if it has ended or the kernel does not count them."""
    try:
        return int(Path(f"/proc/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
