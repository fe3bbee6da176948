"""Retention: old mail goes when it has been final for long enough, whole, by index, and never undelivered."""

import random

import pytest
from msgspec.structs import replace

from appliance.model.accounts import Account
from appliance.model.mail import Outcome, RecipientStatus
from appliance.model.warmup import WarmupPace
from appliance.store import Store
from appliance.store.engine import START, Row, Slice
from appliance.store.retention import UNUSED_KEPT, within
from appliance.store.sessions import SESSION_LIFETIME
from tests.store.samples import CREDITS, DAY, SECOND, Clock, Messages, existing, expire, outcome, record

HOUR = 3600 * SECOND
DELIVERED, BOUNCED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED
DEFERRED, FAILED = RecipientStatus.DEFERRED, RecipientStatus.FAILED
OF_MESSAGE = {
    "messages": "SELECT * FROM messages WHERE id = :id",
    "recipients": "SELECT * FROM recipients WHERE message_id = :id ORDER BY id",
    "attempts": """SELECT a.* FROM attempts a WHERE a.recipient_id IN
        (SELECT id FROM recipients WHERE message_id = :id) ORDER BY a.recipient_id, number""",
    "message_bodies": "SELECT * FROM message_bodies WHERE message_id = :id",
    "events": "SELECT * FROM events WHERE message_id = :id ORDER BY id",
    "credit_ledger": "SELECT * FROM credit_ledger WHERE message_id = :id ORDER BY id",
}


async def kept(store: Store, message_id: str) -> dict[str, list[Row]]:
    return {table: await store.engine.rows(query, {"id": message_id}) for table, query in OF_MESSAGE.items()}


async def tables(store: Store, message_id: str) -> set[str]:
    return {table for table, found in (await kept(store, message_id)).items() if found}


async def bodies(store: Store, clock: Clock, age: int = DAY, after: str = START) -> int:
    total, more = 0, True
    while more:
        part = await store.deletion.bodies(after, clock.now - age, clock.now, 50)
        total, after, more = total + part.deleted, part.after, part.more
    return total


async def mail(store: Store, clock: Clock, age: int = 30 * DAY) -> int:
    while await store.statistics.count() or await store.breakdown.count():
        pass
    assert await store.deletion.is_counted(clock.now - age)
    total = 0
    for walk in (store.deletion.mail, store.deletion.events):
        after, more = START, True
        while more:
            part = await walk(after, clock.now - age, 50)
            total, after, more = total + (part.deleted if walk == store.deletion.mail else 0), part.after, part.more
    return total


async def test_the_body_goes_a_day_after_the_last_recipient_is_final(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    new = messages.new("a@example.net", "b@example.net")
    await store.messages.accept(new)
    await record(store, clock, [DELIVERED, DEFERRED])
    clock.now += 2 * DAY
    assert await bodies(store, clock) == 0
    assert (await store.messages.to_send(new.id))[0] == new.mime
    await record(store, clock, [DELIVERED])
    clock.now += DAY - HOUR
    assert await bodies(store, clock) == 0
    clock.now += HOUR + SECOND
    before = await kept(store, new.id)
    assert await bodies(store, clock) == 1
    assert await kept(store, new.id) == before | {"message_bodies": []}
    assert await store.messages.mime(new.id) is None
    read = existing(await store.messages.read(account.id, new.id))
    assert [each.status for each in read.recipients] == [DELIVERED, DELIVERED]
    facts = existing(await store.mail_log.facts(account.id, new.id))
    assert facts.body_kept is False


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_failure_counts_from_when_it_failed(store: Store, messages: Messages, clock: Clock, how: str) -> None:
    new = messages.new()
    await store.messages.accept(new)
    clock.now += 3 * DAY
    if how == "failed":
        await record(store, clock, [FAILED])
    else:
        await store.queue_control.cancel(new.id, "by its owner")
    clock.now += DAY - HOUR
    assert await bodies(store, clock) == 0
    clock.now += HOUR + SECOND
    assert await bodies(store, clock) == 1


async def test_a_request_can_be_repeated_when_its_body_is_gone(store: Store, messages: Messages, clock: Clock) -> None:
    new = messages.new(key="again")
    await store.messages.accept(new)
    await record(store, clock, [DELIVERED])
    clock.now += HOUR
    assert await bodies(store, clock, age=60 * SECOND) == 1
    assert await bodies(store, clock, age=60 * SECOND) == 0
    assert await store.messages.mime(new.id) is None
    facts = existing(await store.mail_log.facts(messages.account_id, new.id))
    assert facts.body_kept is False
    remembered = existing(await store.messages.remembered(messages.account_id, "key:1", "again"))
    assert remembered.receipt == new.receipt
    clock.now += DAY
    assert await bodies(store, clock, age=60 * SECOND) == 1
    assert (await kept(store, new.id))["message_bodies"] == []


async def test_a_message_goes_with_all_that_belongs_to_it(store: Store, messages: Messages, clock: Clock) -> None:
    new = messages.new("a@example.net", "b@example.net", "c@example.net")
    await store.messages.accept(new)
    await record(store, clock, [DELIVERED, BOUNCED, FAILED])
    other = messages.new()
    await store.messages.accept(other)
    clock.now += 30 * DAY - HOUR
    assert await mail(store, clock) == 0
    clock.now += HOUR + SECOND
    untouched = await kept(store, other.id)
    assert await mail(store, clock) == 1
    assert await tables(store, new.id) == {"credit_ledger"}
    assert await store.engine.rows("SELECT count(*) FROM attempts", {}) == [(0,)]
    assert await store.messages.read(messages.account_id, new.id) is None
    assert await store.records.of(new.id, messages.account_id) is None
    assert await store.mail_log.facts(messages.account_id, new.id) is None
    assert await kept(store, other.id) == untouched
    assert set(untouched) - {"attempts", "events"} == await tables(store, other.id)


async def test_what_is_not_counted_yet_is_not_deleted(store: Store, messages: Messages, clock: Clock) -> None:
    await store.messages.accept(messages.new())
    await record(store, clock, [DELIVERED])
    clock.now += 31 * DAY
    assert await store.deletion.is_counted(clock.now - 30 * DAY) is False
    await store.statistics.count()
    await store.breakdown.count()
    assert await store.deletion.is_counted(clock.now - 30 * DAY) is True


async def test_the_numbers_stay_when_the_messages_go(store: Store, messages: Messages, clock: Clock) -> None:
    began = clock.now
    for _ in range(3):
        await store.messages.accept(messages.new())
    await record(store, clock, [DELIVERED, BOUNCED, DELIVERED])
    clock.now += 31 * DAY
    before = await store.statistics.of(messages.account_id, began - HOUR)
    assert sum(before.by_hour.values()) == 6
    assert await mail(store, clock) == 3
    assert await store.statistics.of(messages.account_id, began - HOUR) == before


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
async def test_whatever_happened_nothing_undelivered_goes_and_nothing_old_stays(
    store: Store, messages: Messages, account: Account, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    final_at: dict[str, list[int | None]] = {}
    for _ in range(40):
        new = messages.new(
            *[f"{number}@example.net" for number in range(chance.randint(1, 3))], test=chance.random() < 0.3
        )
        await store.messages.accept(new)
        final_at[new.id] = await _happen(store, clock, chance)
        clock.now += chance.randint(0, 3 * DAY)
    undelivered = {each: await kept(store, each) for each, times in final_at.items() if None in times}
    await bodies(store, clock)
    await mail(store, clock)
    assert {each: await kept(store, each) for each in undelivered} == undelivered
    for message_id, times in final_at.items():
        last = clock.now if None in times else max(time or 0 for time in times)
        assert ("message_bodies" in await tables(store, message_id)) is (last >= clock.now - DAY)
        assert ("recipients" in await tables(store, message_id)) is (last >= clock.now - 30 * DAY)
        assert ("messages" in await tables(store, message_id)) is (last >= clock.now - 30 * DAY)
    lines = await store.accounts.ledger(account.id, 1_000)
    assert sum(line.amount for line in lines) == (await store.accounts.find(account.id)).credits
    assert lines[-1].amount == CREDITS


async def _happen(store: Store, clock: Clock, chance: random.Random) -> list[int | None]:
    times: list[int | None] = []
    newest = max(await store.queue.due(simulated=True, most=1_000), key=lambda each: each.message_id).message_id
    for recipient in [each for each in await store.queue.due(simulated=True, most=1_000) if each.message_id == newest]:
        clock.now += chance.randint(0, DAY)
        status = chance.choice([DELIVERED, DELIVERED, BOUNCED, FAILED, DEFERRED, None])
        if status is not None:
            fields = {"next_attempt_at": clock.now + 400 * DAY} if status is DEFERRED else {}
            result: Outcome = outcome(recipient, status, clock.now, **fields)
            await store.queue.record([result])
        times.append(None if status in (None, DEFERRED) else clock.now)
    return times


async def test_a_slice_is_no_more_than_was_asked_for(store: Store, messages: Messages, clock: Clock) -> None:
    for size in (100, 100, 100, 40_000, 40_000, 100):
        await store.messages.accept(messages.new(size=size))
    await record(store, clock, [DELIVERED] * 6)
    clock.now += 2 * DAY
    seen: list[int] = []
    after, more = START, True
    while more:
        part: Slice = await store.deletion.bodies(after, clock.now - DAY, clock.now, 2)
        seen, after, more = [*seen, part.deleted], part.after, part.more
    assert seen == [2, 1, 1, 1, 1]


async def test_what_may_not_go_is_passed_over(store: Store, messages: Messages, clock: Clock) -> None:
    store.deletion = replace(store.deletion, rows_scanned=2)
    for _ in range(5):
        await store.messages.accept(messages.new("waits@example.net"))
    await store.queue.record(
        [
            outcome(each, DEFERRED, clock.now, next_attempt_at=clock.now + 9 * DAY)
            for each in await store.queue.due(simulated=True, most=9)
        ]
    )
    await store.messages.accept(messages.new())
    await record(store, clock, [DELIVERED])
    clock.now += 2 * DAY
    assert await bodies(store, clock) == 1


def test_rows_are_taken_in_order_up_to_a_weight() -> None:
    looked = [("a", 5, True), ("b", 1, False), ("c", 5, True), ("d", 5, True)]
    assert within(10, looked, START, more=False) == ([looked[0], looked[2]], "c", True)
    assert within(1, looked, START, more=False) == ([looked[0]], "b", True)
    assert within(99, looked, START, more=False) == ([looked[0], looked[2], looked[3]], "d", False)
    assert within(99, [], "z", more=False) == ([], "z", False)


async def test_expired_keys_go_and_their_messages_stay(store: Store, messages: Messages, clock: Clock) -> None:
    old = messages.new(key="old")
    await store.messages.accept(old)
    clock.now += DAY // 2
    young = messages.new(key="young")
    await store.messages.accept(young)
    assert await expire(store) == 0
    clock.now += DAY // 2 + SECOND
    assert await expire(store) == 1
    assert await expire(store) == 0
    assert await store.messages.remembered(messages.account_id, "key:1", "young") is not None
    for message in (old, young):
        assert await store.messages.read(messages.account_id, message.id) is not None
        assert await store.messages.mime(message.id) is not None


async def test_sessions_go_when_they_are_not_renewed(store: Store, account: Account, clock: Clock) -> None:
    user = existing(await store.accounts.user_by_email(account.email))
    old, young = [await store.sessions.begin(user, "192.0.2.1", "curl") for _ in range(2)]
    assert old is not None
    assert young is not None
    clock.now += SESSION_LIFETIME // 2
    await store.sessions.extend(young.id)
    assert await expire(store) == 0
    clock.now += SESSION_LIFETIME // 2 + SECOND
    assert [each.id for each in await store.sessions.of(user.id)] == [young.id]
    assert await expire(store) == 1
    assert await store.accounts.user_of_session(old.id) is None
    assert await store.accounts.user_of_session(young.id) == user


async def test_unused_destinations_and_warmups_are_deleted(store: Store, clock: Clock) -> None:
    async def use(name: str) -> None:
        await store.pools.say([], {name: name})
        await store.warmups.keep([WarmupPace(name, "192.0.2.1", 0, clock.now, 1, clock.now, 1, clock.now)])

    await use("unused.test")
    await use("used.test")
    clock.now += UNUSED_KEPT // 2
    await use("used.test")
    assert await expire(store) == 0
    clock.now += UNUSED_KEPT // 2 + SECOND
    assert await expire(store) == 2
    assert await store.pools.destination("unused.test") is None
    assert await store.warmups.of("unused.test", "192.0.2.1") is None
    assert await store.pools.destination("used.test") == "used.test"
    assert await store.warmups.of("used.test", "192.0.2.1") is not None


async def test_much_is_swept_in_slices(store: Store, messages: Messages, clock: Clock) -> None:
    for number in range(25):
        await store.messages.accept(messages.new(key=f"key-{number}"))
    clock.now += DAY + SECOND
    assert [await expire(store, 10) for _ in range(4)] == [10, 10, 5, 0]
