"""Numbers by domain, tag, template and provider: each recipient once, bounded values, the same before and after."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from appliance.model.accounts import Account
from appliance.model.dashboard import Dimension
from appliance.model.mail import FailureReason, NewMessage, Outcome, RecipientStatus
from appliance.store import Store
from appliance.store import breakdown as module
from appliance.store.breakdown import VALUES_KEPT, VALUES_MOST, VALUES_TOLD, largest
from appliance.times import DAY, HOUR
from tests.store.samples import SECOND, Clock, Messages, expire, outcome, record

DELIVERED, BOUNCED, FAILED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED
DESTINATION = "INSERT INTO destinations (domain, pool, updated_at) VALUES (:domain, :pool, 0)"
Told = dict[str, dict[str, int]]


async def told(store: Store, account: Account, dimension: Dimension, since: int = 0) -> Told:
    found = await store.breakdown.of(account.id, dimension, since)
    return {value: dict(counts) for value, counts in found.by_value.items()}


async def accept(store: Store, message: NewMessage, **changes: object) -> None:
    await store.messages.accept(structs.replace(message, **changes))


async def count_all(store: Store, clock: Clock) -> None:
    clock.now += 61 * SECOND
    counting = replace(store.breakdown, rows_summed=2)
    while await counting.count():
        pass


async def rows(store: Store) -> int:
    ((count,),) = await store.engine.rows("SELECT count(*) FROM daily_breakdown", {})
    return int(count)


async def test_recipients_are_counted_by_each_of_their_values(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    await store.engine.change(DESTINATION, {"domain": "gmail.test", "pool": "google"})
    await store.engine.change(DESTINATION, {"domain": "own.test", "pool": "mx.own.test"})
    for test in (False, True):
        await accept(store, messages.new("a@gmail.test", "b@own.test", test=test), template_alias="welcome")
        await accept(store, messages.new("c@gmail.test", test=test), tags=("two",), envelope_from="x@News.Example")
        await accept(store, messages.new("d@new.test", test=test), tags=())
        await record(store, clock, [DELIVERED, BOUNCED, DELIVERED, FAILED])
    expected: dict[Dimension, Told] = {
        Dimension.DOMAIN: {
            "example.com": {"sent": 3, "delivered": 1, "bounced": 1, "failed": 1},
            "news.example": {"sent": 1, "delivered": 1},
        },
        Dimension.TAG: {
            "one": {"sent": 2, "delivered": 1, "bounced": 1},
            "two": {"sent": 3, "delivered": 2, "bounced": 1},
        },
        Dimension.TEMPLATE: {"welcome": {"sent": 2, "delivered": 1, "bounced": 1}},
        Dimension.PROVIDER: {"google": {"sent": 2, "delivered": 2}, "": {"sent": 2, "bounced": 1, "failed": 1}},
    }
    for _ in range(2):
        for dimension, wanted in expected.items():
            assert await told(store, account, dimension) == wanted
            assert await store.breakdown.of("acc_other", dimension, 0) == ({}, None)
            assert await store.breakdown.of(account.id, dimension, clock.now + DAY) == ({}, None)
        await count_all(store, clock)
    assert await rows(store) > 0


async def test_untried_mail_is_told_apart(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await store.messages.accept(messages.new("a@example.net", "b@example.net"))
    due = await store.queue.due(simulated=True, most=9)
    reasons = ((BOUNCED, FailureReason.SUPPRESSED), (FAILED, FailureReason.CANCELLED))
    await store.queue.record(
        [
            Outcome(each, status, (), at=clock(), failure=reason)
            for each, (status, reason) in zip(due, reasons, strict=True)
        ]
    )
    for _ in range(2):
        assert await told(store, account, Dimension.DOMAIN) == {
            "example.com": {"sent": 2, "suppressed": 1, "cancelled": 1}
        }
        await count_all(store, clock)


async def test_everything_is_counted_once(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    counting = replace(store.breakdown, rows_summed=3)
    for number in range(1, 7):
        await store.messages.accept(messages.new(*[f"r{each}@example.net" for each in range(4)]))
        await record(store, clock, [DELIVERED, DELIVERED, BOUNCED, FAILED])
        wanted = {"sent": 4 * number, "delivered": 2 * number, "bounced": number, "failed": number}
        for _ in range(2):
            assert await told(store, account, Dimension.TAG) == {"one": wanted, "two": wanted}
            clock.now += 25 * SECOND
            await counting.count()
    clock.now += HOUR
    while await counting.count():
        pass
    assert await told(store, account, Dimension.TAG) == {"one": wanted, "two": wanted}


async def test_what_another_node_has_added_is_not_added_again(
    store: Store, messages: Messages, account: Account, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.messages.accept(messages.new("a@example.net"))
    clock.now += 61 * SECOND
    engine, done = store.engine, False
    write = engine.write

    async def after_another(work: object, **options: object) -> object:
        nonlocal done
        if not done:
            done = True
            await store.breakdown.count()
        return await write(work, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "write", after_another)
    await store.breakdown.count()
    assert done
    assert await told(store, account, Dimension.DOMAIN) == {"example.com": {"sent": 1}}


async def tagged(store: Store, messages: Messages, *each: Iterable[str]) -> None:
    for tags in each:
        await accept(store, messages.new("a@example.net"), tags=tuple(tags))


def many(name: str) -> list[list[str]]:
    return [[f"{name}-{number}" for number in range(at, at + 20)] for at in range(0, VALUES_MOST, 20)]


async def test_only_the_largest_values_stay(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await tagged(store, messages, *many("new"), *[["order", "reset"]] * 2, ["reset"])
    await count_all(store, clock)
    await tagged(store, messages, *many("more"), ["order"])
    await count_all(store, clock)
    found = await told(store, account, Dimension.TAG)
    assert (found["order"], found["reset"]) == ({"sent": 3}, {"sent": 3})
    ((kept,),) = await store.engine.rows("SELECT count(*) FROM daily_breakdown WHERE dimension = 'tag'", {})
    assert VALUES_KEPT <= kept <= VALUES_MOST + 1
    assert len(found) == VALUES_TOLD + 1
    assert sum(counts["sent"] for counts in found.values()) == 2 * VALUES_MOST + 6
    assert found[""]["sent"] >= VALUES_MOST - 2


def test_the_largest_are_told_and_the_others_together() -> None:
    by_value = {f"v{number}": {"sent": number, "delivered": number} for number in range(1, 6)} | {"a": {"sent": 3}}
    found = largest({"": {"sent": 10, "bounced": 5}, **by_value}, 4)
    assert list(found) == ["v5", "v4", "a", "v3", ""]
    assert found[""] == {"sent": 13, "delivered": 3, "bounced": 5}
    assert largest({}, 4) == {}


async def test_no_more_is_read_than_shown(store: Store, account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VALUES_READ", 60)
    add = """INSERT INTO daily_breakdown (account_id, dimension, day, value, kind, recipients)
        VALUES (:account_id, 'tag', :day, :value, :kind, :recipients)"""
    for number in range(70):
        for kind, recipients in (("sent", 2), ("delivered", 1)):
            row = {"account_id": account.id, "day": number % 3, "value": f"v{number:02}", "kind": kind}
            await store.engine.change(add, row | {"recipients": recipients + number // 69})
    given = []

    def keep(by_value: module.ByValue, most: int) -> module.ByValue:
        given.append(len(by_value))
        return largest(by_value, most)

    monkeypatch.setattr(module, "largest", keep)
    found = await told(store, account, Dimension.TAG)
    assert given == [61]
    assert list(found)[:2] == ["v69", "v00"]
    assert len(found) == VALUES_TOLD + 1
    assert (found["v69"], found[""]) == ({"sent": 3, "delivered": 2}, {"sent": 40, "delivered": 20})


async def test_the_writer_is_given_few_values(
    store: Store, messages: Messages, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tagged(store, messages, *many("new"), ["order"], ["order"])
    clock.now += 61 * SECOND
    given: list[module.ByValue] = []
    monkeypatch.setattr(module, "_add", lambda found, _: given.extend(found.sums.values()))
    await store.breakdown.count()
    tags = max(given, key=len)
    assert len(tags) == VALUES_KEPT + 1
    assert (tags["order"], tags[""]) == ({"sent": 2}, {"sent": VALUES_MOST - VALUES_KEPT + 1})


async def test_of_what_is_not_counted_a_bounded_part_is_read(
    store: Store, messages: Messages, account: Account, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAIL_SLICES", 2)
    read = replace(store.breakdown, rows_summed=2)
    other = await store.accounts.create("other", "other@example.org", "hash", credit=None)
    await store.messages.accept(Messages(messages.env, other.id).new("a@example.net"))
    for number in range(9):
        await accept(store, messages.new("a@example.net"), tags=(f"tag {number}",))
    newest = clock.now
    summed = []

    def note(found: Iterable[tuple[Any, ...]]) -> module.Sums:
        summed.append(list(found))
        return sums(summed[-1])

    sums = module._sums
    monkeypatch.setattr(module, "_sums", note)
    by_value, until = await read.of(account.id, Dimension.DOMAIN, 0)
    assert by_value == {"example.com": {"sent": 5}}
    assert [len(each) for each in summed] == [1, 1, 0]
    assert until is not None
    assert until < newest
    await count_all(store, clock)
    assert await read.of(account.id, Dimension.DOMAIN, 0) == ({"example.com": {"sent": 9}}, None)


async def test_a_server_at_rest_writes_nothing(store: Store, messages: Messages, clock: Clock) -> None:
    await store.messages.accept(messages.new("a@example.net"))
    before = await store.queue_control.version()
    assert not await store.breakdown.count()
    assert await store.queue_control.version() == before
    await count_all(store, clock)
    before = await store.queue_control.version()
    for _ in range(3):
        clock.now += 10 * SECOND
        assert not await store.breakdown.count()
    assert await store.queue_control.version() == before


async def test_numbers_are_kept_for_ninety_days(store: Store, messages: Messages, clock: Clock) -> None:
    await store.messages.accept(messages.new("a@example.net"))
    await record(store, clock, [DELIVERED])
    clock.now += 2 * HOUR
    while await store.statistics.count():
        pass
    assert not await store.deletion.is_counted(clock.now - HOUR)
    await count_all(store, clock)
    assert await store.deletion.is_counted(clock.now - HOUR)
    clock.now += 90 * DAY
    await expire(store)
    assert await rows(store) > 0
    clock.now += DAY
    await expire(store)
    assert await rows(store) == 0


async def test_days_are_told_apart(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await store.messages.accept(messages.new("a@example.net"))
    (due,) = await store.queue.due(simulated=True, most=1)
    clock.now += DAY
    await store.queue.record([outcome(due, DELIVERED, clock())])
    for _ in range(2):
        assert await told(store, account, Dimension.DOMAIN) == {"example.com": {"sent": 1, "delivered": 1}}
        assert await told(store, account, Dimension.DOMAIN, clock.now) == {"example.com": {"delivered": 1}}
        await count_all(store, clock)


async def test_unreadable_tags_of_one_message_stop_no_counting(
    store: Store, messages: Messages, account: Account, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bad = messages.new("a@x.test")
    await accept(store, bad, tags=("one",))
    await accept(store, messages.new("b@x.test"), tags=("two",))
    await store.engine.change("UPDATE messages SET tags = :tags WHERE id = :id", {"tags": '{"one": 1}', "id": bad.id})
    await count_all(store, clock)
    assert await told(store, account, Dimension.TAG) == {"two": {"sent": 1}}
    assert await told(store, account, Dimension.DOMAIN) == {"example.com": {"sent": 2}}
    assert "unreadable tags skipped" in caplog.text
