"""In charge of telling the service manager how we are: ready, reloading, stopping, and still turning (sd_notify).

Whoever started us names a datagram socket in $NOTIFY_SOCKET; where nobody did, nothing is sent. See sd_notify(3).
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
    """Where it listens (None: there is none), and how often it wants to hear that the event loop turns."""

    address: bytes | None = None
    beat_every: float | None = None  # seconds

    def ready(self, status: str) -> None:
        """Every listener is open; also the end of a reload."""
        self._tell("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """One line that `systemctl status` shows."""
        self._tell(f"STATUS={text}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        """The end has begun."""
        self._tell("STOPPING=1", f"STATUS={status}")

    async def beat(self) -> None:
        """Say for ever that the event loop turns: from the loop itself, so that a stuck one falls silent."""
        while self.beat_every is not None:
            self._tell("WATCHDOG=1")
            await trio.sleep(self.beat_every)

    def _tell(self, *assignments: str) -> None:
        if self.address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that does not read must not stop the mail
                sender.sendto("\n".join(assignments).encode(), self.address)
        except OSError as error:
            log.warning("the service manager cannot be told", what=assignments[0], reason=str(error))


def service_manager(environ: Mapping[str, str]) -> ServiceManager:
    """The one that started us, as it says in the environment."""
    name = os.fsencode(environ.get(SOCKET, ""))
    if name[:1] == b"@":  # an abstract name, which begins with a NUL
        return ServiceManager(b"\0" + name[1:], _beat_every(environ))
    if name[:1] == b"/":
        return ServiceManager(name, _beat_every(environ))
    if name:
        log.warning("the service manager's socket is of an unknown kind", name=environ[SOCKET])
    return ServiceManager()


def _beat_every(environ: Mapping[str, str]) -> float | None:
    """Half of what the manager allows, as sd_watchdog_enabled(3) advises."""
    # The single binary unpacks itself in a process of its own, the one that the manager knows: our parent.
    ours = (str(os.getpid()), str(os.getppid()))
    if environ.get(WATCHDOG_PROCESS, ours[0]) not in ours:
        return None
    allowed = environ.get(WATCHDOG, "")
    return int(allowed) / SECOND / 2 if allowed.isascii() and allowed.isdigit() and int(allowed) else None
