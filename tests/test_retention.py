"""Retention: everything old is deleted, at a pace that leaves the writer to others."""

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import RetentionSettings
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.intake.limits import FreeSpace
from appliance.model.dashboard import Actor
from appliance.model.mail import RecipientStatus
from appliance.retention import (
    LEAST_BUDGET,
    LEAST_REST,
    MOST_BUDGET,
    RESCAN_EVERY,
    SLICE_SECONDS,
    URGENT_SWEEP_EVERY,
    DeletionPace,
    RetentionWorker,
    rest,
)
from appliance.store import Store, open_store
from appliance.store.body_parts import PART
from appliance.store.engine import Slice
from appliance.telemetry.metrics import CLEARED
from tests.postgresql_server import PostgresServer
from tests.programs import needs
from tests.store.samples import DAY, Clock, Messages, record

HUGE = 2**62
DELIVERED = RecipientStatus.DELIVERED


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(now=clock), inline=True) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def messages(store: Store, clock: Clock) -> Messages:
    account = await store.accounts.create("demo", "demo@example.org", "hash", credit=1_000)
    return Messages(Environment(now=clock), account.id)


@pytest.fixture
def worker(store: Store, clock: Clock, tmp_path: Path) -> RetentionWorker:
    env = Environment(now=clock)
    return RetentionWorker(store, env, RetentionSettings(), FreeSpace(tmp_path, 0, 0, env))


def in_all(kind: str) -> int:
    return CLEARED.values.get(kind, 0)


async def test_a_round_takes_all_that_is_old(
    store: Store, messages: Messages, worker: RetentionWorker, clock: Clock, autojump_clock: MockClock
) -> None:
    before = {kind: in_all(kind) for kind in ("bodies", "messages", "events", "books", "expired")}
    new = [messages.new(key=f"k{number}") for number in range(3)]
    for each in new:
        await store.messages.accept(each)
    await record(store, clock, [DELIVERED] * 2)
    clock.now += 2 * DAY
    await worker.sweep()
    await store.statistics.count()
    await store.breakdown.count()
    assert [await store.messages.mime(each.id) for each in new] == [None, None, new[2].mime]
    clock.now += 30 * DAY
    await trio.sleep(RESCAN_EVERY)
    assert await worker.sweep() is True
    assert [await store.messages.read(messages.account_id, each.id) is None for each in new] == [True, True, False]
    after = {kind: in_all(kind) - number for kind, number in before.items()}
    assert after == {"bodies": 2, "messages": 2, "events": 2, "books": 2, "expired": 3}


@needs("postgresql")
async def test_a_round_on_postgresql(tmp_path: Path, clock: Clock, postgres: PostgresServer) -> None:
    env = Environment(now=clock)

    async def sweep(store: Store) -> bool:
        full = FreeSpace(tmp_path, HUGE, 0, env)
        return await RetentionWorker(store, env, RetentionSettings(), full).sweep()

    async with open_store(tmp_path, env, url=postgres.new_database()) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash", credit=1_000)
        messages = Messages(env, account.id)
        new = [messages.new(key=f"k{number}") for number in range(2)] + [messages.new(size=2_000_000)]
        for each in new:
            await store.messages.accept(each)
        await record(store, clock, [DELIVERED] * 3)
        clock.now += 2 * DAY
        assert await sweep(store)
        await store.statistics.count()
        await store.breakdown.count()
        assert [await store.messages.mime(each.id) for each in new] == [None] * 3
        assert await store.engine.rows("SELECT count(*) FROM message_body_parts", {}) == [(0,)]
        clock.now += 30 * DAY
        assert await sweep(store)
        assert [await store.messages.read(account.id, each.id) for each in new] == [None] * 3


async def test_a_sweep_takes_the_parts_of_large_messages(
    store: Store, messages: Messages, worker: RetentionWorker, clock: Clock, autojump_clock: MockClock
) -> None:
    new, crashed = messages.new(size=2_000_000), messages.new(size=2_000_000)
    await store.messages.accept(new)
    left = "INSERT INTO message_body_parts SELECT :id, number, content FROM message_body_parts"
    await store.engine.change(left, {"id": crashed.id})
    await store.engine.change("INSERT INTO loose_parts VALUES (:id)", {"id": crashed.id})
    await worker.sweep()
    assert await store.messages.mime(new.id) == new.mime
    await record(store, clock, [DELIVERED])
    clock.now += 2 * DAY
    await trio.sleep(RESCAN_EVERY)
    before = in_all("parts")
    await worker.sweep()
    assert await store.engine.rows("SELECT count(*) FROM message_body_parts", {}) == [(0,)]
    assert in_all("parts") - before == -(-2_000_000 // PART) + 1


async def test_mail_waits_for_the_statistics(
    store: Store, messages: Messages, worker: RetentionWorker, clock: Clock, autojump_clock: MockClock
) -> None:
    new = messages.new()
    await store.messages.accept(new)
    await record(store, clock, [DELIVERED])
    clock.now += 31 * DAY
    assert await worker.sweep() is False
    assert await store.messages.mime(new.id) is None
    assert await store.messages.read(messages.account_id, new.id) is not None
    await store.statistics.count()
    await store.breakdown.count()
    assert await worker.sweep() is True
    assert await store.messages.read(messages.account_id, new.id) is None


async def test_what_was_passed_over_is_met_again(
    store: Store, messages: Messages, worker: RetentionWorker, clock: Clock, autojump_clock: MockClock
) -> None:
    late, soon = messages.new("late@example.net"), messages.new("soon@example.net")
    for each in (late, soon):
        await store.messages.accept(each)
    (due,) = [each for each in await store.queue.due(simulated=True, most=9) if each.message_id == soon.id]
    await store.queue_control.cancel(due.message_id, "no")
    clock.now += 2 * DAY
    await worker.sweep()
    assert (await store.messages.mime(soon.id), await store.messages.mime(late.id)) == (None, late.mime)
    await store.queue_control.cancel(late.id, "no")
    clock.now += 2 * DAY
    await trio.sleep(RESCAN_EVERY)
    await worker.sweep()
    assert await store.messages.mime(late.id) is None


async def test_a_disk_that_is_nearly_full_is_given_everything(
    store: Store, messages: Messages, worker: RetentionWorker, clock: Clock, tmp_path: Path, autojump_clock: MockClock
) -> None:
    for _ in range(5):
        await store.messages.accept(messages.new(size=100_000))
    await record(store, clock, [DELIVERED] * 5)
    clock.now += 2 * DAY
    await worker.sweep()
    assert store.space is not None
    assert (await store.space.usage()).free_pages > 100
    env = Environment(now=clock)
    eager = RetentionWorker(store, env, RetentionSettings(), FreeSpace(tmp_path, HUGE, 0, env))
    with trio.move_on_after(URGENT_SWEEP_EVERY):
        await eager.run()
    assert (await store.space.usage()).free_pages == 0


async def test_a_storage_that_refuses_is_tried_again(
    store: Store,
    worker: RetentionWorker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    rounds: list[float] = []

    async def refuse() -> bool:
        rounds.append(trio.current_time())
        raise StorageUnavailable("The storage cannot take writes right now.")

    monkeypatch.setattr(worker, "sweep", refuse)
    with trio.move_on_after(2.5 * SLEEP_LIMIT):
        await worker.run()
    assert [after - before for before, after in pairwise(rounds)] == [SLEEP_LIMIT, SLEEP_LIMIT]


async def test_the_writer_is_left_to_others(
    store: Store, worker: RetentionWorker, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    slices = iter([True] * 9 + [False])

    async def slow(*_: object) -> Slice:
        await trio.sleep(0.02)
        return Slice(1, 0.004, more=next(slices))

    monkeypatch.setattr(type(store.deletion), "expired", slow)
    began = trio.current_time()
    await worker.sweep()
    assert trio.current_time() - began >= 10 * 0.02 * 4


def _after(seconds: Callable[[int], float], slices: int) -> int:
    pace = DeletionPace()
    for _ in range(slices):
        pace.learn(seconds(pace.budget))
    return pace.budget


def test_slices_become_as_large_as_their_time_allows() -> None:
    for cost in (0.00001, 0.00005, 0.0002):
        assert _after(lambda budget, cost=cost: budget * cost, 40) == pytest.approx(SLICE_SECONDS / cost, rel=0.1)  # type: ignore[misc]
    assert _after(lambda _: 1.0, 20) == LEAST_BUDGET
    assert _after(lambda _: 0.0, 20) == MOST_BUDGET


def test_one_slow_slice_is_no_reason_to_crawl() -> None:
    pace = DeletionPace(100)
    pace.learn(3.0)
    assert pace.budget == 50


def test_a_rest_is_never_none() -> None:
    assert rest(0.0, hurried=True) == LEAST_REST
    assert rest(0.1, hurried=False) == pytest.approx(0.3)
    assert rest(0.1, hurried=True) == pytest.approx(0.1)


async def test_an_audit_log_that_is_too_long_is_warned_of(
    store: Store,
    worker: RetentionWorker,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(40):
        async with store.audit.noting(Actor("user", "a"), "domain.added", "cli", ("acc_1",), str(number)):
            pass
    clock.now += 8 * DAY
    monkeypatch.setattr(store, "deletion", replace(store.deletion, audit_lines=1))
    await worker.sweep()
    assert len(await store.audit.page("acc_1")) == 1
    said = [vars(each)["fields"] for each in caplog.records if "audit log too long" in each.message]
    assert said == [{"account_id": "acc_1"}]


async def test_unreadable_values_stop_no_deletion(
    store: Store, messages: Messages, worker: RetentionWorker, clock: Clock, autojump_clock: MockClock
) -> None:
    new = [messages.new(key=f"k{number}") for number in range(3)]
    for message in new:
        await store.messages.accept(message)
    change = "UPDATE messages SET tags = :tags, sender = :sender, envelope_from = :sender WHERE id = :id"
    await store.engine.change(change, {"tags": '{"one": 1}', "sender": "no address", "id": new[0].id})
    await store.engine.change("UPDATE recipients SET address = 'no address' WHERE message_id = :id", {"id": new[0].id})
    await record(store, clock, [DELIVERED] * 3)
    clock.now += 2 * DAY
    await store.statistics.count()
    await store.breakdown.count()
    clock.now += 30 * DAY
    assert await worker.sweep() is True
    assert [await store.messages.read(messages.account_id, message.id) for message in new] == [None] * 3
