"""A proxy on a loopback port that stands between a library and the appliance, injects faults, and records each request.

The faults are a list, one for each request in the order of arrival over all connections; when it is used up, requests
are passed. A request is recorded when its first byte arrives, so that one that is never read counts too. README.md
describes each fault.
"""

import email.utils
import http.client
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any
from urllib.parse import urlsplit

Fault = Mapping[str, Any]

PASS: Fault = {"pass": True}
UPSTREAM_TIMEOUT = 60.0  # seconds for the appliance
IDLE_BEFORE_CLOSE = 0.1  # seconds that a connection is kept open before it is closed unannounced
HELD = 60.0  # seconds at most that a request is held; the end of the scenario comes first
RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close() sends RST, and what was not sent is lost
LISTENERS = ("open", "closed", "full", "silent", "untrusted", "trusted")
NOT_FORWARDED = {"connection", "expect", "host", "keep-alive", "transfer-encoding", "content-length"}
LONG_TEXT = "x" * 1024


@dataclass
class Call:
    """A request as it arrived, and when its answer was sent."""

    number: int
    connection: int
    fault: Fault
    arrived: float  # by the monotonic clock, as `answered`
    method: str | None = None  # None while its head has not been read
    path: str | None = None
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""
    status: int | None = None  # of the answer, also of one that was dropped
    answered: float | None = None  # None: no whole answer was sent


@dataclass(frozen=True)
class Answer:
    """The response for the client."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def encode(self, *, chunked: bool = False) -> bytes:
        """The bytes on the wire."""
        framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(self.body)))
        lines = [f"HTTP/1.1 {self.status} {http.client.responses.get(self.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in (*self.headers, framing)]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head + (_chunks(self.body) if chunked else self.body)


def _chunks(body: bytes, size: int = 100) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def made_answer(fault: Fault) -> Answer:
    """The answer that an `answer` fault describes."""
    headers = {"Content-Type": "application/json", **fault.get("headers", {})}
    if "retry_after" in fault:
        headers["Retry-After"] = str(fault["retry_after"])
    if "retry_after_date" in fault:
        headers["Retry-After"] = email.utils.formatdate(time.time() + fault["retry_after_date"], usegmt=True)
    if "code" in fault:
        made = {"error": f"Refused: {fault['code']}.", "code": fault["code"], "request_id": "req_made_by_the_proxy"}
        body = json.dumps(made | fault.get("json", {})).encode()
    elif "json" in fault:
        body = json.dumps(fault["json"]).encode()
    else:
        body = fault.get("text", "").encode()
        headers["Content-Type"] = fault.get("headers", {}).get("Content-Type", "text/html")
    if "kibibytes" in fault:
        body = (LONG_TEXT * fault["kibibytes"]).encode()
    return Answer(fault["answer"], tuple(headers.items()), body)


def changed(answer: Answer, change: Any) -> Answer:
    """An answer with fields of its JSON replaced or added."""
    body = json.dumps(_merged(json.loads(answer.body), change)).encode()
    return Answer(answer.status, answer.headers, body)


def _merged(value: Any, change: Any) -> Any:
    """In a list every object is changed."""
    if isinstance(value, list) and isinstance(change, Mapping):
        return [_merged(item, change) for item in value]
    if isinstance(value, Mapping) and isinstance(change, Mapping):
        return {**value, **{name: _merged(value.get(name), item) for name, item in change.items()}}
    return change


class FaultProxy:
    """One listening socket with a thread for each of its connections."""

    def __init__(self, upstream: str, faults: Sequence[Fault], prefix: str = "") -> None:
        """`prefix` is the path before that of the interface; it is taken away before a request is passed."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._faults = [fault for item in faults for fault in [item] * item.get("times", 1)]
        self._prefix = prefix
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._open: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self.calls: list[Call] = []
        self.connections = 0
        self.url = ""

    @contextmanager
    def listening(self, kind: str = "open", tls: ssl.SSLContext | None = None) -> Iterator["FaultProxy"]:
        """Listen until the end of the block.

        `closed`: the port refuses connections. `full`: its queue of connections is full, so that SYNs are dropped and
        a connection is never made. `silent`: connections are made and never answered, not even a TLS handshake.
        """
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            self.url = f"{'https' if tls or kind == 'silent' else 'http'}://127.0.0.1:{port}{self._prefix}"
            if kind == "closed":
                yield self
            elif kind == "full":
                listener.listen(0)
                with _filled(port):
                    yield self
            elif kind == "silent":
                listener.listen(64)
                yield self
            else:
                listener.listen(64)
                acceptor = threading.Thread(target=self._accept, args=(listener, tls), daemon=True)
                acceptor.start()
                try:
                    yield self
                finally:
                    self._ended.set()
                    _wake(listener)
                    acceptor.join()
                    self._end_connections()

    def _end_connections(self) -> None:
        """End all connections, and wait for what the appliance is still doing: its state is looked at next."""
        for connection in self._open.values():
            _wake(connection)
        for thread in self._threads:
            thread.join(UPSTREAM_TIMEOUT)

    def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open[self.connections] = connection
            work = (connection, self.connections, tls)
            self._threads.append(threading.Thread(target=self._converse, args=work, daemon=True))
            self._threads[-1].start()

    def _converse(self, connection: socket.socket, number: int, tls: ssl.SSLContext | None) -> None:
        """Serve one connection until either side ends it. Errors of the socket are the client's business."""
        with suppress(OSError), connection:
            connection.settimeout(HELD)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = self._open[number] = tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as reader:
                while reader.peek(1) and self._serve(connection, reader, number):
                    pass

    def _serve(self, connection: socket.socket, reader: BufferedReader, number: int) -> bool:
        """Serve one request; False: the connection has ended or is to end."""
        with self._lock:
            index = len(self.calls)
            fault = self._faults[index] if index < len(self._faults) else PASS
            call = Call(index + 1, number, fault, time.monotonic())
            self.calls.append(call)
        if fault.get("reset") == "before":
            return self._reset(connection)
        if "stall" in fault:
            self._ended.wait(HELD)
            return False
        if not _read_head(call, reader):
            return False
        if "expect" in call.headers:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        _read_body(call, reader, half=fault.get("reset") == "during")
        if "reset" in fault:
            return self._reset(connection)
        answer = self._answer(call)
        call.status = answer.status
        if fault.get("drop") == "reset":
            return self._reset(connection)
        if fault.get("drop") == "close":
            return False
        return self._send(connection, call, answer)

    def _reset(self, connection: socket.socket) -> bool:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        return False

    def _answer(self, call: Call) -> Answer:
        fault = call.fault
        if "answer" in fault:
            return made_answer(fault)
        if "redirect" in fault:
            place = f"{self.url}/elsewhere"
            return Answer(fault["redirect"], (("Location", place),), b"")
        answer = self._forward(call)
        return changed(answer, fault["change"]) if "change" in fault else answer

    def _forward(self, call: Call) -> Answer:
        assert call.method is not None
        assert call.path is not None
        upstream = http.client.HTTPConnection(*self._upstream, timeout=UPSTREAM_TIMEOUT)
        try:
            headers = {name: value for name, value in call.headers.items() if name not in NOT_FORWARDED}
            upstream.request(call.method, call.path.removeprefix(self._prefix), call.body or None, headers)
            got = upstream.getresponse()
            kept = [(name, value) for name, value in got.getheaders() if name.lower() not in NOT_FORWARDED]
            return Answer(got.status, tuple(kept), got.read())
        finally:
            upstream.close()

    def _send(self, connection: socket.socket, call: Call, answer: Answer) -> bool:
        fault = call.fault
        wire = answer.encode(chunked=bool(fault.get("chunked")))
        if "delay" in fault and self._ended.wait(fault["delay"]):
            return False
        if "cut" in fault:
            connection.sendall(wire[: -len(answer.body) // 2])
            return self._reset(connection) if fault["cut"] == "reset" else False
        if "trickle" in fault:
            begin = 0 if fault["trickle"] == "head" else len(wire) - len(answer.body)
            return self._trickle(connection, wire, begin, fault["every"])
        if fault.get("close") == "announced":
            wire = wire.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        sent = time.monotonic()  # taken before sending: the client may continue while this thread waits for a processor
        connection.sendall(wire)
        call.answered = sent
        if fault.get("close") == "idle":
            self._ended.wait(IDLE_BEFORE_CLOSE)
        return "close" not in fault

    def _trickle(self, connection: socket.socket, wire: bytes, begin: int, every: float) -> bool:
        connection.sendall(wire[:begin])
        for at in range(begin, len(wire)):
            connection.sendall(wire[at : at + 1])
            if self._ended.wait(every):
                return False
        return True


def _wake(waiting: socket.socket) -> None:
    """End what a thread does with a socket: accept() or a read."""
    with suppress(OSError):
        waiting.shutdown(socket.SHUT_RDWR)


@contextmanager
def _filled(port: int) -> Iterator[None]:
    """Fill the queue of a socket that listens with a backlog of 0 and never accepts."""
    waiting = [socket.socket() for _ in range(4)]
    try:
        for item in waiting:
            item.setblocking(False)
            item.connect_ex(("127.0.0.1", port))
        yield
    finally:
        for item in waiting:
            item.close()


def _read_head(call: Call, reader: BufferedReader) -> bool:
    line = reader.readline(65_536)
    words = line.decode("latin-1").split()
    if len(words) != 3:
        return False
    call.method, call.path = words[:2]
    for line in iter(lambda: reader.readline(65_536), b""):
        if line in (b"\r\n", b"\n"):
            break
        name, _, value = line.decode("latin-1").partition(":")
        call.headers[name.strip().lower()] = value.strip()
    return True


def _read_body(call: Call, reader: BufferedReader, *, half: bool) -> None:
    if call.headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(reader.readline(100), 16):
            call.body += reader.read(size)
            reader.readline(100)
            if half:
                return
        reader.readline(100)
        return
    size = int(call.headers.get("content-length", "0"))
    call.body = reader.read(size // 2 if half else size)
