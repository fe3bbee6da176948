"""How a stop spends `server.shutdown_timeout`, and the end of a process that does not end in time.

Connections are served for the first part of it, deliveries in flight finish in the second, and the rest is for closing
the store. When all of it is over the process exits, whatever still runs: a thread cannot be cancelled, and a stop that
waits for one would wait for as long as its input makes it work. That is as safe as `kill -9`: SQLite commits whole
transactions, nothing is acknowledged before its commit, and what was being sent is sent again.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from appliance.telemetry.log import flush, get_logger

CONNECTIONS_PART = 0.75  # of shutdown_timeout, for requests and messages that are coming in
DELIVERY_PART = 0.9  # of it, until transactions with mail servers are left
EXIT_CODE = 1  # not in order: the service manager and its operator should know

log = get_logger("supervisor")


@dataclass(slots=True)
class Shutdown:
    """One stop: not begun, or with a deadline by which the process is gone."""

    timeout: float  # seconds
    exit_process: Callable[[int], None] = os._exit
    _began: float | None = None
    _timer: threading.Timer | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Start the clock. A thread of its own watches it, so that a blocked event loop ends as well."""
        if self._timer is not None:
            return
        self._began = trio.current_time()
        self._timer = threading.Timer(self.timeout, self._force)
        self._timer.daemon = True
        self._timer.start()

    def done(self) -> None:
        """Everything has ended by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def until(self, part: float) -> float:
        """When this part of the time is over, on Trio's clock; never before a stop has begun."""
        return float("inf") if self._began is None else self._began + self.timeout * part

    def _force(self) -> None:
        ours = (threading.main_thread(), threading.current_thread())
        running = [thread.name for thread in threading.enumerate() if thread not in ours]
        log.error("stopped by force: something still ran after shutdown_timeout", threads=sorted(running)[:20])
        flush()  # a log whose reader is stuck keeps it for a moment only
        self.exit_process(EXIT_CODE)
