"""A TCP proxy before PostgreSQL that can delay, swallow, reset, and cut a connection at COMMIT."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

CHUNK = 65_536
COMMIT = b"COMMIT\0"


class Cut(Enum):
    NEVER = 0
    BEFORE = 1  # the server never hears of it
    AFTER = 2  # the server has committed, and its answer is lost
    SWALLOW = 3  # the same, but the connection stays: the answer just never comes


@dataclass
class Proxy:
    """What happens from now on to all connections through it."""

    target: tuple[str, int]
    delay: float = 0.0  # seconds for each piece, either way
    blackhole: bool = False  # nothing goes through, and nothing is closed
    cut: Cut = Cut.NEVER  # the next commit, once
    cuts: int = 0  # that were made
    accepted: int = 0  # connections
    _pairs: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    _swallowed: set[socket.socket] = field(default_factory=set)  # whose answers are lost
    _listening: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def reset(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = socket.create_connection(self.target)
            except OSError:
                _reset(client)
                continue
            threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.reset()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        pair = (client, server)
        self._pairs.append(pair)
        back = threading.Thread(target=self._pump, args=(False, server, client), daemon=True)
        back.start()
        self._pump(True, client, server)
        back.join()
        with suppress(ValueError):  # it was reset
            self._pairs.remove(pair)
        self._swallowed.discard(server)
        client.close()
        server.close()

    def _pump(self, of_client: bool, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(CHUNK):
                while self.blackhole:
                    time.sleep(0.01)
                    source.getpeername()  # raises when it was reset meanwhile
                time.sleep(self.delay)
                if of_client and COMMIT in piece and self.cut is not Cut.NEVER:
                    how, self.cut = self.cut, Cut.NEVER
                    self._end(how, piece, source, sink)
                elif source not in self._swallowed and sink not in self._swallowed:
                    sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _end(self, how: Cut, piece: bytes, client: socket.socket, server: socket.socket) -> None:
        self.cuts += 1
        if how is not Cut.BEFORE:
            self._swallowed.add(server)
            server.sendall(piece)
            time.sleep(0.3)  # for the commit
        if how is not Cut.SWALLOW:
            _reset(client)
            _reset(server)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    running = Proxy(("127.0.0.1", port))
    thread = threading.Thread(target=running.serve)
    thread.start()
    try:
        yield running
    finally:
        running.blackhole = False
        running.close()
        thread.join()
