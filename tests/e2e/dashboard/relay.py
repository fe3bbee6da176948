"""A proxy between browser and program that passes bytes on and counts them, or holds a stream back until it ends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

STREAM = b"GET /dashboard/live "


class Relay:
    def __init__(self, url: str, *, holds_streams: bool = False) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._target = (parts.hostname, parts.port or 80)
        self._holds_streams = holds_streams
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.passed = 0  # bytes, both ways
        self.requests: list[bytes] = []  # the first line of each
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                held = threading.Event()
                for work in ((client, server, held, True), (server, client, held, False)):
                    threading.Thread(target=self._pass_on, args=work, daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, held: threading.Event, from_client: bool) -> None:
        kept = b""
        with suppress(OSError):
            while data := source.recv(65_536):
                self.passed += len(data)
                if from_client:
                    self.requests.append(data.partition(b"\r\n")[0])
                    if self._holds_streams and data.startswith(STREAM):
                        held.set()
                elif held.is_set():
                    kept += data
                    continue
                to.sendall(data)
        with suppress(OSError):
            to.sendall(kept)
            to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def relayed(url: str, *, holds_streams: bool = False) -> Iterator[Relay]:
    relay = Relay(url, holds_streams=holds_streams)
    try:
        yield relay
    finally:
        relay.close()
