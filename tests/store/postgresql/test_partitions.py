"""Partitions by time: made ahead, dropped when all in them is old, and never with anything that is not delivered."""

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
import trio

from appliance.config.settings import RetentionSettings
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.intake.limits import FreeSpace
from appliance.model.accounts import Account
from appliance.model.mail import NewMessage, RecipientStatus
from appliance.model.webhooks import EventType, SealedSecret, WebhookOptions
from appliance.retention import RetentionWorker
from appliance.store import Store, open_store
from appliance.store.body_parts import INLINE
from appliance.store.engine import Bindings
from appliance.store.mail_log import _PROBLEMS
from appliance.store.postgresql.connection import connect
from appliance.store.postgresql.engine import PostgresEngine, prepare
from appliance.store.postgresql.examine import examine
from appliance.store.postgresql.partitions import (
    KEPT_BY_DEFAULT,
    Span,
    TimePartitions,
    _Dropping,
    length,
    make_ahead,
    spans,
)
from appliance.store.queue import _DUE, _NEXT_DUE
from appliance.store.search_index import CHANGES_NOTED_AFTER
from appliance.times import DAY, HOUR
from tests.postgresql_server import PostgresServer
from tests.store.samples import HASH, MORNING, Clock, Messages, existing, outcome, record
from tests.store.test_body_parts_stored_bytes import counted, recounted
from tests.store.test_retention import kept, tables

DELIVERED, BOUNCED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED
DEFERRED, FAILED = RecipientStatus.DEFERRED, RecipientStatus.FAILED
KINDS = tuple(KEPT_BY_DEFAULT)


@pytest.fixture(scope="module")
def template(server: PostgresServer) -> str:
    url = server.new_database()
    trio.run(prepare, url, MORNING)
    with psycopg.connect(url) as connection:
        return connection.info.dbname


@pytest.fixture
def url(server: PostgresServer, template: str) -> str:
    return server.new_database(template)


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.retention.rest", lambda took, *, hurried: 0.0)


@pytest.fixture
async def store(url: str, clock: Clock, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(now=clock), url=url) as opened:
        assert isinstance(opened.engine, PostgresEngine)
        opened.engine.partitions = TimePartitions(opened.engine._run_on_thread, rows_read=3, worthwhile=1)
        yield opened


@pytest.fixture
async def account(store: Store) -> Account:
    return await store.accounts.create("demo", "demo@example.org", HASH, credit=1_000_000)


def worker(store: Store, clock: Clock, tmp_path: Path = Path("/tmp")) -> RetentionWorker:
    assert isinstance(store.engine, PostgresEngine)
    env = Environment(now=clock)
    return RetentionWorker(store, env, RetentionSettings(), FreeSpace(tmp_path, 0, 0, env))


async def sweep(store: Store, clock: Clock) -> None:
    while await store.statistics.count() or await store.breakdown.count():
        pass
    assert await worker(store, clock).sweep()


async def there(store: Store, kind: str) -> list[Span]:
    assert isinstance(store.engine, PostgresEngine)
    return await store.engine._run_on_thread(lambda connection: spans(connection, kind))


async def partition_of(store: Store, table: str, key: str, value: str) -> str:
    ((name,),) = await store.engine.rows(
        f"SELECT CAST(CAST(tableoid AS regclass) AS text) FROM {table} WHERE {key} = :value", {"value": value}
    )
    return str(name)


async def accepted(store: Store, messages: Messages, count: int) -> list[NewMessage]:
    made = [messages.new(f"{number}@example.net", key=messages.env.identifier("k")) for number in range(count)]
    for each in made:
        await store.messages.accept(each)
    return made


# ---- made ahead
@pytest.mark.parametrize(
    ("days", "hours"), [(1 / 24, 1), (1, 3), (7, 12), (30, 72), (90, 168), (365, 672), (4_000, 672)]
)
def test_a_partition_is_an_eighth_of_what_is_kept(days: float, hours: int) -> None:
    """Or less, so that rows live little longer and there are not many partitions."""
    assert length(round(days * DAY)) == hours * HOUR


async def test_partitions_are_made_ahead(store: Store, clock: Clock) -> None:
    for days in (0, 2, 11):
        clock.now += days * DAY
        await sweep(store, clock)
        for kind in KINDS:
            found = [span for span in await there(store, kind) if span.end > clock.now]
            assert found[0].start <= clock.now
            assert all(one.end == other.start for one, other in pairwise(found))
            assert clock.now + DAY <= found[-1].end <= clock.now + DAY + 2 * length(KEPT_BY_DEFAULT[kind]) + DAY


async def test_another_time_for_what_is_kept(store: Store, clock: Clock) -> None:
    assert store.engine.partitions is not None
    before = await there(store, "bodies")
    await store.engine.partitions.make({"bodies": 16 * DAY}, clock.now + DAY)
    found = await there(store, "bodies")
    assert found[: len(before)] == before
    assert [span.end - span.start for span in found[len(before) + 1 :]] == [2 * DAY] * (len(found) - len(before) - 1)
    assert all(one.end == other.start for one, other in pairwise(found))


async def test_rows_of_a_time_without_a_partition(store: Store, messages: Messages, clock: Clock) -> None:
    clock.now += 100 * DAY
    (new,) = await accepted(store, messages, 1)
    assert await partition_of(store, "recipients", "message_id", new.id) == "recipients_others"
    await record(store, clock, [DELIVERED])
    await sweep(store, clock)
    found = [span for span in await there(store, "mail") if span.end > clock.now]
    assert clock.now < found[0].start < clock.now + 2 * HOUR
    assert found[-1].end > clock.now + DAY
    clock.now += 40 * DAY
    await sweep(store, clock)
    assert await tables(store, new.id) <= {"credit_ledger"}
    assert await counted(store) == await recounted(store)


def test_a_lock_that_is_not_to_be_had(url: str) -> None:
    with connect(url, "node") as connection, psycopg.connect(url) as other:
        other.execute("SELECT 1 FROM events_others")
        make_ahead(connection, "events", 30 * DAY, MORNING + 30 * DAY)
        assert spans(connection, "events")[-1].end < MORNING + 30 * DAY
        other.rollback()
        make_ahead(connection, "events", 30 * DAY, MORNING + 30 * DAY)
        assert spans(connection, "events")[-1].end > MORNING + 30 * DAY


# ---- dropped
async def test_what_is_old_is_dropped(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    """Partition by partition: bodies, then records; what the account keeps is as if rows had been deleted."""
    new = await accepted(store, messages, 10)
    large = messages.new(size=INLINE + 1_000)
    await store.messages.accept(large)
    names = {
        await partition_of(store, "message_bodies", "message_id", new[0].id),
        await partition_of(store, "recipients", "message_id", new[0].id),
        await partition_of(store, "messages", "id", new[0].id),
    }
    await record(store, clock, [DELIVERED] * 11)
    clock.now += DAY + 8 * HOUR
    await sweep(store, clock)
    assert await store.engine.rows("SELECT count(*) FROM message_bodies", {}) == [(0,)]
    assert await store.engine.rows("SELECT count(*) FROM message_body_parts", {}) == [(0,)]
    assert await counted(store) == await recounted(store)
    assert len((await kept(store, new[0].id))["attempts"]) == 1
    balance = (await store.accounts.named("demo")).credits
    clock.now += 36 * DAY
    await sweep(store, clock)
    for each in [*new, large]:
        assert await tables(store, each.id) <= {"credit_ledger"}
    assert await store.engine.rows("SELECT count(*) FROM attempts", {}) == [(0,)]
    assert await counted(store) == await recounted(store) == {account.id: 0}
    assert (await store.accounts.named("demo")).credits == balance
    left = await store.engine.rows("SELECT CAST(relname AS text) FROM pg_class WHERE relkind = 'r'", {})
    assert not names & {name for (name,) in left}


async def test_what_is_not_old_enough_waits_for_its_partition(store: Store, messages: Messages, clock: Clock) -> None:
    (new,) = await accepted(store, messages, 1)
    await record(store, clock, [DELIVERED])
    (span,) = [span for span in await there(store, "bodies") if span.start <= clock.now < span.end]
    clock.now += DAY + HOUR // 2
    assert clock.now < span.end + DAY
    await sweep(store, clock)
    assert await store.messages.mime(new.id) is not None
    clock.now = span.end + DAY + HOUR
    await sweep(store, clock)
    assert await store.messages.mime(new.id) is None
    assert span.oid not in {each.oid for each in await there(store, "bodies")}


async def test_what_is_not_delivered_stays(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    new = await accepted(store, messages, 10)
    await record(store, clock, [DELIVERED] * 8)
    due = await store.queue.due(simulated=True, most=10)
    assert {each.message_id for each in due} == {each.id for each in new[8:]}
    results = [outcome(each, DEFERRED, clock(), next_attempt_at=clock.now + 50 * DAY) for each in due]
    await store.queue.record(results)
    before = {each.id: await kept(store, each.id) for each in new[8:]}
    spans_before = {kind: await there(store, kind) for kind in ("bodies", "mail")}
    clock.now += 45 * DAY
    await sweep(store, clock)
    for each in new[:8]:
        assert await tables(store, each.id) <= {"credit_ledger"}
    for each in new[8:]:
        assert await kept(store, each.id) == before[each.id]
    for kind, old in spans_before.items():
        first = (await there(store, kind))[0]
        assert (first.start, first.end) == (old[0].start, old[0].end)
        assert first.oid != old[0].oid
    assert await counted(store) == await recounted(store)
    clock.now += 10 * DAY
    for late in await store.queue.due(simulated=True, most=10):
        assert (await store.messages.to_send(late.message_id)).mime is not None
        await store.queue.record([outcome(late, DELIVERED, clock())])
    clock.now += 40 * DAY
    await sweep(store, clock)
    for each in new:
        assert await tables(store, each.id) <= {"credit_ledger"}
    assert await counted(store) == await recounted(store) == {account.id: 0}
    assert await store.engine.rows("SELECT count(*) FROM attempts", {}) == [(0,)]


async def test_search_changes_go_with_their_message(store: Store, messages: Messages, clock: Clock) -> None:
    async def change(count: int, next_attempt_at: int = 0) -> None:
        due = await store.queue.due(simulated=True, most=count)
        status = DEFERRED if next_attempt_at else DELIVERED
        fields = {"next_attempt_at": next_attempt_at} if next_attempt_at else {}
        await store.queue.record([outcome(each, status, clock(), **fields) for each in due])

    async def noted() -> set[str]:
        return set(await store.engine.all(str, "SELECT message_id FROM search_changes", {}))

    old = await accepted(store, messages, 6)
    clock.now += CHANGES_NOTED_AFTER
    await change(5)
    await change(1, clock.now + 60 * DAY)
    clock.now += 20 * DAY
    (young,) = await accepted(store, messages, 1)
    clock.now += CHANGES_NOTED_AFTER
    await change(1)
    assert await noted() == {each.id for each in (*old, young)}
    clock.now += 20 * DAY
    await sweep(store, clock)
    assert await store.engine.rows("SELECT count(*) FROM messages", {}) == [(2,)]
    assert await noted() == {old[5].id, young.id}


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happened(store: Store, messages: Messages, clock: Clock, seed: int) -> None:
    """Nothing goes before its time, nothing undelivered goes, and nothing old stays, with sweeps at any time."""
    chance = random.Random(seed)
    new: list[NewMessage] = []
    for _ in range(20):
        count = chance.randint(1, 3)
        new.append(messages.new(*[f"{each}@example.net" for each in range(count)]))
        await store.messages.accept(new[-1])
        for each in await store.queue.due(simulated=True, most=100):
            status = chance.choice([DELIVERED, DELIVERED, BOUNCED, FAILED, DEFERRED, None])
            if status is not None:
                fields = {"next_attempt_at": clock.now + chance.randint(1, 20) * DAY} if status is DEFERRED else {}
                await store.queue.record([outcome(each, status, clock(), **fields)])
        clock.now += chance.randint(0, 3 * DAY)
        if chance.random() < 0.3:
            await sweep(store, clock)
            await _check(store, clock, new, 3 * DAY)
    await sweep(store, clock)
    await _check(store, clock, new, 3 * DAY)


async def _check(store: Store, clock: Clock, new: list[NewMessage], longer: int) -> None:
    for each in new:
        found = await kept(store, each.id)
        rows = await store.engine.rows(
            """SELECT next_attempt_at, coalesce(delivered_at, bounced_at, failed_at, 0) FROM recipients
            WHERE message_id = :id""",
            {"id": each.id},
        )
        if not rows:
            assert not found["messages"] + found["message_bodies"] + found["attempts"]
            continue
        assert (len(found["messages"]), len(rows)) == (1, len(each.recipients))
        waits = any(due is not None for due, _ in rows)
        final_at = max(at for _, at in rows)
        if waits or final_at > clock.now - DAY:
            assert found["message_bodies"]
        elif final_at < clock.now - DAY - longer - HOUR:
            assert not found["message_bodies"]
        assert waits or final_at > clock.now - 30 * DAY - longer - HOUR
    assert await counted(store) == await recounted(store)


async def test_posts_that_wait_stay(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    secret = SealedSecret(b"sealed", "abcd")
    options = WebhookOptions("https://hooks.example.com/", tuple(EventType), enabled=True)
    await store.webhooks.save(account.id, options, "whk_1", secret)
    await accepted(store, messages, 6)
    await record(store, clock, [DELIVERED] * 6)
    final = """UPDATE webhook_deliveries SET status = 'success', next_attempt_at = NULL WHERE id IN
        (SELECT id FROM webhook_deliveries ORDER BY id LIMIT 5)"""
    await store.engine.change(final, {})
    waiting = await store.engine.rows("SELECT * FROM webhook_deliveries WHERE next_attempt_at IS NOT NULL", {})
    oid = (await there(store, "posts"))[0].oid
    clock.now += 6 * DAY
    await sweep(store, clock)
    assert await store.engine.rows("SELECT count(*) FROM webhook_deliveries", {}) == [(6,)]
    clock.now += 2 * DAY
    await sweep(store, clock)
    assert await store.engine.rows("SELECT * FROM webhook_deliveries", {}) == waiting
    assert (await there(store, "posts"))[0].oid != oid


# ---- at the same time
@contextmanager
def reading(url: str, table: str) -> Iterator[None]:
    with psycopg.connect(url) as other:
        other.execute(f"SELECT 1 FROM {table} LIMIT 1".encode())
        yield
        other.rollback()


async def test_a_long_reading_is_waited_for(
    store: Store, messages: Messages, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.store.postgresql.partitions.DROP_TRIES", 3)
    (new,) = await accepted(store, messages, 1)
    await record(store, clock, [DELIVERED])
    clock.now = (await there(store, "bodies"))[0].end + DAY + HOUR
    slowest = 0.0
    with reading(url, "message_bodies"):
        async with trio.open_nursery() as nursery:

            async def sender() -> None:
                nonlocal slowest
                while True:
                    began = time.monotonic()
                    await store.messages.accept(messages.new())
                    slowest = max(slowest, time.monotonic() - began)
                    await trio.sleep(0.02)

            nursery.start_soon(sender)
            await sweep(store, clock)
            nursery.cancel_scope.cancel()
        assert await store.messages.mime(new.id) is not None
    assert slowest < 1.0
    clock.now += HOUR
    await sweep(store, clock)
    assert await store.messages.mime(new.id) is None


async def _looked(store: Store, clock: Clock, kind: str, age: int) -> TimePartitions:
    partitions = store.engine.partitions
    assert isinstance(partitions, TimePartitions)
    while not (look := partitions._looks.get(kind)) or not look.ended:
        assert (await partitions.clear(kind, clock.now - age, clock.now - age, clock.now)).more
    return partitions


async def _drop(partitions: TimePartitions, clock: Clock, kind: str, age: int) -> int:
    deleted = 0
    for _ in range(50):
        step = await partitions.clear(kind, clock.now - age, clock.now - age, clock.now)
        deleted += step.deleted
        if not step.more:
            break
    return deleted


async def test_a_partition_changed_by_another_node(store: Store, messages: Messages, url: str, clock: Clock) -> None:
    """It was replaced, or the chore is another's: what was read does not count any more."""
    new = await accepted(store, messages, 3)
    await record(store, clock, [DELIVERED] * 3)
    clock.now += 40 * DAY
    partitions = await _looked(store, clock, "events", 30 * DAY)
    await store.engine.change("INSERT INTO chores VALUES ('retention', 'other', 1)", {})
    assert await _drop(partitions, clock, "events", 30 * DAY) == 0
    await store.engine.change("DELETE FROM chores", {})
    clock.now += 2 * HOUR
    partitions = await _looked(store, clock, "mail", 30 * DAY)
    name = await partition_of(store, "recipients", "message_id", new[0].id)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"ALTER TABLE {name} RENAME TO elsewhere".encode())
    assert await _drop(partitions, clock, "mail", 30 * DAY) == 0
    assert len(await kept(store, new[0].id)) > 3


@pytest.mark.parametrize("kind", ["bodies", "mail"])
async def test_a_node_whose_clock_is_behind(
    store: Store, messages: Messages, url: str, clock: Clock, kind: str, tmp_path: Path
) -> None:
    await accepted(store, messages, 3)
    await record(store, clock, [DELIVERED] * 3)
    late = messages.new()
    clock.now += 40 * DAY
    age = DAY if kind == "bodies" else 30 * DAY
    partitions = await _looked(store, clock, kind, age)
    if kind == "bodies":
        with pytest.raises(StorageUnavailable):
            await store.messages.accept(late)
        assert await _drop(partitions, clock, kind, age) == 3
        return
    await store.messages.accept(late)
    assert await _drop(partitions, clock, kind, age) == 0
    assert (await store.messages.to_send(late.id)).mime == late.mime


async def test_what_becomes_final_meanwhile_stays(store: Store, messages: Messages, clock: Clock) -> None:
    new = await accepted(store, messages, 6)
    await record(store, clock, [DELIVERED] * 5)
    clock.now += 40 * DAY
    for kind, age in (("bodies", DAY), ("mail", 30 * DAY)):
        partitions = await _looked(store, clock, kind, age)
        if kind == "mail":
            await record(store, clock, [DELIVERED])
        assert await _drop(partitions, clock, kind, age) == 5
    found = existing(await store.messages.read(messages.account_id, new[5].id))
    assert [each.status for each in found.recipients] == [DELIVERED]
    assert len((await kept(store, new[5].id))["attempts"]) == 1
    assert await store.messages.mime(new[5].id) is not None
    assert await counted(store) == await recounted(store)


async def test_a_body_that_changes_while_it_is_copied(
    store: Store, messages: Messages, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduled message is moved, another message is signed, between the copy of the rows and the lock."""
    moved, signed, *_ = await accepted(store, messages, 12)
    await record(store, clock, [DEFERRED] * 2 + [DELIVERED] * 10)
    copy_fixed = _Dropping._copy_fixed

    def copy_and_change(dropping: _Dropping) -> None:
        copy_fixed(dropping)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("UPDATE message_bodies SET mime = 'moved' WHERE message_id = %s", (moved.id,))
            other.execute("UPDATE message_bodies SET signature = 'signed' WHERE message_id = %s", (signed.id,))

    monkeypatch.setattr(_Dropping, "_copy_fixed", copy_and_change)
    clock.now += 40 * DAY
    partitions = await _looked(store, clock, "bodies", DAY)
    assert await _drop(partitions, clock, "bodies", DAY) == 10
    assert (await store.messages.to_send(moved.id))[:2] == (b"moved", None)
    assert (await store.messages.to_send(signed.id))[:2] == (signed.mime, b"signed")


# ---- around it
async def test_plans_go_by_the_indexes_of_partitions(store: Store, messages: Messages, clock: Clock) -> None:
    (new,) = await accepted(store, messages, 1)

    async def plan(query: str, wanted: Bindings) -> list[str]:
        return [str(line) for (line,) in await store.engine.rows(f"EXPLAIN {query}", wanted)]

    fill = """INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status,
            billing_status)
        SELECT 'msg_' || lpad(to_hex((CAST(:now AS bigint) >> 2) + i * 1000), 13, '0') || 'x', CAST(i AS text),
            :account, '', '', 0, 0, 'delivered', 'settled' FROM generate_series(1, 20000) i"""
    await store.engine.change(fill, {"now": clock.now, "account": messages.account_id})
    await store.engine.change("ANALYZE recipients", {})
    due = {"simulated": 0, "low": 0, "since": 0, "now": clock.now, "most": 10}
    for query in (_DUE, _NEXT_DUE):
        lines = await plan(query, due)
        assert not [line for line in lines if "Seq Scan" in line], lines
        assert [line for line in lines if "recipients_others_owner_simulated_low_next_attempt_at_idx" in line], lines
    lines = await plan(_PROBLEMS, {"account_id": messages.account_id, "since": 1, "most": 8})
    assert not [line for line in lines if "Seq Scan on recipients" in line], lines
    assert [line for line in lines if "recipients_others_account_id_coalesce_id_idx" in line], lines
    lines = await plan("SELECT 1 FROM recipients WHERE message_id = :id", {"id": new.id})
    assert len([line for line in lines if "Scan" in line]) == 1


async def test_the_doctor_sees_a_table_as_one(store: Store, messages: Messages, url: str) -> None:
    await accepted(store, messages, 1)
    facts = await trio.to_thread.run_sync(examine, url, lambda: 0, limiter=trio.CapacityLimiter(1))
    names = [each.name for each in facts.tables]
    assert names.count("recipients") == 1
    assert not [name for name in names if name.startswith("recipients_")]
