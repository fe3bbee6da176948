"""Folding old ledger lines: a ledger still adds up when its messages are gone, and all else stays."""

import pytest

from appliance.model.accounts import Account, LedgerEntry, LedgerKind
from appliance.model.mail import RecipientStatus
from appliance.store import Store
from appliance.store.retention import STATISTICS_KEPT, fold
from tests.store.samples import CREDITS, DAY, Clock, Messages, record
from tests.store.test_retention import mail

DELIVERED, BOUNCED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED


async def tidy(store: Store, clock: Clock, budget: int = 50) -> int:
    total, after, more = 0, "", True
    while more:
        part = await store.ledger_folding.fold_old(after, clock.now - 30 * DAY, clock.now, budget)
        total, after, more = total + part.deleted, part.after, part.more
    return total


async def adds_up(store: Store, account: Account) -> list[LedgerEntry]:
    lines = (await store.accounts.ledger(account.id, 1_000))[::-1]
    balance = 0
    for line in lines:
        balance += line.amount
        assert line.balance == balance
    assert balance == (await store.accounts.find(account.id)).credits
    return lines


@pytest.mark.parametrize("budget", [1, 3, 1_000])
async def test_a_day_of_messages_becomes_one_line(
    store: Store, messages: Messages, account: Account, clock: Clock, budget: int
) -> None:
    for _ in range(2):
        for _ in range(5):
            await store.messages.accept(messages.new())
        await record(store, clock, [DELIVERED, BOUNCED, DELIVERED, BOUNCED, DELIVERED])
        clock.now += DAY
    await store.accounts.change_credits(account.id, 7)
    await store.messages.accept(messages.new())
    await record(store, clock, [DELIVERED])
    clock.now += 31 * DAY
    young = messages.new()
    await store.messages.accept(young)
    before = await adds_up(store, account)
    assert len(before) == 1 + 2 * 7 + 1 + 1 + 1
    assert await tidy(store, clock, budget) == 0  # the messages are still there
    await mail(store, clock)
    assert await tidy(store, clock, budget) > 0
    lines = await adds_up(store, account)
    assert [(line.kind, line.amount) for line in lines] == [
        (LedgerKind.GRANT, CREDITS),
        (LedgerKind.RESERVE, -3),
        (LedgerKind.RESERVE, -3),
        (LedgerKind.GRANT, 7),
        (LedgerKind.RESERVE, -1),
        (LedgerKind.RESERVE, -1),
    ]
    assert [line.message_id for line in lines] == [None] * 5 + [young.id]
    assert {line.id for line in lines} <= {line.id for line in before}
    assert await tidy(store, clock, budget) == 0


async def test_a_line_stays_with_its_message(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    numbers = []
    for number in range(5):
        new = messages.new(f"{number}@example.net")
        await store.messages.accept(new)
        numbers.append(new.id)
    due = await store.queue.due(simulated=True, most=9)
    waiting = next(each.message_id for each in due if each.address.startswith("2"))
    await record(store, clock, [DELIVERED, DELIVERED])
    await store.queue_control.cancel(numbers[3], "no")
    await store.queue_control.cancel(numbers[4], "no")
    clock.now += 31 * DAY
    assert await mail(store, clock) == 4
    await tidy(store, clock)
    lines = await adds_up(store, account)
    assert [line.amount for line in lines] == [CREDITS, -2, -1, 0]
    assert [line.message_id for line in lines] == [None, None, waiting, None]


def test_more_given_back_than_taken_is_a_release() -> None:
    lines = [
        ("led_1", "reserve", -1, 9, 0, "msg_1", 0),
        ("led_2", "release", 1, 10, 1, "msg_0", 0),
        ("led_3", "release", 1, 11, 2, "msg_0", 0),
        ("led_4", "release", 1, 12, DAY, "msg_0", 0),
    ]
    first, second = fold(lines)
    assert (first.first, first.last, first.amount, first.balance, first.kind) == (
        "led_1",
        "led_3",
        1,
        11,
        LedgerKind.RELEASE,
    )
    assert (second.first, second.last, second.created_at) == ("led_4", "led_4", DAY)
    assert fold([("led_1", "reserve", -1, 9, 0, None, 0), ("led_2", "grant", 5, 14, 1, None, 0)]) == []


async def test_old_statistics_go_when_they_can_no_longer_be_asked_for(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    await store.accounts.set_daily_cap(account.id, 50)
    began = clock.now
    await store.messages.accept(messages.new())
    await record(store, clock, [DELIVERED])
    clock.now += 31 * DAY
    await store.statistics.count()
    assert await tidy(store, clock) == 1  # the day's volume
    assert sum((await store.statistics.of(account.id, began - DAY)).by_hour.values()) == 2
    clock.now = began + STATISTICS_KEPT + DAY
    assert await tidy(store, clock, 1) == 2
    assert sum((await store.statistics.of(account.id, began - DAY)).by_hour.values()) == 0


@pytest.mark.parametrize("kept", [False, True], ids=["as they are deleted", "as a former release left them"])
async def test_deleted_templates_go_with_versions(store: Store, account: Account, clock: Clock, kept: bool) -> None:
    for alias in ("old", "used"):
        for _ in range(3):
            await store.templates.save(account.id, alias, "Hello", "text", None)
    if kept:
        former = "UPDATE templates SET deleted = 1, updated_at = :now WHERE alias = 'old'"
        await store.engine.change(former, {"now": clock.now})
    else:
        await store.templates.delete(account.id, "old")
    clock.now += 29 * DAY
    assert await tidy(store, clock) == 0
    clock.now += 2 * DAY
    assert await tidy(store, clock, 2) == (4 if kept else 1)
    assert len((await store.templates.versions(account.id, "used", 99, 99))[0]) == 3
    again = await store.templates.save(account.id, "old", "Hello", "text", None)
    assert again.version == 1


async def test_every_account_has_its_turn(store: Store, account: Account, clock: Clock) -> None:
    for number in range(120):
        last = await store.accounts.create(f"a{number}", f"a{number}@example.org", "hash")
    await store.accounts.set_daily_cap(last.id, 5)
    clock.now += 31 * DAY
    assert await tidy(store, clock) == 1
