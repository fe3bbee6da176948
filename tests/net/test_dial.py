"""Addresses are dialled in turn; what counts as a lack of this machine, and what as a fault of the other side."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from random import Random

import pytest
import trio
import trio.testing
from trio.testing import MockClock, memory_stream_pair

from appliance.net.dial import (
    ONE_WRITE_BYTES,
    SHORTAGE_ERRNOS,
    FastSocketStream,
    IdlePool,
    Shortage,
    dial_first,
    faster,
    raise_if_short,
    shortage_in,
)

ADDRESSES = (ip_address("2001:db8::1"), ip_address("192.0.2.1"), ip_address("192.0.2.2"))


class Network:
    def __init__(self, *answers: OSError | float | None) -> None:
        self.dialled: list[tuple[str, float]] = []
        self.answers = list(answers)  # to each dial in turn: an error, seconds of silence, or a connection at once

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        assert port == 443
        self.dialled.append((address, trio.current_time()))
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        await trio.sleep(answer or 0)
        return memory_stream_pair()[0]


def refused() -> OSError:
    return OSError(errno.ECONNREFUSED, "Connection refused")


async def test_the_first_that_accepts_is_taken(autojump_clock: MockClock) -> None:
    network = Network(refused(), 100.0, None)
    address, _ = await dial_first(network.dial, ADDRESSES, 443, patience=2.0)
    assert str(address) == "192.0.2.2"
    assert network.dialled == [("2001:db8::1", 0.0), ("192.0.2.1", 0.0), ("192.0.2.2", 2.0)]
    early = Network(1.0)
    assert (await dial_first(early.dial, ADDRESSES, 443, patience=2.0))[0] == ADDRESSES[0]


async def test_the_last_one_is_waited_for_and_its_error_is_raised(autojump_clock: MockClock) -> None:
    slow = Network(100.0)
    assert (await dial_first(slow.dial, ADDRESSES[:1], 443, patience=2.0))[0] == ADDRESSES[0]
    last = OSError(errno.EHOSTUNREACH, "No route to host")
    with pytest.raises(OSError, match="No route to host"):
        await dial_first(Network(refused(), refused(), last).dial, ADDRESSES, 443, patience=2.0)


@pytest.mark.parametrize("before", [0, 2])
async def test_a_shortage_of_this_machine_ends_it(autojump_clock: MockClock, before: int) -> None:
    network = Network(*[refused()] * before, OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(Shortage):
        await dial_first(network.dial, ADDRESSES, 443, patience=2.0)
    assert len(network.dialled) == before + 1


@pytest.mark.parametrize("lack", sorted(SHORTAGE_ERRNOS))
def test_a_lack_is_found_behind_other_errors(lack: int) -> None:
    system = OSError(lack, "words")
    wrapped = OSError("all attempts to connect failed")
    wrapped.__cause__ = ExceptionGroup("several", [ConnectionRefusedError(errno.ECONNREFUSED, "no"), system])
    for error in (system, wrapped):
        assert shortage_in(error) == "words"
        with pytest.raises(Shortage, match="words"):
            raise_if_short(error)


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EACCES, None])
def test_other_errors_are_the_other_side_s(code: int | None) -> None:
    """A server that refuses, or cannot be reached, is no lack of this machine."""
    error = OSError("words") if code is None else OSError(code, "words")
    assert shortage_in(error, "192.0.2.1") is None
    raise_if_short(error)


def test_no_address_is_a_lack_of_ports_only_for_ipv4() -> None:
    error = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert shortage_in(error, "192.0.2.1") is not None
    assert shortage_in(error, "2001:db8::1") is None


async def test_the_one_used_last_that_fits_is_taken() -> None:
    pool = IdlePool[str, int]()
    for key, connection in (("a", 1), ("b", 2), ("a", 3), ("a", 4)):
        pool.put(key, connection)
    assert pool.take("a", lambda connection: connection < 4) == 3
    assert (pool.count("a"), pool.count("b"), pool.count("c"), len(pool)) == (2, 1, 0, 3)
    assert [pool.take("a"), pool.take("a"), pool.take("a"), pool.take("b")] == [4, 1, None, 2]
    assert (pool.count("a"), len(pool)) == (0, 0)


async def test_the_oldest_goes_first(autojump_clock: MockClock) -> None:
    """Whatever its key; one that was used since is not the oldest any more, and a younger one than wanted stays."""
    pool, began = IdlePool[str, int](), trio.current_time()
    pool.put("a", 1)
    pool.put("b", 2)
    await trio.sleep(1)
    assert pool.take("a") == 1
    pool.put("a", 1)
    assert pool.take_oldest(idle_since=began) == 2
    assert pool.take_oldest(idle_since=began) is None
    assert pool.take_oldest() == 1
    assert pool.take_oldest() is None


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[FastSocketStream, trio.SocketStream]]:
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
    async with pair() as (ours, theirs):
        await theirs.send_all(b"220 mx\r\n")
        assert await ours.receive_some(4) == b"220 "
        assert await ours.receive_some() == b"mx\r\n"
        await theirs.aclose()
        assert await ours.receive_some() == b""


async def test_waiting_can_be_cancelled_without_loss() -> None:
    async with pair() as (ours, theirs):
        with trio.move_on_after(0.01) as scope:
            await ours.receive_some()
        assert scope.cancelled_caught
        await theirs.send_all(b"later")
        assert await ours.receive_some() == b"later"


async def test_faults_are_trio_s() -> None:
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
    stream, _ = trio.testing.memory_stream_pair()
    assert faster(stream) is stream


async def test_it_tells_whether_something_is_readable() -> None:
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
