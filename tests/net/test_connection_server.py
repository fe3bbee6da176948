"""The connection server: listeners accept many connections per turn; deadlines, errors and shutdown per connection."""

import errno
import socket
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from appliance.config.values import Endpoint
from appliance.net.connection_server import ConnectionServer, ConnectionTable, SocketListener, listen
from appliance.telemetry.log import get_logger


def connect(listener: SocketListener) -> socket.socket:
    port = int(listener.address.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port))


async def test_connections_are_accepted_without_a_turn_for_each() -> None:
    (listener,) = await listen(Endpoint("127.0.0.1", 0), per_turn=32)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    clients = [connect(listener) for _ in range(3 * 32)]
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for client in clients:
            with client, await listener.accept() as accepted:
                assert accepted.getpeername() == client.getsockname()
        assert 1 <= turns <= 6
        nursery.cancel_scope.cancel()


async def test_it_waits_for_the_next() -> None:
    (listener,) = await listen(Endpoint("127.0.0.1", 0))
    async with listener:
        with trio.move_on_after(0.05) as scope:
            await listener.accept()
        assert scope.cancelled_caught
        with connect(listener), await listener.accept():
            pass


class Refusing:
    """A listening socket whose next connections break, and then it has no more descriptors."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def setblocking(self, flag: bool) -> None:
        """As it is already."""

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 25

    def accept(self) -> Any:
        raise OSError(self._codes.pop(0), "as the kernel says it")


async def test_a_connection_that_broke_is_none() -> None:
    listener = SocketListener(Refusing(errno.ECONNABORTED, errno.EPROTO, errno.EMFILE))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="as the kernel says it") as error:
        await listener.accept()
    assert error.value.errno == errno.EMFILE


async def test_its_url_says_where() -> None:
    for host, shown in (("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:")):
        (listener,) = await listen(Endpoint(host, 0))
        async with listener:
            assert listener.address.startswith(shown)


# ---- serving


@dataclass(eq=False)
class Connection:
    deadline: float = 1_000.0
    ended: trio.Event = field(default_factory=trio.Event)
    reason: str = ""

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.ended.set()

    def evict(self) -> None:
        self.end("evicted")

    def close_if_late(self, now: float) -> None:
        if now >= self.deadline:
            self.end("late")

    def drain(self) -> None:
        self.end("drained")


@dataclass
class Service:
    table: ConnectionTable[Connection]
    timeout: float = 1_000.0
    error: Exception | None = None
    connections: list[Connection] = field(default_factory=list)
    refused: int = 0

    async def serve(self, client: socket.socket, address: str, secure: bool) -> None:
        connection = Connection(trio.current_time() + self.timeout)
        self.connections.append(connection)
        with client, self.table.tracking(connection, address):
            if self.error is not None:
                raise self.error
            await connection.ended.wait()

    async def refuse(self, client: socket.socket, secure: bool) -> None:
        self.refused += 1
        client.close()

    def server(self, admission_timeout: float = 0.0) -> ConnectionServer[Connection]:
        log = get_logger("test")
        return ConnectionServer("test", self.table, self.serve, self.refuse, log, admission_timeout)


async def run(service: Service, listener: SocketListener, stopping: trio.Event, **options: Any) -> None:
    server = service.server(options.pop("admission_timeout", 0.0))
    await server.run([listener], stopping, shutdown_timeout=10, started=lambda: None, **options)


async def until(condition: Any) -> None:
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - the sockets are real
            await trio.sleep(0.01)


async def test_a_late_client_loses_its_connection() -> None:
    service, stopping = Service(ConnectionTable(10, 10), timeout=0.0), trio.Event()
    (listener,) = await listen(Endpoint("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, service, listener, stopping)
        with connect(listener):
            await until(lambda: service.connections and service.connections[0].reason == "late")
        stopping.set()


async def test_an_error_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    service, stopping = Service(ConnectionTable(1, 1), error=RuntimeError("a bug")), trio.Event()
    (listener,) = await listen(Endpoint("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, service, listener, stopping)
        for count in (1, 2):
            with connect(listener):
                await until(lambda count=count: len(service.connections) == count and not service.table.open)
        stopping.set()
    assert [record.getMessage() for record in caplog.records].count("connection failed") == 2


@pytest.mark.parametrize("admission_timeout", [0.0, 0.2])
async def test_a_client_beyond_the_limits_is_refused(admission_timeout: float) -> None:
    service, stopping = Service(ConnectionTable(10, 1)), trio.Event()
    (listener,) = await listen(Endpoint("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run(service, listener, stopping, admission_timeout=admission_timeout))
        with connect(listener):
            await until(lambda: service.connections)
            with connect(listener):
                began = trio.current_time()
                await until(lambda: service.refused)
                assert trio.current_time() - began >= admission_timeout
        stopping.set()


async def test_a_shutdown_drains_every_connection() -> None:
    service, stopping, begun = Service(ConnectionTable(10, 10)), trio.Event(), trio.Event()
    (listener,) = await listen(Endpoint("127.0.0.1", 0))

    async def begin_shutdown() -> None:
        assert [connection.reason for connection in service.connections] == ["", ""]
        with pytest.raises(ConnectionRefusedError):
            connect(listener)
        begun.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run(service, listener, stopping, begin_shutdown=begin_shutdown))
        with connect(listener), connect(listener):
            await until(lambda: len(service.connections) == 2)
            stopping.set()
            await begun.wait()
    assert [connection.reason for connection in service.connections] == ["drained", "drained"]


async def test_a_connection_that_does_not_drain_is_cancelled() -> None:
    service, stopping, ended = Service(ConnectionTable(10, 10)), trio.Event(), trio.Event()
    (listener,) = await listen(Endpoint("127.0.0.1", 0))

    async def stay(client: socket.socket, address: str, secure: bool) -> None:
        with client, service.table.tracking(Connection(), address):
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

    server = service.server()
    server.serve = stay
    async with trio.open_nursery() as nursery:
        options = {"shutdown_timeout": 0.4, "started": lambda: None}
        nursery.start_soon(lambda: server.run([listener], stopping, **options))  # type: ignore[arg-type]
        with connect(listener):
            await until(lambda: service.table.open)
            stopping.set()
            with trio.fail_after(5):
                await ended.wait()
