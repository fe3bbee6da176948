"""The CPU time of a 429, against that of an accepted message, in one run.

    .venv/bin/python -m tests.bench.refuse

Both sides get the same 2 KB messages on four connections, in turns: one appliance has no request rate, the other allows
one request a second. A client connects again when the server closes. Each side is measured twice: with a request that
leaves in one piece, and with a body that follows its head in a second packet. The CPU time is that of the appliance's
process, threads and delivery to the sandbox included.
"""

import argparse
import os
import socket
import statistics
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.load import send_requests
from tests.running_appliance import Running, appliance

CONNECTIONS = 4
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(running: Running) -> float:
    assert running.process is not None
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Client:
    """A connection that is opened again whenever the server has closed it."""

    def __init__(self, running: Running) -> None:
        parts = urlsplit(running.url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._socket: socket.socket | None = None
        self._requests = send_requests(f"Bearer {running.account.send_key}", uuid.uuid4().hex)(0)

    def post(self, *, in_one_piece: bool) -> int:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=20)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = next(self._requests)
        head = len(request) if in_one_piece else request.index(b"\r\n\r\n") + 4
        self._socket.sendall(request[:head])
        if not in_one_piece:
            time.sleep(0.0005)
            with suppress(ConnectionError):  # refused by its head
                self._socket.sendall(request[head:])
        answer = b""
        while b"\r\n\r\n" not in answer or len(answer) < _end(answer):
            answer += self._socket.recv(65_536)
        if b"\r\nconnection: close" in answer.lower():
            self._socket.close()
            self._socket = None
        return int(answer[9:12])


def _end(answer: bytes) -> int:
    head, _, _ = answer.lower().partition(b"\r\n\r\n")
    return len(head) + 4 + int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def measure(running: Running, requests: int, *, in_one_piece: bool) -> tuple[float, Counter[int]]:
    clients = [Client(running) for _ in range(CONNECTIONS)]
    before = cpu_seconds(running)
    statuses = Counter(clients[number % CONNECTIONS].post(in_one_piece=in_one_piece) for number in range(requests))
    return 1e6 * (cpu_seconds(running) - before) / requests, statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1_000, help="of each round")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as free,
        tempfile.TemporaryDirectory() as narrow,
        appliance(Path(free), fresh=True) as accepting,
        appliance(Path(narrow), fresh=True, requests_per_second=1) as refusing,
    ):
        for in_one_piece in (True, False):
            costs: dict[str, list[float]] = {"202": [], "429": []}
            for _ in range(options.rounds):
                for running, status in ((accepting, "202"), (refusing, "429")):
                    cost, statuses = measure(running, options.requests, in_one_piece=in_one_piece)
                    assert statuses[int(status)] > 0.9 * options.requests, statuses
                    costs[status].append(cost)
            accepted, refused = (statistics.median(costs[status]) for status in ("202", "429"))
            name = "in one piece" if in_one_piece else "body in a second packet"
            print(f"{name:<24} 202: {accepted:5.0f} µs   429: {refused:5.0f} µs   ratio {refused / accepted:.2f}")


if __name__ == "__main__":
    main()
