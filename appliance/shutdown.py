"""Divides `server.shutdown_timeout` among the services, and ends a process that does not stop within it.

Connections are served in the first part, deliveries in flight finish in the second, and the third is for closing the
store. After the timeout the process exits even if a thread is busy, because a thread cannot be cancelled. That is as
safe as `kill -9`: SQLite commits whole transactions, nothing is acknowledged before its commit, and interrupted
deliveries are retried.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from appliance.telemetry.log import flush, get_logger

CONNECTIONS_PART = 0.75  # of shutdown_timeout, for requests and messages being received
DELIVERY_PART = 0.9  # of it, until SMTP transactions are aborted
EXIT_CODE = 1  # a failure, for the service manager
CAUSE_CHARACTERS = 1_000  # of the error that started the stop

log = get_logger("supervisor")


@dataclass(slots=True)
class Shutdown:
    """One stop: not started, or with a deadline by which the process exits."""

    timeout: float  # seconds
    exit_process: Callable[[int], None] = os._exit
    _started_at: float | None = None
    _cause: str | None = None  # the error that started it
    _started: threading.Event = field(default_factory=threading.Event, repr=False)
    _done: threading.Event = field(default_factory=threading.Event, repr=False)

    def __post_init__(self) -> None:
        # From the start: a process without memory cannot create a thread.
        threading.Thread(target=self._watch, name="shutdown", daemon=True).start()

    def begin(self) -> None:
        """Start the timeout; a thread counts it, so that it also ends a blocked event loop."""
        if self._started_at is None:
            self._started_at = trio.current_time()
            self._started.set()

    @contextmanager
    def begun_by_errors(self) -> Iterator[None]:
        """Start a stop for an error in this block, or in another service, which cancels this block."""
        try:
            yield
        except BaseException as error:
            if self._started_at is None:
                cancelled = isinstance(error, trio.Cancelled)
                self._cause = "an error in another service" if cancelled else repr(error)[:CAUSE_CHARACTERS]
                self.begin()
            raise

    def done(self) -> None:
        self._done.set()
        self._started.set()

    def until(self, part: float) -> float:
        """Return when this part of the timeout ends, on Trio's clock; infinity before a stop."""
        return float("inf") if self._started_at is None else self._started_at + self.timeout * part

    def _watch(self) -> None:
        self._started.wait()
        if not self._done.wait(self.timeout):
            self._force()

    def _force(self) -> None:
        ours = (threading.main_thread(), threading.current_thread())
        running = [thread.name for thread in threading.enumerate() if thread not in ours]
        why = {} if self._cause is None else {"cause": self._cause}
        log.error("stopped by force: shutdown_timeout exceeded", threads=sorted(running)[:20], **why)
        flush()  # bounded: a log without a reader delays the exit only briefly
        self.exit_process(EXIT_CODE)
