"""Waiting until a socket can be read: no edge is missed, none is waited for that will not come."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from appliance.net import socket_stream as socket_stream
from appliance.net.socket_stream import ReadWatch


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one TCP connection, the first not blocking."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


async def test_each_edge_wakes_once() -> None:
    """Before the wait, during it, and not again for what is there already."""
    with connected() as (ours, theirs):
        readable = ReadWatch(ours.fileno())
        theirs.sendall(b"a")
        with trio.fail_after(5):
            await readable.wait()
        with trio.move_on_after(0.05) as scope:
            await readable.wait()  # the byte was not read, but it is no news
        assert scope.cancelled_caught
        theirs.sendall(b"b")
        with trio.fail_after(5):
            await readable.wait()
        assert ours.recv(10) == b"ab"
        readable.close()


async def test_news_without_a_waiting_task_are_kept() -> None:
    """Who comes later need not wait, once."""
    with connected() as (ours, theirs):
        readable = ReadWatch(ours.fileno())
        theirs.sendall(b"a")
        await trio.lowlevel.wait_readable(ours)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(5):
            await readable.wait()
        assert ours.recv(10) == b"a"
        readable.close()


async def test_it_knows_when_it_is_over() -> None:
    """Data and the end that come together are one edge; the end must not be waited for then."""
    with connected() as (ours, theirs):
        readable = ReadWatch(ours.fileno())
        theirs.sendall(b"last words")
        theirs.shutdown(socket.SHUT_WR)
        await trio.lowlevel.wait_readable(ours)
        with trio.fail_after(5):
            await readable.wait()
            while not readable.closed:  # should the end have come a moment later, it is an edge of its own
                await readable.wait()
        assert (ours.recv(100), ours.recv(100)) == (b"last words", b"")
        readable.close()


async def test_only_one_may_wait() -> None:
    """A second task is told, and the first goes on waiting."""
    with connected() as (ours, theirs):
        readable = ReadWatch(ours.fileno())
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(readable.wait)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(trio.BusyResourceError):
                    await readable.wait()
                theirs.sendall(b"x")
        readable.close()


async def test_who_waits_is_told_of_the_end() -> None:
    """Closing wakes; and the next socket with the same number is another one."""
    with connected() as (ours, _):
        readable = ReadWatch(number := ours.fileno())
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await readable.wait()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            readable.close()
            readable.close()  # twice is once
    with connected() as (ours, theirs):
        other = ReadWatch(os.dup2(ours.fileno(), number))
        readable.close()  # is none of its business
        theirs.sendall(b"x")
        with trio.fail_after(5):
            await other.wait()
        other.close()
        os.close(number)


async def test_a_socket_that_is_gone_can_be_closed() -> None:
    """Closing the socket first does no harm."""
    with connected() as (ours, _):
        readable = ReadWatch(ours.fileno())
        ours.close()
        readable.close()


async def test_more_edges_than_are_heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are, in the end."""
    monkeypatch.setattr(socket_stream, "_EVENTS_AT_ONCE", 3)
    pairs = [socket.socketpair() for _ in range(20)]
    readables = [ReadWatch(ours.fileno()) for ours, _ in pairs]
    for _, theirs in pairs:
        theirs.sendall(b"x")
    with trio.fail_after(5):
        for readable in readables:
            await readable.wait()
            readable.close()
    for end in [end for pair in pairs for end in pair]:
        end.close()


async def test_news_are_kept_when_the_task_was_cancelled() -> None:
    """A read that was cancelled has read nothing: the next one need not wait for more."""
    with connected() as (ours, theirs):
        readable = ReadWatch(ours.fileno())
        theirs.sendall(b"a")
        await trio.lowlevel.wait_readable(ours)
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await readable.wait()
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await readable.wait()
        readable.close()
