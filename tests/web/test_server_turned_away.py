"""Connections beyond the limits: how long they are read after their answer, and that this is bounded."""

import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from appliance.web.server import LONG_LINGER, LONG_LINGERING, SHORT_LINGER, TurnedAway


async def connected() -> tuple[socket.socket, trio.SocketStream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client, server = socket.create_connection(listener.getsockname()), listener.accept()[0]
    client.settimeout(10)
    return client, trio.SocketStream(trio.socket.from_stdlib_socket(server))


def rest(client: socket.socket) -> bytes:
    """All that has come, to its end; raises ConnectionResetError where it was destroyed."""
    data = b""
    with client:
        while piece := client.recv(65_536):
            data += piece
    return data


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as opened:
        yield opened


async def test_beyond_the_places_what_has_come_is_read_before_the_end(nursery: trio.Nursery) -> None:
    """A client that has sent a request gets the answer and the end at once; those in the places are still read."""
    turned_away = TurnedAway(lambda: "req_1", at_once=2)
    held = [await connected() for _ in range(2)]
    for _, stream in held:
        nursery.start_soon(turned_away.answer, stream)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(5):
        client, stream = await connected()
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        with trio.fail_after(1):
            await turned_away.answer(stream)
        assert rest(client).startswith(b"HTTP/1.1 503 ")
    for client, _ in held:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 503"
        client.close()


async def test_a_client_that_stays_is_read_for_less_time_when_they_are_many(
    autojump_clock: trio.testing.MockClock,
) -> None:
    turned_away, ended = TurnedAway(lambda: "req_1"), list[float]()
    began = trio.current_time()

    async def answer(stream: trio.SocketStream) -> None:
        await turned_away.answer(stream)
        ended.append(trio.current_time() - began)

    clients = []
    async with trio.open_nursery() as nursery:
        for _ in range(LONG_LINGERING + 20):
            client, stream = await connected()
            clients.append(client)
            nursery.start_soon(answer, stream)
    assert [round(each, 3) for each in ended] == [SHORT_LINGER] * 20 + [LONG_LINGER] * LONG_LINGERING
    for client in clients:
        client.close()


async def test_one_that_is_gone_is_no_error() -> None:
    for at_once in (0, 1):
        client, stream = await connected()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        await TurnedAway(lambda: "req_1", at_once=at_once).answer(stream)
