"""A load generator of its own process: keep-alive connections that each send the next request once answered."""

import asyncio
import base64
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat

PERCENTILES = (1, *range(5, 95, 5), 95, 98, 99, 99.5, 99.9)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Load:
    """What a run saw."""

    answered: int = 0
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds

    def percentile(self, share: float) -> float:
        """A latency in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _connection(
    host: str, port: int, requests: Iterator[bytes], load: Load, until: float, due: Iterator[float]
) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for request, at in zip(requests, due, strict=False):
            if at:
                await asyncio.sleep(at - time.perf_counter())
            began = at or time.perf_counter()
            if began > until:
                return
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            load.latencies.append(time.perf_counter() - began)
            load.statuses[int(head[9:12])] += 1
            load.answered += 1
    finally:
        writer.close()


async def drive(
    host: str, port: int, connections: int, seconds: float, requests: Callable[[int], Iterator[bytes]], rate: float = 0
) -> Load:
    """Send on `connections` connections for `seconds`; `requests(n)` yields the requests of the n-th.

    With a rate, so many requests are due each second, evenly, and a latency is counted from when its request was due.
    """
    load = Load()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            due = count(began + number / rate, connections / rate) if rate else repeat(0.0)
            group.create_task(_connection(host, port, requests(number), load, began + seconds, due))
    load.seconds = time.perf_counter() - began
    return load


TEXT = "Hello Ada, your order 1234567 has left our warehouse and will be with you soon.\n" * 8
HTML = '<p style="margin:0">Hello <b>Ada</b>, your order <a href="https://example.com/o/1">1234567</a> left.</p>\n' * 12


def send_requests(
    authorization: str, run: str, path: str = "/emails", recipients: int = 1, attachment: int = 0
) -> Callable[[int], Iterator[bytes]]:
    """Endless POSTs of one 2 KB text+html message, each with a key of its own; with an attachment of so many bytes."""
    message: dict[str, object] = {
        "from": "Shop <orders@example.com>",
        "to": [f"ada{number or ''}@example.net" for number in range(recipients)],
        "subject": "On its way",
        "text": TEXT,
        "html": HTML,
    }
    if attachment:
        content = base64.b64encode(bytes(range(256)) * (attachment // 256)).decode()
        message["attachments"] = [{"filename": "bill.bin", "content": content}]
    body = json.dumps(message).encode()

    def requests(connection: int) -> Iterator[bytes]:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: {run}-{connection}-"
        ).encode()
        number = 0
        while True:
            yield head + b"%d\r\n\r\n" % number + body
            number += 1

    return requests


def main() -> None:
    """`load.py HOST PORT CONNECTIONS SECONDS RUN PATH AUTHORIZATION [RATE]`: one JSON line with what was seen."""
    host, port, connections, seconds, run, path, authorization, *rate = sys.argv[1:]
    requests = send_requests(authorization, run, path)
    load = asyncio.run(drive(host, int(port), int(connections), float(seconds), requests, *map(float, rate)))
    summary = {
        "rate": load.rate,
        "answered": load.answered,
        "statuses": dict(load.statuses),
        "p50_ms": load.percentile(0.5),
        "p99_ms": load.percentile(0.99),
        "percentiles_ms": [(share, load.percentile(share / 100)) for share in PERCENTILES],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
