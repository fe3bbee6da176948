"""Seconds that a program takes, without those in which it, or the test that waits for it, was kept from running.

On a busy machine a thread that could run waits for a processor, and Linux counts that time for each thread. A promise
of "within N seconds" is about the time that the program takes, so its test does not count this waiting: neither that
of the test's own thread nor that of the program's threads, any of which may hold the interpreter lock that its event
loop needs. On a quiet machine there is none.
"""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class Ending(Protocol):
    """A process that will end."""

    def poll(self) -> int | None: ...


class Stopwatch:
    """Runs from when it is made, for the thread that made it and all threads of a program."""

    def __init__(self, pid: int) -> None:
        self._program, self._own = Path(f"/proc/{pid}/task"), Path(f"/proc/{threading.get_native_id()}")
        self._waited: dict[Path, float] = {}  # seconds, by thread; of one that has ended the last figure remains
        self._waited_before = self._waited_so_far()
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def taken(self) -> float:
        """Seconds without those in which one of the threads waited for a processor: for promises of "within"."""
        return self.elapsed - (self._waited_so_far() - self._waited_before)

    def exit_code(self, process: Ending, within: float) -> int:
        while (code := process.poll()) is None:
            assert self.taken < within, "the program has not ended"
            time.sleep(0.01)
        return code

    def _waited_so_far(self) -> float:
        for thread in {self._own, *self._program.glob("*")}:
            with suppress(FileNotFoundError, ProcessLookupError):  # ended, or a kernel that does not count
                self._waited[thread] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return sum(self._waited.values())
