"""A connection whose requests go by the fast path or by h11: their order, deadlines, and turns of other connections."""

import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from appliance.config.settings import HttpSettings
from appliance.net.connection_server import ConnectionTable
from appliance.web import exchange
from appliance.web.exchange import Peer
from appliance.web.http1 import QuickRequest
from appliance.web.hypercorn_parts import WorkerContext, hypercorn_config
from appliance.web.server import HttpConnection
from tests.e2e.raw import Answer, parsed

SEED = 20_261_115
SETTINGS = HttpSettings()
HEAD = b"POST /emails HTTP/1.1\r\nHost: h\r\n"


def quick(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def slow(body: bytes) -> bytes:
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


@dataclass
class Echo:
    """An application that answers with the body, and notes which way it came."""

    ways: list[str] = field(default_factory=list)
    wait: Callable[[], Awaitable[None]] | None = None
    times: int = 1  # the body is in the answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.ways.append("slow")
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": exchange.json_answer(body, "req_1")})
        await send({"type": "http.response.body", "body": body})

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[exchange.Answer, bool]:
        assert peer.address is not None
        assert peer.address[0] == "127.0.0.1"
        assert not secure
        self.ways.append("quick")
        if self.wait is not None:
            await self.wait()
        body = request.body * self.times
        return (200, exchange.json_answer(body, "req_1"), body), request.body == b"end"


class Served:
    """A connection that is being served, and its client's end."""

    def __init__(self, connection: HttpConnection, context: WorkerContext, client: trio.SocketStream) -> None:
        self.connection = connection
        self.context = context
        self.client = client
        self.life = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self) -> None:
        with self.life:
            await self.connection.run()
        self.ended.set()

    async def answers(self, count: int) -> list[bytes]:
        """The bodies of so many answers, or of fewer when the connection ends before."""
        data = b""
        found: list[Answer] = []
        while len(found) < count and (piece := await self.client.receive_some()):
            data += piece
            found, _ = parsed(data)
        return [each.body for each in found]


@asynccontextmanager
async def serving(app: Echo) -> AsyncIterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
    theirs, ours = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in ends)
    context, table = WorkerContext(None), ConnectionTable[HttpConnection](1, 1)
    shared = {"app": app, "hypercorn": hypercorn_config(), "context": context, "settings": SETTINGS, "table": table}
    server: Any = SimpleNamespace(**shared, new_request_id=lambda: "req_1")
    connection = HttpConnection(server, ours)
    served = Served(connection, context, theirs)
    async with theirs, trio.open_nursery() as nursery:
        nursery.start_soon(served.run)
        yield served
        nursery.cancel_scope.cancel()


# ---- which way, and in which order


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "in pieces"])
async def test_both_ways_take_turns_on_one_connection(whole: bool) -> None:
    chance = random.Random(SEED)
    bodies = [b"%d" % number * chance.randrange(1, 200) for number in range(200)]
    data = quick(bodies[0]) + b"".join(chance.choice((quick, slow))(body) for body in bodies[1:])
    app, got = Echo(), []
    async with serving(app) as served, trio.open_nursery() as nursery:

        async def read() -> None:
            got.extend(await served.answers(len(bodies)))

        nursery.start_soon(read)
        while data:
            cut = len(data) if whole else chance.randrange(1, 500)
            await served.client.send_all(data[:cut])
            data = data[cut:]
            if not whole:
                await trio.testing.wait_all_tasks_blocked()
    assert got == bodies
    assert set(app.ways) == {"quick", "slow"}


@pytest.mark.parametrize("kind", [quick, slow])
async def test_an_empty_line_after_each_body_is_ignored(kind: Callable[[bytes], bytes]) -> None:
    async with serving(Echo()) as served:
        for piece in (
            kind(b"a") + b"\r\n",
            kind(b"b"),
            b"\r\n",
            kind(b"c"),
            b"\r\n" + kind(b"d") + b"\r\n" + kind(b"e"),
        ):
            await served.client.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        assert await served.answers(5) == [b"a", b"b", b"c", b"d", b"e"]


async def test_after_a_request_in_pieces_the_next_is_quick_again() -> None:
    app = Echo()
    async with serving(app) as served:
        for data in (quick(b"a")[:50], quick(b"a")[50:], quick(b"b")):
            await served.client.send_all(data)
            await trio.testing.wait_all_tasks_blocked()
        assert await served.answers(2) == [b"a", b"b"]
    assert app.ways == ["slow", "quick"]


@pytest.mark.parametrize("following", [quick, slow])
async def test_an_answer_that_ends_the_connection_is_the_last(following: Callable[[bytes], bytes]) -> None:
    """What follows it is not served, on whatever way, and the client reads the answer and then the end."""
    app = Echo()
    async with serving(app) as served:
        await served.client.send_all(quick(b"end") + following(b"more"))
        assert await served.answers(2) == [b"end"]
        await served.client.aclose()
        await served.ended.wait()
    assert app.ways == ["quick"]


async def test_a_request_under_way_when_the_process_stops_is_answered_and_is_the_last() -> None:
    going = trio.Event()
    app = Echo(wait=going.wait)
    async with serving(app) as served:
        await served.client.send_all(quick(b"a") + quick(b"b"))
        await trio.testing.wait_all_tasks_blocked()
        await served.context.terminated.set()
        served.connection.drain()
        going.set()
        data = b""
        while piece := await served.client.receive_some():
            data += piece
        await served.client.aclose()
        await served.ended.wait()
    (last,), _ = parsed(data)
    assert (last.body, last.headers["connection"]) == (b"a", "close")
    assert app.ways == ["quick"]


async def test_an_idle_connection_ends_when_the_process_stops() -> None:
    async with serving(Echo()) as served:
        await served.client.send_all(quick(b"a"))
        assert await served.answers(1) == [b"a"]
        await trio.testing.wait_all_tasks_blocked()
        served.connection.drain()
        await served.ended.wait()


# ---- turns


@pytest.mark.parametrize("kind", [quick, slow])
async def test_others_have_their_turn_between_requests_that_came_at_once(kind: Callable[[bytes], bytes]) -> None:
    turns: list[int] = []

    class Counting(Echo):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            turns.append(turn)
            await super().__call__(scope, receive, send)

        async def send_whole(self, *request: Any, **how: Any) -> tuple[exchange.Answer, bool]:
            turns.append(turn)
            return await super().send_whole(*request, **how)

    turn = 0
    async with serving(Counting()) as served, trio.open_nursery() as nursery:

        async def other() -> None:
            nonlocal turn
            while True:
                await trio.lowlevel.checkpoint()
                turn += 1

        nursery.start_soon(other)
        await served.client.send_all(kind(b"a") * 100)
        assert len(await served.answers(100)) == 100
        nursery.cancel_scope.cancel()
    assert len(turns) == 100
    assert max(Counter(turns).values()) <= 2  # Trio shuffles: last in one round, we may be first in the next


# ---- deadlines


@pytest.mark.parametrize("begun", [b"", b"POST /ema", quick(b"12345")[:-2]], ids=["nothing", "a head", "a body"])
async def test_a_late_client_is_ended_at_the_next_look(begun: bytes) -> None:
    limit = SETTINGS.header_timeout if b"\r\n\r\n" not in begun else 10.0  # the slow start of a body
    async with serving(Echo()) as served:
        began = trio.current_time()
        await served.client.send_all(begun)
        await trio.testing.wait_all_tasks_blocked()
        served.connection.close_if_late(began + limit - 0.5)
        await trio.testing.wait_all_tasks_blocked()
        assert not served.ended.is_set()
        served.connection.close_if_late(trio.current_time() + limit)
        await served.ended.wait()
        assert await served.answers(1) == []


async def test_a_request_that_takes_us_long_is_not_the_client_s_fault() -> None:
    """While we work there is no deadline at all; afterwards the connection may be idle for as long as any other."""
    going = trio.Event()
    async with serving(Echo(wait=going.wait)) as served:
        await served.client.send_all(quick(b"a"))
        await trio.testing.wait_all_tasks_blocked()
        served.connection.close_if_late(trio.current_time() + 1_000_000)
        going.set()
        assert await served.answers(1) == [b"a"]
        await trio.testing.wait_all_tasks_blocked()
        served.connection.close_if_late(trio.current_time() + SETTINGS.keep_alive_timeout - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not served.ended.is_set()
        served.connection.close_if_late(trio.current_time() + SETTINGS.keep_alive_timeout)
        await served.ended.wait()


async def test_a_client_that_does_not_read_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    """Answers that no longer fit into the socket wait as long as a write may take, and that is the end."""
    async with serving(Echo(times=60)) as served:
        served.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        began = trio.current_time()
        with trio.move_on_after(SETTINGS.write_timeout * 2):
            try:
                while not served.ended.is_set():
                    await served.client.send_all(quick(bytes(1_000)))
            except trio.BrokenResourceError:
                pass
            await served.ended.wait()
        assert served.ended.is_set()
        assert trio.current_time() - began >= SETTINGS.write_timeout


async def test_a_client_that_is_gone_is_no_error() -> None:
    going = trio.Event()
    async with serving(Echo(wait=going.wait)) as served:
        await served.client.send_all(quick(b"a"))
        await trio.testing.wait_all_tasks_blocked()
        served.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await served.client.aclose()
        going.set()
        await served.ended.wait()


async def test_a_cancelled_request_is_not_answered() -> None:
    async with serving(Echo(wait=trio.sleep_forever)) as served:
        await served.client.send_all(quick(b"a"))
        await trio.testing.wait_all_tasks_blocked()
        served.life.cancel()
        await served.ended.wait()
        assert await served.answers(1) == []


# ---- heads and bodies in pieces


@pytest.mark.parametrize("kind", [quick, slow])
async def test_a_request_may_come_byte_by_byte(kind: Callable[[bytes], bytes]) -> None:
    app = Echo()
    async with serving(app) as served:
        for byte in kind(b"drip"):
            await served.client.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert await served.answers(1) == [b"drip"]
        await served.client.send_all(quick(b"next"))
        assert await served.answers(1) == [b"next"]
    assert app.ways == ["slow", "quick"]


async def test_a_head_that_is_refused_ends_the_connection_behind_a_good_request() -> None:
    app = Echo()
    async with serving(app) as served:
        await served.client.send_all(slow(b"good") + b"GET / HTTP/1.1\nHost: h\n\n" + quick(b"smuggled"))
        good, refused = await served.answers(3)
        await served.client.aclose()
        await served.ended.wait()
    assert good == b"good"
    assert b"bare LF" in refused
    assert app.ways == ["slow"]


# ---- giving way


async def test_a_client_that_is_waited_for_and_has_not_authenticated_gives_way() -> None:
    for begun in (b"", b"POST /ema", slow(b"12345")[:-12]):
        going = trio.Event()
        async with serving(Echo(wait=going.wait)) as served:
            with served.connection._table.tracking(served.connection, "192.0.2.1"):
                await served.client.send_all(begun)
                await trio.testing.wait_all_tasks_blocked()
                assert served.connection._table.admits("192.0.2.2")
                await served.ended.wait()
                assert await served.answers(1) == []
    async with serving(Echo(wait=going.wait)) as served:
        with served.connection._table.tracking(served.connection, "192.0.2.1"):
            await served.client.send_all(quick(b"a"))
            await trio.testing.wait_all_tasks_blocked()
            assert not served.connection._table.admits("192.0.2.2")
            going.set()
            assert await served.answers(1) == [b"a"]
