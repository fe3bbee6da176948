"""A service manager's end of the socket that programs tell their state to."""

import os
import socket
import time

WITHIN = 20.0  # seconds


class Manager:
    """systemd's end of the socket."""

    def __init__(self) -> None:
        self.name = f"@appliance-e2e-{os.getpid()}-{time.monotonic_ns()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.name.replace("@", "\0", 1))
        self.socket.settimeout(WITHIN)

    def next(self, *, skipping: str = "WATCHDOG=1") -> str:
        while (told := self.socket.recv(4096).decode()) == skipping:
            pass
        return told
