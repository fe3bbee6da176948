"""A load of SMTP transactions from a process of its own: sessions that each begin the next step once answered.

    smtp_load.py HOST PORT SESSIONS SECONDS kept|new [USERNAME PASSWORD]

One epoll loop and no library, so that a Python client stays far cheaper than the server it measures. `smtp-source` does
the same, but cannot authenticate.
"""

import base64
import json
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

MESSAGE = (
    b"From: Shop <orders@example.com>\r\nTo: ada@example.net\r\nSubject: On its way\r\n"
    b"Date: Mon, 2 Mar 2026 10:00:00 +0000\r\nMessage-ID: <load@example.com>\r\n\r\n"
    + b"Hello Ada, your order 1234567 has left our warehouse and will be with you soon.\r\n" * 24
    + b".\r\n"
)
TRANSACTION = (b"MAIL FROM:<orders@example.com>\r\n", b"RCPT TO:<ada@example.net>\r\n", b"DATA\r\n", MESSAGE)


@dataclass
class Load:
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)


def steps(credential: bytes, load: Load, *, kept: bool) -> Iterator[bytes]:
    """What one connection sends, each after the reply to the one before."""
    yield b"EHLO load.example.com\r\n"
    if credential:
        yield b"AUTH PLAIN " + credential + b"\r\n"
    while True:
        began = time.perf_counter()
        yield from TRANSACTION
        load.latencies.append(time.perf_counter() - began)
        load.answered += 1
        if not kept:
            yield b"QUIT\r\n"
            return


class Session:
    def __init__(self, target: tuple[str, int], credential: bytes, load: Load, *, kept: bool) -> None:
        self._target = target
        self._credential = credential
        self._load = load
        self._kept = kept
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(self._target)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._steps = steps(self._credential, self._load, kept=self._kept)
        self._unread = b""

    def readable(self) -> bool:
        """Take what has come and send the next step; False at the end of the connection."""
        self._unread += self.socket.recv(65_536)
        if not self._unread:
            return False
        last = self._unread.rstrip(b"\r\n").rpartition(b"\n")[2]
        if not self._unread.endswith(b"\n") or last[3:4] == b"-":
            return True
        if last[:1] not in b"23":
            self._load.refused[last.decode("ascii", "replace")] += 1
            return False
        self._unread = b""
        following = next(self._steps, None)
        if following is None:
            return False
        self.socket.sendall(following)
        return True


def drive(target: tuple[str, int], sessions: int, seconds: float, credential: bytes, *, kept: bool) -> Load:
    load = Load()
    poll = select.epoll()
    until = time.perf_counter() + seconds
    opened = {}
    for _ in range(sessions):
        session = Session(target, credential, load, kept=kept)
        opened[session.socket.fileno()] = session
        poll.register(session.socket.fileno(), select.EPOLLIN)
    while time.perf_counter() < until:
        for number, _ in poll.poll(1):
            session = opened[number]
            if session.readable():
                continue
            del opened[number]
            poll.unregister(number)
            session.socket.close()
            session.connect()
            opened[session.socket.fileno()] = session
            poll.register(session.socket.fileno(), select.EPOLLIN)
    for session in opened.values():
        session.socket.close()
    return load


def main() -> None:
    host, port, sessions, seconds, kind, *login = sys.argv[1:]
    credential = base64.b64encode("\0".join(["", *login]).encode()) if login else b""
    began = time.perf_counter()
    load = drive((host, int(port)), int(sessions), float(seconds), credential, kept=kind == "kept")
    ordered = sorted(load.latencies) or [0.0]
    summary = {
        "began": began,  # by the clock of all processes
        "rate": load.answered / float(seconds),
        "answered": load.answered,
        "refused": dict(load.refused),
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
