"""trio-asyncio's loop as submission runs it: callbacks of one turn together, and no error that ends it."""

import logging

import pytest
import trio
import trio_asyncio

from appliance.submission.loop import IN_A_ROW, prepare


async def test_callbacks_do_not_take_a_turn_each() -> None:
    """As in asyncio: what waits is run in its order, within a turn or two, and Trio's tasks are not starved."""
    ran: list[int] = []
    enough = False
    async with trio_asyncio.open_loop() as loop:
        prepare(loop)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(IN_A_ROW):
            loop.call_soon(ran.append, number)
        for _ in range(4):
            await trio.lowlevel.checkpoint()
        assert ran == list(range(IN_A_ROW))

        def again() -> None:
            ran.append(0)
            if not enough:
                loop.call_soon(again)

        loop.call_soon(again)
        with trio.fail_after(5):
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        enough = True
        assert len(ran) > 3 * IN_A_ROW


async def test_timers_still_run() -> None:
    """A callback for later comes when it is due, whatever else goes on."""
    done = trio.Event()
    async with trio_asyncio.open_loop() as loop:
        prepare(loop)
        loop.call_later(0.05, done.set)
        with trio.fail_after(5):
            await done.wait()


async def test_an_error_in_a_callback_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is for the log; a connection that broke is nobody's business."""

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
