"""The pause of all mail: while it lasts nothing is posted, and afterwards nothing is lost or repeated."""

from pathlib import Path

import trio
from trio.testing import MockClock

from appliance.model.webhooks import PostStatus
from appliance.store.pools import EVERY
from appliance.webhook.dispatcher import PAUSE_POLL_EVERY
from appliance.webhook.http import Posted
from tests.webhook.simulated_dispatcher import REFUSED, Seen, simulation, url_of


async def test_a_restored_server_posts_nothing_before_it_is_resumed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Neither what was due when it starts nor what comes due later; after the pause each goes once, within seconds."""
    async with simulation(tmp_path) as sim:
        await sim.account("demo")
        await sim.result("demo")
        await sim.store.pools.hold(EVERY, "restored")
        async with sim.running():
            await trio.sleep(10)
            await sim.result("demo")
            await trio.sleep(86_400)
            assert sim.receivers.seen == []
            assert {each.status for each in await sim.deliveries("demo")} == {PostStatus.PENDING}
            await sim.store.pools.release(EVERY)
            await sim.done("demo", within=2 * PAUSE_POLL_EVERY)
            await trio.sleep(60)
    assert len(sim.receivers.seen) == 2


async def test_a_pause_holds_the_rest_of_a_queue(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What is in flight is finished; the rest of a long queue waits, though its receiver answers fast."""

    async def quickly(_: Seen) -> Posted:
        await trio.sleep(0.1)
        return Posted(200, b"", None, 100)

    async with simulation(tmp_path) as sim:
        await sim.account("demo")
        sim.receivers.answers[url_of("demo")] = quickly
        await sim.result("demo", *(f"a{number}@example.net" for number in range(500)))
        async with sim.running(slots=1):
            await trio.sleep(5)
            await sim.store.pools.hold(EVERY, "by hand")
            await trio.sleep(2 * PAUSE_POLL_EVERY)
            count = len(sim.receivers.seen)
            assert 40 <= count <= 70
            await trio.sleep(100)
            assert len(sim.receivers.seen) == count
            await sim.store.pools.release(EVERY)
            await sim.done("demo")
    assert len(sim.receivers.seen) == 500


async def test_a_hold_of_one_pool_holds_no_event(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only a pause of everything does."""
    async with simulation(tmp_path) as sim:
        await sim.account("demo")
        await sim.store.pools.hold("google", "they refuse us")
        async with sim.running():
            await sim.result("demo")
            await sim.done("demo", within=5)
    assert len(sim.receivers.seen) == 1


async def test_a_retry_that_came_due_goes_after_the_pause(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A pause uses up no attempt: the schedule goes on where it stood."""
    async with simulation(tmp_path) as sim:
        await sim.account("demo")
        sim.receivers.answers[url_of("demo")] = REFUSED
        async with sim.running():
            await sim.result("demo")
            await trio.sleep(1)
            await sim.store.pools.hold(EVERY, "by hand")
            await trio.sleep(3_600)
            assert len(sim.receivers.seen) == 1
            await sim.store.pools.release(EVERY)
            await trio.sleep(60)
            assert len(sim.receivers.seen) == 2
            (delivery,) = await sim.deliveries("demo")
    assert (delivery.status, delivery.attempt) == (PostStatus.PENDING, 2)
