"""In charge of the pause of all mail: while it lasts nobody is posted to, and then nothing is lost or repeated."""

from pathlib import Path

import trio
from trio.testing import MockClock

from appliance.model.webhooks import PostStatus
from appliance.store.pools import EVERY
from appliance.webhook.pause import LOOK_EVERY
from appliance.webhook.post import Posted
from tests.webhook.simulated_dispatcher import NOBODY, Seen, stage, url_of


async def test_a_restored_server_posts_nothing_before_it_is_resumed(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Neither what was due when it starts nor what comes due later; after the pause each goes once, within seconds."""
    async with stage(tmp_path) as played:
        await played.account("demo")
        await played.result("demo")
        await played.store.pools.hold(EVERY, "restored")
        async with played.running():
            await trio.sleep(10)
            await played.result("demo")
            await trio.sleep(86_400)
            assert played.receivers.seen == []
            assert {each.status for each in played.deliveries("demo")} == {PostStatus.PENDING}
            await played.store.pools.release(EVERY)
            await played.done("demo", within=2 * LOOK_EVERY)
            await trio.sleep(60)
    assert len(played.receivers.seen) == 2


async def test_a_pause_holds_what_a_line_would_go_on_with(tmp_path: Path, autojump_clock: MockClock) -> None:
    """What is on its way is finished; the rest of a long line waits, though its receiver is quick to answer."""

    async def quickly(_: Seen) -> Posted:
        await trio.sleep(0.1)
        return Posted(200, b"", None, 100)

    async with stage(tmp_path) as played:
        await played.account("demo")
        played.receivers.answers[url_of("demo")] = quickly
        await played.result("demo", *(f"a{number}@example.net" for number in range(500)))
        async with played.running(slots=1):
            await trio.sleep(5)
            await played.store.pools.hold(EVERY, "by hand")
            await trio.sleep(2 * LOOK_EVERY)
            count = len(played.receivers.seen)
            assert 40 <= count <= 70
            await trio.sleep(100)
            assert len(played.receivers.seen) == count
            await played.store.pools.release(EVERY)
            await played.done("demo")
    assert len(played.receivers.seen) == 500


async def test_a_hold_of_one_pool_holds_no_event(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Only a pause of everything does."""
    async with stage(tmp_path) as played:
        await played.account("demo")
        await played.store.pools.hold("google", "they refuse us")
        async with played.running():
            await played.result("demo")
            await played.done("demo", within=5)
    assert len(played.receivers.seen) == 1


async def test_a_retry_that_came_due_goes_after_the_pause(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A pause uses up no attempt: the schedule goes on where it stood."""
    async with stage(tmp_path) as played:
        await played.account("demo")
        played.receivers.answers[url_of("demo")] = NOBODY
        async with played.running():
            await played.result("demo")
            await trio.sleep(1)
            await played.store.pools.hold(EVERY, "by hand")
            await trio.sleep(3_600)
            assert len(played.receivers.seen) == 1
            await played.store.pools.release(EVERY)
            await trio.sleep(60)
            assert len(played.receivers.seen) == 2
            (delivery,) = played.deliveries("demo")
    assert (delivery.status, delivery.attempt) == (PostStatus.PENDING, 2)
