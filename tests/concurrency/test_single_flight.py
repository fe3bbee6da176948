"""Work that several tasks want at once is done once."""

import pytest
import trio
from trio.testing import MockClock

from appliance.concurrency.single_flight import SingleFlight


async def test_work_is_shared_by_key(autojump_clock: MockClock) -> None:
    """Tasks with one key share one run, others have their own, and nothing is remembered afterwards."""
    joint: SingleFlight[str, str] = SingleFlight()
    ran, got = [], []

    async def ask(key: str) -> None:
        async def work() -> str:
            ran.append(key)
            await trio.sleep(1)
            return key * 2

        got.append(await joint.run(key, work))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for key in "aabba":
                nursery.start_soon(ask, key)
    assert sorted(ran) == ["a", "a", "b", "b"]
    assert sorted(got) == ["aa"] * 6 + ["bb"] * 4
    assert not joint._running


async def test_a_failure_is_the_workers_own(autojump_clock: MockClock) -> None:
    """When the work raises for the first task, the next does it again; None is a value like any other."""
    joint: SingleFlight[str, None] = SingleFlight()
    tries = []

    async def work() -> None:
        tries.append(1)
        await trio.sleep(1)
        if len(tries) == 1:
            raise ValueError("only once")

    async def fail() -> None:
        with pytest.raises(ValueError, match="only once"):
            await joint.run("key", work)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(joint.run, "key", work)
    assert len(tries) == 2
