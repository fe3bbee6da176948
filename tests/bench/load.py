"""A load of HTTP requests from a process of its own: kept connections that each send the next request once answered.

One loop over `select` and no library, so that the load takes little of the machine that the server is measured on; and
a request that is due goes out within microseconds, where a loop over `epoll` sleeps for whole milliseconds.
"""

import argparse
import base64
import json
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from urllib.parse import urlencode

PERCENTILES = (1, *range(5, 95, 5), 95, 98, 99, 99.5, 99.9)
NEVER = float("inf")
LONGEST = 60.0  # seconds without anything to do
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Load:
    answered: int = 0
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.answered / self.seconds

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Connection:
    """One kept connection: `requests` one after the other, each once the one before is answered and it is due."""

    def __init__(self, host: str, port: int, requests: Iterator[bytes], due: Iterator[float], load: Load) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent = memoryview(b"")
        self.due = 0.0  # when the next request is, if none is waiting for its answer
        self._planned = zip(requests, due, strict=False)
        self._load = load
        self._unread = b""
        self._began = 0.0
        self._next: bytes = b""
        self.plan()

    def plan(self) -> bool:
        """Take the next request; False when there is none."""
        planned = next(self._planned, None)
        if planned is None:
            return False
        self._next, self.due = planned
        return True

    def begin(self, now: float) -> None:
        self._began, self.due = self.due or now, NEVER
        self.unsent = memoryview(self._next)
        self.send()

    def send(self) -> None:
        with suppress(BlockingIOError):
            self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def read(self) -> bool:
        received = self.socket.recv(65_536)
        if not received:
            raise ConnectionError("the server closed the connection")
        self._unread += received
        end = self._unread.find(b"\r\n\r\n") + 4
        if end < 4:
            return False
        length = _LENGTH.search(self._unread, 0, end)
        if len(self._unread) < end + (int(length[1]) if length else 0):
            return False
        self._load.latencies.append(time.perf_counter() - self._began)
        self._load.statuses[int(self._unread[9:12])] += 1
        self._load.answered += 1
        self._unread = b""
        return True


def drive(
    host: str, port: int, connections: int, seconds: float, requests: Callable[[int], Iterator[bytes]], rate: float = 0
) -> Load:
    """Send on `connections` connections for `seconds`; `requests(n)` yields the requests of the n-th.

    With a rate, so many requests are due each second, evenly, and a latency is counted from when its request was due.
    """
    load = Load()
    began = time.perf_counter()
    opened = dict[int, Connection]()
    for number in range(connections):
        due = count(began + number / rate, connections / rate) if rate else repeat(0.0)
        connection = Connection(host, port, requests(number), due, load)
        opened[connection.socket.fileno()] = connection
    idle, unsent = set(opened), set[int]()
    while True:
        now = time.perf_counter()
        for number in [number for number in idle if opened[number].due <= now]:
            idle.discard(number)
            if now > began + seconds:
                opened.pop(number).socket.close()
                continue
            opened[number].begin(now)
            if opened[number].unsent:
                unsent.add(number)
        if not opened:
            break
        soonest = min((opened[number].due for number in idle), default=now + LONGEST)
        readable, writable, _ = select.select(opened.keys() - idle, unsent, (), max(0.0, soonest - now))
        for number in writable:
            opened[number].send()
            if not opened[number].unsent:
                unsent.discard(number)
        for number in readable:
            if not opened[number].read():
                continue
            if opened[number].plan():
                idle.add(number)
            else:
                opened.pop(number).socket.close()
    load.seconds = time.perf_counter() - began
    return load


BOUNDARY = "-" * 26 + "123456789012345678901234"
FORM_TYPES = {
    "mailgun": "application/x-www-form-urlencoded",
    "mailgun-multipart": f"multipart/form-data; boundary={BOUNDARY}",
}
TEXT = "Hello Ada, your order 1234567 has left our warehouse and will be with you soon.\n" * 8
HTML = '<p style="margin:0">Hello <b>Ada</b>, your order <a href="https://example.com/o/1">1234567</a> left.</p>\n' * 12


def send_requests(
    authorization: str, run: str, recipients: int = 1, attachment: int = 0, batch: int = 0, door: str = ""
) -> Callable[[int], Iterator[bytes]]:
    """Endless POSTs of one 2 KB text+html message, each with a key of its own; with an attachment of so many bytes.

    With `batch`, each POST is a batch of so many of these messages; with `door`, it is a request of that door.
    """
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
    body = json.dumps({"emails": [message] * batch} if batch else message).encode()
    path, credential = "/emails/batch" if batch else "/emails", f"Authorization: {authorization}"
    kind = FORM_TYPES.get(door, "application/json")
    if door:
        path, credential, body = of_door(door, authorization.removeprefix("Bearer "), message)

    def requests(connection: int) -> Iterator[bytes]:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{credential}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nIdempotency-Key: {run}-{connection}-"
        ).encode()
        number = 0
        while True:
            yield head + b"%d\r\n\r\n" % number + body
            number += 1

    return requests


def multipart(fields: dict[str, object]) -> str:
    """A form as Mailgun's clients send it."""
    header = 'Content-Disposition: form-data; name="{}"'
    parts = [f"--{BOUNDARY}\r\n{header.format(name)}\r\n\r\n{value}\r\n" for name, value in fields.items()]
    return "".join(parts) + f"--{BOUNDARY}--\r\n"


def of_door(door: str, key: str, message: dict[str, object]) -> tuple[str, str, bytes]:
    """The path, the header with the key, and the body of a door's request for this message."""
    if door == "resend":
        return "/resend/emails", f"Authorization: Bearer {key}", json.dumps(message).encode()
    recipients: list[str] = message["to"]  # type: ignore[assignment]
    to = ", ".join(recipients)
    if door in FORM_TYPES:
        credential = f"Authorization: Basic {base64.b64encode(f'api:{key}'.encode()).decode()}"
        fields = message | {"to": to}
        body = urlencode(fields) if door == "mailgun" else multipart(fields)
        return "/mailgun/v3/example.com/messages", credential, body.encode()
    if door == "sendgrid":
        content = [{"type": "text/plain", "value": TEXT}, {"type": "text/html", "value": HTML}]
        mail = {
            "from": {"email": "orders@example.com", "name": "Shop"},
            "subject": message["subject"],
            "content": content,
        }
        mail["personalizations"] = [{"to": [{"email": address} for address in recipients]}]
        return "/sendgrid/v3/mail/send", f"Authorization: Bearer {key}", json.dumps(mail).encode()
    fields = {"From": message["from"], "To": to, "Subject": message["subject"], "TextBody": TEXT, "HtmlBody": HTML}
    return "/postmark/email", f"X-Postmark-Server-Token: {key}", json.dumps(fields).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float, help="at most")
    parser.add_argument("authorization")
    parser.add_argument("--rate", type=float, default=0, help="requests a second; without it as fast as it is answered")
    parser.add_argument("--each", type=int, help="requests of a connection; without it endless")
    parser.add_argument("--recipients", type=int, default=1)
    parser.add_argument("--attachment", type=int, default=0, help="bytes")
    parser.add_argument("--batch", type=int, default=0, help="messages in each request; 0: none is a batch")
    parser.add_argument("--door", default="", help="requests of this door instead of our own")
    given = parser.parse_args()
    requests = send_requests(
        given.authorization, f"{time.time_ns()}", given.recipients, given.attachment, given.batch, given.door
    )
    began = time.perf_counter()
    load = drive(
        given.host,
        given.port,
        given.connections,
        given.seconds,
        lambda number: islice(requests(number), given.each),
        given.rate,
    )
    summary = {
        "began": began,  # by the clock of all processes
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
