"""In charge of the quick socket stream: it must do what Trio's own does, only for less."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from appliance.net.socket_stream import ONE_WRITE_BYTES, FastSocketStream, faster


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[FastSocketStream, trio.SocketStream]]:
    """Two ends of one TCP connection; the first is ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (client, server))
    async with ours, theirs:
        yield FastSocketStream(ours), theirs


async def _read_all(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await stream.receive_some()
    return data


@pytest.mark.parametrize("size", [0, 1, ONE_WRITE_BYTES, ONE_WRITE_BYTES + 1, 20_000_000])
async def test_everything_arrives(size: int) -> None:
    """Short, exactly the limit, over it, and far more than a socket buffer holds."""
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    got = []
    async with pair() as (ours, theirs), trio.open_nursery() as nursery:

        async def read() -> None:
            got.append(await _read_all(theirs, size))

        nursery.start_soon(read)
        await ours.send_all(memoryview(data))
    assert got == [data]


async def test_a_full_buffer_is_waited_for() -> None:
    """Short writes that no longer fit wait for the reader, and nothing is lost or repeated."""
    block = bytes(1_000)
    async with pair() as (ours, theirs):
        with trio.move_on_after(0.1) as scope:
            sent = 0
            while True:
                await ours.send_all(block)
                sent += len(block)
        assert scope.cancelled_caught
        assert len(await _read_all(theirs, sent)) >= sent


async def test_receiving_waits_and_ends() -> None:
    """What the other side says is received as it comes, and nothing once it has closed."""
    async with pair() as (ours, theirs):
        await theirs.send_all(b"220 mx\r\n")
        assert await ours.receive_some(4) == b"220 "
        assert await ours.receive_some() == b"mx\r\n"
        await theirs.aclose()
        assert await ours.receive_some() == b""


async def test_waiting_can_be_cancelled_without_loss() -> None:
    """A cancelled wait leaves what comes later to the next."""
    async with pair() as (ours, theirs):
        with trio.move_on_after(0.01) as scope:
            await ours.receive_some()
        assert scope.cancelled_caught
        await theirs.send_all(b"later")
        assert await ours.receive_some() == b"later"


async def test_faults_are_trio_s() -> None:
    """A reset is a broken resource, our own closing a closed one, even for somebody who waits."""
    async with pair() as (ours, theirs):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await theirs.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"x")
    async with pair() as (ours, _):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await ours.receive_some()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"x")


async def test_only_plain_sockets_are_quick() -> None:
    """Any other stream is left as it is."""
    stream, _ = trio.testing.memory_stream_pair()
    assert faster(stream) is stream


async def test_it_tells_whether_something_has_come() -> None:
    """Data and the end are both something; silence is not."""
    async with pair() as (ours, theirs):
        assert not ours.has_come()
        await theirs.send_all(b"x")
        await trio.lowlevel.wait_readable(ours._stream.socket)
        assert ours.has_come()
        await ours.receive_some()
        assert not ours.has_come()
        await theirs.aclose()
        await trio.lowlevel.wait_readable(ours._stream.socket)
        assert ours.has_come()
