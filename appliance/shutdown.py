"""Divides `server.shutdown_timeout` among the services, and ends a process that does not stop within it.

Connections are served for the first part, deliveries in flight finish in the second, and the rest is for closing the
store. After the timeout the process exits, whatever still runs: a thread cannot be cancelled, and some input could keep
one busy. That is as safe as `kill -9`: SQLite commits whole transactions, nothing is acknowledged before its commit,
and what was being sent is sent again.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from appliance.telemetry.log import flush, get_logger

CONNECTIONS_PART = 0.75  # of shutdown_timeout, for requests and messages being received
DELIVERY_PART = 0.9  # of it, until transactions with mail servers are abandoned
EXIT_CODE = 1  # a failure, for the service manager
CAUSE_CHARACTERS = 1_000  # of the error that began a stop

log = get_logger("supervisor")


@dataclass(slots=True)
class Shutdown:
    """One stop: not begun, or with a deadline by which the process has exited.

    The thread that watches it is there from the beginning: a process that is out of memory cannot start one.
    """

    timeout: float  # seconds
    exit_process: Callable[[int], None] = os._exit
    _began: float | None = None
    _cause: str | None = None  # the error that began it, if one did
    _begun: threading.Event = field(default_factory=threading.Event, repr=False)
    _done: threading.Event = field(default_factory=threading.Event, repr=False)

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, name="shutdown", daemon=True).start()

    def begin(self) -> None:
        """Count the time from now on; in a thread, so that it also ends a blocked event loop."""
        if self._began is None:
            self._began = trio.current_time()
            self._begun.set()

    @contextmanager
    def begun_by_errors(self) -> Iterator[None]:
        """An error in here or, which cancels this, in another service begins a stop, bounded like any other.

        Without memory what such a stop waits for may have been lost.
        """
        try:
            yield
        except BaseException as error:
            if self._began is None:
                cancelled = isinstance(error, trio.Cancelled)
                self._cause = "an error in another service" if cancelled else repr(error)[:CAUSE_CHARACTERS]
                self.begin()
            raise

    def done(self) -> None:
        self._done.set()
        self._begun.set()

    def until(self, part: float) -> float:
        """When this part of the timeout is over, on Trio's clock; infinite before a stop has begun."""
        return float("inf") if self._began is None else self._began + self.timeout * part

    def _watch(self) -> None:
        self._begun.wait()
        if not self._done.wait(self.timeout):
            self._force()

    def _force(self) -> None:
        ours = (threading.main_thread(), threading.current_thread())
        running = [thread.name for thread in threading.enumerate() if thread not in ours]
        why = {} if self._cause is None else {"cause": self._cause}
        log.error("stopped by force: something still ran after shutdown_timeout", threads=sorted(running)[:20], **why)
        flush()  # bounded: a log without a reader delays the exit only briefly
        self.exit_process(EXIT_CODE)
