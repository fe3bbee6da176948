"""The fence around trio-asyncio: callbacks run together, no error ends the loop, what is replaced is still in use."""

import asyncio
import errno
import inspect
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from appliance.submission.compat import open_loop
from appliance.submission.loop import CALLBACKS_PER_TURN, Poller, attach, prepare, run_coroutine


async def test_callbacks_do_not_take_a_turn_each() -> None:
    """As in asyncio: what waits is run in its order, within a turn or two, and Trio's tasks are not starved."""
    ran: list[int] = []
    enough = False
    async with open_loop() as loop:
        prepare(loop)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(CALLBACKS_PER_TURN):
            loop.call_soon(ran.append, number)
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        assert ran == list(range(CALLBACKS_PER_TURN))

        def again() -> None:
            ran.append(0)
            if not enough:
                loop.call_soon(again)

        loop.call_soon(again)
        with trio.fail_after(5):
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        enough = True
        assert len(ran) > 3 * CALLBACKS_PER_TURN


async def test_timers_still_run() -> None:
    """A callback for later comes when it is due, whatever else goes on."""
    done = trio.Event()
    async with open_loop() as loop:
        prepare(loop)
        loop.call_later(0.05, done.set)
        with trio.fail_after(5):
            await done.wait()


async def test_an_error_in_a_callback_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is for the log; a connection that broke is not logged."""

    def fail(error: Exception) -> None:
        raise error

    done = trio.Event()
    with caplog.at_level(logging.INFO):
        async with open_loop() as loop:
            prepare(loop)
            loop.call_soon(fail, ConnectionResetError())
            loop.call_soon(fail, RuntimeError("a bug"))
            loop.call_soon(done.set)
            with trio.fail_after(5):
                await done.wait()
    assert [record.getMessage() for record in caplog.records].count("connection failed") == 1


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a client."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """It has said something."""
        self.transport.write(data)


async def test_the_replaced_parts_are_those_that_the_loop_uses() -> None:
    """A transport has its socket watched by `_add_reader`, once for all its reads, until it is closed."""
    watched: list[int] = []
    async with open_loop() as loop:
        assert list(inspect.signature(loop._main_loop_one).parameters) == ["no_wait"]
        for name in ("_add_reader", "_remove_reader"):
            assert callable(getattr(loop, name))
        prepare(loop)
        add, remove = loop._add_reader, loop._remove_reader

        def add_and_tell(fd: int, *callback: Any, **context: Any) -> asyncio.Handle:
            watched.append(fd)
            return cast(asyncio.Handle, add(fd, *callback, **context))

        loop._add_reader = add_and_tell
        ours, theirs = socket.socketpair()
        with ours:
            echo = Echo()
            attach(loop, echo, theirs)
            client = trio.socket.from_stdlib_socket(ours)
            for number in range(3):
                await client.send(b"%d" % number)
                with trio.fail_after(5):
                    assert await client.recv(10) == b"%d" % number
            assert watched == [theirs.fileno()]
            echo.transport.abort()
            assert not remove(watched[0])


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[asyncio.Transport, trio.socket.SocketType]]:
    """The transport of an echo that has begun to read, and its client."""
    async with open_loop() as loop:
        prepare(loop)
        ours, theirs = socket.socketpair()
        with ours:
            echo = Echo()
            attach(loop, echo, theirs)
            await trio.testing.wait_all_tasks_blocked()
            yield echo.transport, trio.socket.from_stdlib_socket(ours)
            echo.transport.abort()


async def test_what_a_read_leaves_is_read_next() -> None:
    """A protocol that is given less than there is gets the rest without anything new from the client."""
    async with echoing() as (transport, client):
        transport.max_size = 3  # type: ignore[attr-defined]
        await client.send(b"0123456789")
        received = b""
        with trio.fail_after(5):
            while len(received) < 10:
                received += await client.recv(10)
        assert received == b"0123456789"


async def test_a_transport_that_is_paused_reads_nothing() -> None:
    """Until it is resumed; what came meanwhile is not lost."""
    async with echoing() as (transport, client):
        transport.pause_reading()
        await client.send(b"hello")
        with trio.move_on_after(0.1) as waited:
            await client.recv(10)
        assert waited.cancelled_caught
        transport.resume_reading()
        with trio.fail_after(5):
            assert await client.recv(10) == b"hello"


async def test_a_client_that_reads_late_gets_everything() -> None:
    """More than the socket's buffer holds is sent once there is room."""
    content = b"x" * 4_000_000
    async with echoing() as (transport, client):
        transport.write(content)
        assert transport.get_write_buffer_size() > 0
        received = 0
        with trio.fail_after(5):
            while received < len(content):
                received += len(await client.recv(1_000_000))


async def test_a_socket_that_cannot_be_watched_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client would otherwise wait for an answer in vain."""

    def no_room(self: Poller, fd: int, callback: object) -> None:
        raise OSError(errno.ENOSPC, "too many watches")

    monkeypatch.setattr(Poller, "add", no_room)
    async with open_loop() as loop:
        prepare(loop)
        ours, theirs = socket.socketpair()
        with ours:
            attach(loop, Echo(), theirs)
            client = trio.socket.from_stdlib_socket(ours)
            with trio.fail_after(5):
                assert await client.recv(10) == b""


async def test_a_coroutine_of_asyncio_runs_in_a_trio_task() -> None:
    """It gets the results and the errors of the futures it waits for, one after the other."""
    async with open_loop() as loop:
        prepare(loop)

        async def wait_twice() -> str:
            first, second = loop.create_future(), loop.create_future()
            loop.call_soon(first.set_result, "result")
            loop.call_soon(second.set_exception, ConnectionResetError())
            result = await first
            with pytest.raises(ConnectionResetError):
                await second
            return cast(str, result)

        with trio.fail_after(5):
            assert await run_coroutine(wait_twice()) == "result"


async def test_cancelling_the_trio_task_cancels_the_coroutine() -> None:
    """The coroutine cleans up, as `start_tls` closes its transport, and the future it waited for is cancelled."""
    async with open_loop() as loop:
        prepare(loop)
        future = loop.create_future()
        cleaned_up = False

        async def wait() -> None:
            nonlocal cleaned_up
            try:
                await future
            finally:
                cleaned_up = True

        with trio.CancelScope() as scope:
            scope.cancel()
            await run_coroutine(wait())
        assert scope.cancelled_caught
        assert (future.cancelled(), cleaned_up) == (True, True)
