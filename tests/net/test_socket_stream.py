"""The fast socket stream does what Trio's own does."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing

from appliance.net.dial import ONE_WRITE_BYTES, FastSocketStream, faster


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
    """A reset is a broken resource, our own closing a closed one, even for a task that waits."""
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


async def test_it_tells_whether_something_is_readable() -> None:
    """Data and the end are both something; silence is not."""
    async with pair() as (ours, theirs):
        assert not ours.is_readable()
        await theirs.send_all(b"x")
        await trio.lowlevel.wait_readable(ours._stream.socket)
        assert ours.is_readable()
        await ours.receive_some()
        assert not ours.is_readable()
        await theirs.aclose()
        await trio.lowlevel.wait_readable(ours._stream.socket)
        assert ours.is_readable()


async def test_only_one_task_may_receive() -> None:
    """A second task is told so, and the first goes on waiting."""
    ours, theirs = _tcp_pair()
    stream = FastSocketStream(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
    with theirs, trio.fail_after(5):
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await stream.receive_some()
            theirs.sendall(b"x")


async def test_closing_wakes_the_task_that_receives() -> None:
    """It is told that the stream was closed."""
    ours, theirs = _tcp_pair()
    stream = FastSocketStream(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()

    with theirs, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            await stream.aclose()


async def test_what_comes_behind_an_urgent_byte_is_read() -> None:
    """A read ends before such a byte, though more is there; the next read does not wait for an event."""
    ours, theirs = _tcp_pair()
    with theirs:
        async with FastSocketStream(trio.SocketStream(trio.socket.from_stdlib_socket(ours))) as stream:
            theirs.sendall(b"before ")
            theirs.send(b"!", socket.MSG_OOB)
            theirs.sendall(b"behind")
            read = b""
            with trio.fail_after(5):
                while len(read) < len(b"before behind"):
                    read += await stream.receive_some(4_096)
            assert read == b"before behind"


@pytest.mark.parametrize("seed", range(20))
async def test_a_stream_loses_nothing_whatever_the_chunks(seed: int) -> None:
    """Written in pieces with pauses, read in pieces with pauses, to its end and beyond, many at once."""
    chance = Random(seed)
    written = [chance.randbytes(chance.randrange(200_000)) for _ in range(10)]
    read: dict[int, bytes] = {}

    async def write(stream: trio.SocketStream, data: bytes, dice: Random) -> None:
        async with stream:
            while data:
                length = dice.choice((1, 10, 4_096, 70_000))
                await stream.send_all(data[:length])
                data = data[length:]
                if dice.random() < 0.2:
                    await trio.sleep(dice.random() / 1_000)

    async def receive(number: int, stream: trio.SocketStream, dice: Random) -> None:
        got = b""
        async with FastSocketStream(stream) as faster:
            while data := await faster.receive_some(dice.choice((1, 100, 4_096, 65_536, None))):
                got += data
                if dice.random() < 0.2:
                    await trio.sleep(dice.random() / 1_000)
            assert await faster.receive_some() == b""  # the end stays the end
        read[number] = got

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number, data in enumerate(written):
                ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in _tcp_pair())
                nursery.start_soon(write, theirs, data[: 3_000 if seed % 2 else None], Random(seed + number))
                nursery.start_soon(receive, number, ours, Random(seed - number))
    assert [read[number] for number in range(10)] == [data[: 3_000 if seed % 2 else None] for data in written]


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]
