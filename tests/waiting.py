"""Waiting for a condition, with a limit that a busy machine meets."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0  # seconds


def wait_until(condition: Callable[[], object], within: float = PATIENCE, why: Callable[[], object] = str) -> None:
    """Look often; `why` tells what is the case instead."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


def wait_until_read(connection: socket.socket) -> None:
    """Until the program at the other end of a TCP connection has read all that was sent to it."""
    here, there = (f":{port:04X}" for port in (connection.getsockname()[1], connection.getpeername()[1]))

    def is_read() -> bool:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = line.split()
            if local.endswith(there) and remote.endswith(here):
                return queues.endswith(":00000000")
        return False

    wait_until(is_read)
