"""Mail of a stream with low priority waits for other mail, yet always gets a tenth."""

from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.concurrency.fair_share import LOW_TURN, AgeQueue, PriorityQueue
from appliance.deliver.pending import PASSING
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import RECIPIENTS_PER_VISIT
from appliance.deliver.providers import PoolLimits
from appliance.deliver.scheduler import TAKEN_PER_SLICE, Scheduler
from appliance.times import SECOND
from tests.deliver.simulated_delivery import OK, Stage, message, one, stage
from tests.fakes.mx import FakeMx, wait_and_say

TAKES = 0.5  # seconds, for one message
SLOTS = 2


def test_low_priority_has_one_turn_in_ten() -> None:
    queue = PriorityQueue[str, str]()
    for number in range(30):
        queue.of(0).add("shop", f"high{number}")
        queue.of(1).add("shop", f"low{number}")
    order = [queue.next() for _ in range(2 * LOW_TURN)]
    assert [number for number, item in enumerate(order, 1) if item and item.startswith("low")] == [10, 20]
    assert len(queue) == 40


def test_new_and_older_items_of_an_owner_take_turns() -> None:
    """A backlog delays a new item by one turn, and other owners not at all."""
    queue = AgeQueue[str, str]()

    def take(count: int) -> list[str | None]:
        return [queue.next_that(lambda _: True) for _ in range(count)]

    for number in range(4):
        queue.add("shop", f"older{number}")
    assert take(2) == ["older0", "older1"]
    for number in range(3):
        queue.add("shop", f"new{number}", 1)
    assert take(3) == ["older2", "new0", "older3"]
    queue.add("shop", "older4")
    queue.add("other", "a")
    queue.add("other", "b", 1)
    assert take(6) == ["new1", "a", "older4", "b", "new2", None]
    queue.add("shop", "older5")
    assert queue.next_that(lambda item: item.startswith("new")) is None
    assert (len(queue), take(1)) == (1, ["older5"])


def test_either_priority_gets_the_turns_that_the_other_leaves() -> None:
    queue = PriorityQueue[str, int]()
    for number in range(20):
        queue.of(1).add("shop", number)
    assert [queue.next() for _ in range(3)] == [0, 1, 2]
    queue.of(0).add("shop", 100)
    assert queue.next_that(lambda item: item < 100) == 3  # the other may not go
    assert queue.next() == 100
    assert queue.drain() == list(range(4, 20))
    assert queue.next() is None


def test_low_priority_leaves_a_tenth_of_a_rate() -> None:
    limiter, now = PoolLimiter("a", PoolLimits(per_minute=20)), 1_000 * SECOND
    assert limiter.has_token(now)
    taken = 0
    while limiter.has_spare_token(now):
        limiter.enter("shop", now)
        limiter.leave("shop")
        taken += 1
    assert taken == 18
    assert limiter.has_token(now)


async def queue_mail(play: Stage, count: int, *, low: int) -> None:
    async with trio.open_nursery() as together:
        for number in range(count):
            new = message(play.env, play.accounts["demo"], f"{'reader' if low else 'user'}{number}@a.test")
            together.start_soon(play.store.messages.accept, replace(new, low=low))
    play.scheduler.new_mail.request_poll()


def recipients(server: FakeMx) -> list[str]:
    return [line.partition("<")[2] for line in server.commands if line.startswith("RCPT")]


def newsletters(mail: list[str]) -> int:
    return sum(recipient.startswith("reader") for recipient in mail)


@pytest.mark.parametrize(("backlog", "low"), [(50, 1), (600, 1), (600, 0)])
async def test_a_login_code_passes_a_backlog_to_the_same_server(
    tmp_path: Path, autojump_clock: MockClock, backlog: int, low: int
) -> None:
    """It waits until one of the sessions is free, not for the backlog of its own account."""
    server = FakeMx(answers={".": wait_and_say(TAKES, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=SLOTS)) as play:
        await queue_mail(play, backlog, low=low)
        await trio.sleep((5 if low else 2 * PASSING) * TAKES)
        for number in range(10):
            began = trio.current_time()
            code = await play.offer(f"user{number}@a.test")
            await play.final(code, within=60)
            assert trio.current_time() - began < 3 * TAKES
        assert 0 < len(recipients(server)) - 10 < backlog


async def test_a_newsletter_keeps_a_tenth(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(TAKES, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=SLOTS)) as play:
        await queue_mail(play, 300, low=1)
        await queue_mail(play, 600, low=0)
        await trio.sleep(10)
        start = len(recipients(server))
        await trio.sleep(100 * TAKES)
        sent = recipients(server)[start:]
        assert len(sent) >= 100
        assert 0.08 <= newsletters(sent) / len(sent) <= 0.12


async def test_a_backlog_is_taken_from_the_store_in_slices(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, seen, longest, take = 0, 0, 0, Scheduler._take

    async def counting(*given: Any, **options: Any) -> None:
        nonlocal taken
        taken += 1
        await take(*given, **options)

    monkeypatch.setattr(Scheduler, "_take", counting)
    async with stage(tmp_path, *one(FakeMx()), running=False) as play:
        await queue_mail(play, RECIPIENTS_PER_VISIT, low=1)
        play.scheduler.new_mail.take()
        play.nursery.start_soon(play.scheduler.run)
        while seen < RECIPIENTS_PER_VISIT:
            await trio.lowlevel.checkpoint()
            longest, seen = max(longest, taken - seen), taken
    assert longest <= 2 * TAKEN_PER_SLICE  # Trio may run one of two tasks twice in a row
