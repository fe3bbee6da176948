"""The fence around trio-asyncio: callbacks run together, no error ends the loop, what is replaced is still in use."""

import asyncio
import errno
import inspect
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from appliance.submission.connection import run_coroutine
from appliance.submission.server import CALLBACKS_PER_TURN, Poller, attach, open_loop, prepare


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
    done = trio.Event()
    async with open_loop() as loop:
        prepare(loop)
        loop.call_later(0.05, done.set)
        with trio.fail_after(5):
            await done.wait()


async def test_an_error_in_a_callback_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
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
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def test_a_callback_after_the_end_of_the_loop_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """A client may still send when the loop has ended; its callbacks can be queued no more."""
    async with open_loop() as loop:
        prepare(loop)
        with caplog.at_level(logging.ERROR, "appliance"):
            loop.call_exception_handler({"message": "queued", "exception": trio.ClosedResourceError()})
    with caplog.at_level(logging.ERROR, "appliance"):
        loop.call_exception_handler({"message": "closed", "exception": RuntimeError("Event loop is closed")})
    assert caplog.records == []


async def test_the_replaced_parts_are_those_that_the_loop_uses() -> None:
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
    async with echoing() as (transport, client):
        transport.max_size = 3  # type: ignore[attr-defined]
        await client.send(b"0123456789")
        received = b""
        with trio.fail_after(5):
            while len(received) < 10:
                received += await client.recv(10)
        assert received == b"0123456789"


async def test_a_transport_that_is_paused_reads_nothing() -> None:
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


# On 3.11 to 3.13 this makes asyncio look like that of 3.14; there it changes nothing.
LIKE_3_14 = """
import asyncio, asyncio.events
if hasattr(asyncio.events, "BaseDefaultEventLoopPolicy"):
    asyncio.events._BaseDefaultEventLoopPolicy = asyncio.events.BaseDefaultEventLoopPolicy
    del asyncio.events.BaseDefaultEventLoopPolicy
    asyncio.__dict__.pop("AbstractChildWatcher", None)
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIKE_3_14 + code], capture_output=True, text=True, timeout=60, check=False
    )


def test_trio_asyncio_needs_the_removed_names() -> None:
    """When this fails, trio-asyncio supports Python 3.14 by itself: delete `_removed_names`."""
    assert "AttributeError" in run_python("import trio_asyncio").stderr


def test_the_loop_opens_and_asyncio_is_left_as_it_was() -> None:
    run = run_python("""
import trio
from appliance.submission.server import open_loop
assert not hasattr(asyncio.events, "BaseDefaultEventLoopPolicy")
assert not hasattr(asyncio, "AbstractChildWatcher")
async def main():
    async with open_loop():
        print("opened")
trio.run(main)
""")
    assert (run.stdout, run.stderr) == ("opened\n", "")
