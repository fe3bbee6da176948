"""Notifies the service manager: ready, reloading, stopping, and watchdog keep-alives (sd_notify(3)).

The manager sets $NOTIFY_SOCKET to a datagram socket; without it nothing is sent.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from appliance.telemetry.log import get_logger
from appliance.times import SECOND

SOCKET, WATCHDOG, WATCHDOG_PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"

log = get_logger("notify")


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Its socket (None without a manager), and the interval of its watchdog's keep-alives."""

    address: bytes | None = None
    keepalive_interval: float | None = None  # seconds

    def ready(self, status: str) -> None:
        """All listeners are open, or a reload has ended."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """A reload starts; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    async def keep_alive(self) -> None:
        """Send keep-alives until cancelled, from the event loop: a stuck loop sends none."""
        while self.keepalive_interval is not None:
            self._send("WATCHDOG=1")
            await trio.sleep(self.keepalive_interval)

    def _send(self, *assignments: str) -> None:
        if self.address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that does not read must not block mail
                sender.sendto("\n".join(assignments).encode(), self.address)
        except OSError as error:
            log.warning("service manager not notified", what=assignments[0], reason=str(error))


def service_manager(environ: Mapping[str, str]) -> ServiceManager:
    name, timeout = os.fsencode(environ.get(SOCKET, "")), environ.get(WATCHDOG, "")
    if name[:1] not in (b"/", b"@"):
        if name:
            log.warning("unknown kind of NOTIFY_SOCKET", name=environ[SOCKET])
        return ServiceManager()
    # The single-file binary unpacks itself in another process, our parent, which the manager knows.
    ours = (str(os.getpid()), str(os.getppid()))
    microseconds = int(timeout) if timeout.isascii() and timeout.isdigit() else 0
    watched = microseconds and environ.get(WATCHDOG_PROCESS, ours[0]) in ours
    address = b"\0" + name[1:] if name[:1] == b"@" else name  # an abstract name starts with NUL
    # Half of the watchdog's timeout, as sd_watchdog_enabled(3) advises.
    return ServiceManager(address, microseconds / SECOND / 2 if watched else None)
