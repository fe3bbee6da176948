"""The fence around trio-asyncio: callbacks run together, no error ends the loop, what is replaced is still in use."""

import asyncio
import inspect
import logging
import socket

import pytest
import trio
import trio_asyncio

from appliance.submission.loop import CALLBACKS_PER_TURN, attach, prepare


async def test_callbacks_do_not_take_a_turn_each() -> None:
    """As in asyncio: what waits is run in its order, within a turn or two, and Trio's tasks are not starved."""
    ran: list[int] = []
    enough = False
    async with trio_asyncio.open_loop() as loop:
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
    async with trio_asyncio.open_loop() as loop:
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
        async with trio_asyncio.open_loop() as loop:
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
    """After each read the loop awaits `synchronize`, whose replacement therefore saves that wait."""
    awaited = 0

    async def synchronize() -> None:
        nonlocal awaited
        awaited += 1

    async with trio_asyncio.open_loop() as loop:
        assert list(inspect.signature(loop.synchronize).parameters) == []
        assert list(inspect.signature(loop._main_loop_one).parameters) == ["no_wait"]
        prepare(loop)
        loop.synchronize = synchronize
        ours, theirs = socket.socketpair()
        with ours:
            attach(loop, Echo(), theirs)
            client = trio.socket.from_stdlib_socket(ours)
            for number in range(3):
                await client.send(b"%d" % number)
                with trio.fail_after(5):
                    assert await client.recv(10) == b"%d" % number
                await trio.testing.wait_all_tasks_blocked()
                assert awaited == number + 1
