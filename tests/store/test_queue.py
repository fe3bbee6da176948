"""Recording outcomes: what an attempt means for recipient, message, credit and event, together."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.environment import identifier_time
from appliance.model.accounts import Account, LedgerKind
from appliance.model.mail import (
    Billing,
    BounceClass,
    LateBounce,
    Message,
    MessageStatus,
    Recipient,
    RecipientStatus,
    Source,
    Suppression,
    SuppressionOrigin,
)
from appliance.model.webhooks import RESULT_EVENTS, EventType
from appliance.store import Store
from appliance.store.engine import Row
from appliance.store.queue import WRITTEN_ON_LOOP, message_result
from appliance.times import HOUR
from tests.store.hooks import save
from tests.store.samples import CREDITS, REPLIES, SECOND, Clock, Messages, existing, outcome, record

QUEUED, DEFERRED = RecipientStatus.QUEUED, RecipientStatus.DEFERRED
DELIVERED, BOUNCED, FAILED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED
FINAL = (DELIVERED, BOUNCED, FAILED)


async def accepted(store: Store, messages: Messages, *addresses: str, test: bool = False) -> str:
    new = messages.new(*addresses, test=test)
    await store.messages.accept(new)
    return new.id


async def message(store: Store, account: Account, message_id: str) -> Message:
    return existing(await store.messages.read(account.id, message_id))


async def only_recipient(store: Store, account: Account, message_id: str) -> Recipient:
    (recipient,) = (await message(store, account, message_id)).recipients
    return recipient


async def events(store: Store) -> list[dict[str, Any]]:
    found = await store.engine.rows("SELECT body FROM events ORDER BY id", {})
    return [json.loads(body) for (body,) in found]


async def attempts(store: Store) -> list[Row]:
    return await store.engine.rows("SELECT number, smtp_code FROM attempts ORDER BY recipient_id, number", {})


# ---- one recipient

RESULTS = {
    DELIVERED: (Billing.SETTLED, MessageStatus.DELIVERED, "email.delivered", CREDITS - 1),
    BOUNCED: (Billing.RELEASED, MessageStatus.FAILED, "email.bounced", CREDITS),
    FAILED: (Billing.SETTLED, MessageStatus.FAILED, "email.failed", CREDITS - 1),
}


@pytest.mark.parametrize("status", FINAL)
async def test_a_final_result_settles_everything(
    store: Store, messages: Messages, account: Account, clock: Clock, status: RecipientStatus
) -> None:
    billing, of_message, event, balance = RESULTS[status]
    message_id = await accepted(store, messages)
    (due,) = await store.queue.due(simulated=True, most=10)
    at = clock()
    await store.queue.record([outcome(due, status, at)])
    recipient = await only_recipient(store, account, message_id)
    assert (recipient.status, recipient.billing_status, recipient.attempt_count) == (status, billing, 1)
    assert (recipient.last_smtp_code, recipient.last_smtp_response) == REPLIES[status]
    assert recipient.delivered_at == (at if status is DELIVERED else None)
    assert recipient.bounced_at == (at if status is BOUNCED else None)
    assert (await message(store, account, message_id)).status is of_message
    assert (await message(store, account, message_id)).billing_status is billing
    assert (await store.accounts.named("demo")).credits == balance
    (told,) = await events(store)
    assert told["type"] == event
    assert await attempts(store) == [(1, REPLIES[status][0])]
    assert await store.queue.due(simulated=True, most=10) == []
    assert await store.queue.next_due(simulated=True) is None


async def test_a_deferral_waits(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    """A deferred recipient is due again at its time, keeps its credit reserved and makes no event."""
    message_id = await accepted(store, messages)
    await record(store, clock, [DEFERRED])
    recipient = await only_recipient(store, account, message_id)
    assert (recipient.status, recipient.billing_status, recipient.attempt_count) == (DEFERRED, Billing.RESERVED, 1)
    assert (await message(store, account, message_id)).status is MessageStatus.QUEUED
    assert await events(store) == []
    assert await store.queue.due(simulated=True, most=10) == []
    next_due = existing(await store.queue.next_due(simulated=True))
    clock.now = next_due
    (due,) = await store.queue.due(simulated=True, most=10)
    assert (due.attempt_count, due.last_smtp_code) == (1, 451)
    await record(store, clock, [DELIVERED])
    assert (await only_recipient(store, account, message_id)).attempt_count == 2
    assert await attempts(store) == [(1, 451), (2, 250)]
    assert len(await events(store)) == 1


@pytest.mark.parametrize("second", [*FINAL, DEFERRED])
@pytest.mark.parametrize("first", FINAL)
async def test_a_final_result_stays(
    store: Store, messages: Messages, account: Account, clock: Clock, first: RecipientStatus, second: RecipientStatus
) -> None:
    message_id = await accepted(store, messages)
    (due,) = await record(store, clock, [first])
    before = (
        await message(store, account, message_id),
        await store.accounts.ledger(account.id),
        await events(store),
        await attempts(store),
    )
    await store.queue.record([outcome(due, second, clock())])
    await store.queue.record([outcome(due, second, clock()), outcome(due, second, clock())])
    after = (
        await message(store, account, message_id),
        await store.accounts.ledger(account.id),
        await events(store),
        await attempts(store),
    )
    assert after == before


async def test_a_deferral_that_is_recorded_twice_counts_once(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    message_id = await accepted(store, messages)
    (due,) = await record(store, clock, [DEFERRED])
    await store.queue.record([outcome(due, DEFERRED, clock())])
    assert (await only_recipient(store, account, message_id)).attempt_count == 1
    assert await attempts(store) == [(1, 451)]


async def test_the_credit_of_a_bounce_is_in_the_ledger(store: Store, messages: Messages, clock: Clock) -> None:
    message_id = await accepted(store, messages, "a@x.example", "b@x.example")
    first, _ = await record(store, clock, [BOUNCED])
    newest = (await store.accounts.ledger(messages.account_id))[0]
    assert (newest.kind, newest.amount, newest.balance) == (LedgerKind.RELEASE, 1, CREDITS - 1)
    assert (newest.message_id, newest.recipient_id) == (message_id, first.id)


async def test_what_cost_nothing_returns_nothing(store: Store, messages: Messages, clock: Clock) -> None:
    await accepted(store, messages, test=True)
    await store.accounts.set_credits(messages.account_id, None)
    await accepted(store, messages)
    await store.accounts.set_credits(messages.account_id, 5)
    await record(store, clock, [BOUNCED, BOUNCED])
    assert (await store.accounts.named("demo")).credits == 5


async def test_a_credit_is_not_returned_to_an_account_that_became_unlimited(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    message_id = await accepted(store, messages)
    await store.accounts.set_credits(account.id, None)
    await record(store, clock, [BOUNCED])
    assert (await store.accounts.named("demo")).credits is None
    assert (await only_recipient(store, account, message_id)).status is BOUNCED


async def test_a_result_without_an_attempt_keeps_its_note(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    message_id = await accepted(store, messages)
    (due,) = await store.queue.due(simulated=True, most=1)
    await store.queue.record([replace(outcome(due, FAILED, clock()), attempts=(), note="no route")])
    recipient = await only_recipient(store, account, message_id)
    assert (recipient.attempt_count, recipient.last_smtp_code, recipient.last_smtp_response) == (0, None, "no route")
    assert await attempts(store) == []


async def test_several_attempts_are_numbered(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    """Attempts recorded together get the numbers they would have had one by one."""
    message_id = await accepted(store, messages)
    await record(store, clock, [DEFERRED])
    clock.now += 1000 * SECOND
    (due,) = await store.queue.due(simulated=True, most=1)
    await store.queue.record([outcome(due, FAILED, clock(), tries=3)])
    assert (await only_recipient(store, account, message_id)).attempt_count == 4
    assert [number for number, _ in await attempts(store)] == [1, 2, 3, 4]


async def test_a_class_lasts_until_an_outcome(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    message_id = await accepted(store, messages)
    (due,) = await store.queue.due(simulated=True, most=1)
    assert (await only_recipient(store, account, message_id)).bounce_class is None
    await store.queue.record([outcome(due, DEFERRED, clock(), bounce_class=BounceClass.TEMPORARY)])
    assert (await only_recipient(store, account, message_id)).bounce_class is BounceClass.TEMPORARY
    clock.now += 1000 * SECOND
    await record(store, clock, [DELIVERED])
    assert (await only_recipient(store, account, message_id)).bounce_class is None


async def test_a_suppressed_recipient_has_a_class(store: Store, messages: Messages, account: Account) -> None:
    await store.suppressions.add(account.id, "gone@x.example", "by hand")
    message_id = await accepted(store, messages, "gone@x.example")
    assert (await only_recipient(store, account, message_id)).bounce_class is BounceClass.OTHER


# ---- delayed recipients
async def delays(store: Store) -> list[dict[str, Any]]:
    query = "SELECT request_body FROM webhook_deliveries WHERE type = 'email.delayed' ORDER BY id"
    return [json.loads(body) for (body,) in await store.engine.rows(query, {})]


async def defer(store: Store, at: int) -> None:
    (due,) = await store.queue.due(simulated=True, most=1)
    full = BounceClass.MAILBOX_FULL
    await store.queue.record([outcome(due, DEFERRED, at, next_attempt_at=at, bounce_class=full)])


async def test_a_delay_is_told_once(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await save(store, account.id, EventType.DELAYED)
    message_id = await accepted(store, messages)
    accepted_at = (await message(store, account, message_id)).created_at
    for minutes, told in ((0, 0), (30, 0), (59, 0), (150, 1), (151, 1), (6000, 1)):
        clock.now = accepted_at + minutes * 60 * SECOND + 2 * SECOND
        await defer(store, clock())
        assert len(await delays(store)) == told
    (event,) = await delays(store)
    (recipient,) = (await message(store, account, message_id)).recipients
    assert event["type"] == "email.delayed"
    assert event["data"] == {
        "email_id": message_id,
        "recipient_id": recipient.id,
        "to": "b@example.net",
        "from": "a@example.com",
        "subject": "A subject",
        "smtp_code": 451,
        "smtp_response": "451 4.3.0 Try again later",
        "bounce_class": "mailbox_full",
        "message_id": f"{message_id.removeprefix('msg_')}@example.com",
        "stream": "transactional",
        "tags": ["one", "two"],
    }
    assert await events(store) == []
    clock.now += 2 * SECOND
    await record(store, clock, [DELIVERED])
    assert [each["type"] for each in await events(store)] == ["email.delivered"]
    assert len(await delays(store)) == 1


async def test_an_hour_is_the_limit(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await save(store, account.id)
    new = messages.new()
    await store.messages.accept(new)
    born = identifier_time(new.id)
    for at, told in ((born + HOUR - 1, 0), (born + HOUR, 1)):
        clock.now = at
        await defer(store, at)
        assert len(await delays(store)) == told


async def test_outcomes_that_do_not_count_tell_of_no_delay(store: Store, messages: Messages, clock: Clock) -> None:
    await save(store, messages.account_id)
    await accepted(store, messages)
    clock.now += 2 * HOUR
    (due,) = await store.queue.due(simulated=True, most=1)
    await store.queue.record([outcome(due, DEFERRED, clock(), tries=0, next_attempt_at=clock())])
    assert await delays(store) == []
    clock.now += SECOND
    await defer(store, clock())
    assert len(await delays(store)) == 1
    await store.queue.record([outcome(due, DEFERRED, clock(), next_attempt_at=clock())])
    assert len(await delays(store)) == 1
    await accepted(store, messages)
    clock.now += 2 * HOUR
    await record(store, clock, [FAILED, FAILED])
    assert len(await delays(store)) == 1


async def test_a_delay_is_posted_where_it_is_wanted(store: Store, messages: Messages, clock: Clock) -> None:
    await save(store, messages.account_id, *RESULT_EVENTS)
    message_id = await accepted(store, messages)
    clock.now += 2 * HOUR
    await defer(store, clock())
    await save(store, messages.account_id, EventType.DELAYED)
    clock.now += 2 * HOUR
    await defer(store, clock())
    assert await delays(store) == []
    found = await store.engine.rows("SELECT delayed_at FROM recipients WHERE message_id = :id", {"id": message_id})
    assert found[0][0] < clock.now - HOUR


async def test_a_late_bounce_is_read(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    message_id = await accepted(store, messages)
    await record(store, clock, [DELIVERED])
    late = LateBounce(clock(), 550, "550 5.1.1 no such user", BounceClass.INVALID_RECIPIENT)
    stored = {"id": message_id, "late": msgspec.json.encode(late).decode()}
    await store.engine.change("UPDATE recipients SET late_bounce = :late WHERE message_id = :id RETURNING 1", stored)
    recipient = await only_recipient(store, account, message_id)
    assert (recipient.status, recipient.late_bounce) == (DELIVERED, late)
    assert set(json.loads(stored["late"])) == {"at", "code", "response", "class"}


async def test_a_bounce_may_suppress(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await accepted(store, messages, "gone@x.example")
    (due,) = await store.queue.due(simulated=True, most=1)
    entry = Suppression("gone@x.example", "hard bounce", clock())
    await store.queue.record([outcome(due, BOUNCED, clock(), suppress=entry)])
    (listed,) = await store.suppressions.page(account.id, "", 10)
    assert (listed.address, listed.reason) == ("gone@x.example", "hard bounce")
    assert listed.origin is SuppressionOrigin.BOUNCE
    again = await accepted(store, messages, "gone@x.example")
    assert (await message(store, account, again)).status is MessageStatus.FAILED


async def test_an_event_tells_what_happened(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    about = {"tags": (), "metadata": '{"order":"1"}', "header_id": "own@client.example", "source": Source.SMTP}
    new = replace(messages.new("B@example.net"), **about)
    await store.messages.accept(new)
    (due,) = await store.queue.due(simulated=True, most=1)
    result = outcome(due, BOUNCED, clock(), bounce_class=BounceClass.INVALID_RECIPIENT)
    await store.queue.record([result])
    (told,) = await events(store)
    assert told["data"] == {
        "email_id": new.id,
        "recipient_id": due.id,
        "to": "B@example.net",
        "from": "a@example.com",
        "subject": "A subject",
        "smtp_code": 550,
        "smtp_response": "550 5.1.1 User unknown",
        "bounce_class": "invalid_recipient",
        "message_id": "own@client.example",
        "metadata": {"order": "1"},
        "stream": "transactional",
    }


async def test_large_metadata_is_written_off_the_loop(
    store: Store, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events and posts have it as well, for each recipient."""
    large: list[bool] = []
    written = type(store.engine).write_item

    async def noted(*arguments: Any, **options: Any) -> Any:
        large.append(options.get("large", False))
        return await written(*arguments, **options)

    monkeypatch.setattr(type(store.engine), "write_item", noted)
    for size in (100, WRITTEN_ON_LOOP // 2):
        metadata = json.dumps({"k": "v" * size})
        new = replace(messages.new("a@example.net", "b@example.net"), metadata=metadata)
        await store.messages.accept(new)
        due = await store.queue.due(simulated=True, most=10)
        assert [recipient.metadata_size for recipient in due] == [len(metadata)] * 2
        await store.queue.record([outcome(recipient, DELIVERED, 0) for recipient in due])
    assert large == [False, False, True, True]


async def test_an_earlier_version_did_not_note_the_message_id_of_smtp(store: Store, messages: Messages) -> None:
    sources = {Source.API: True, Source.TEST: True, Source.SMTP: False}
    for source in sources:
        await store.messages.accept(replace(messages.new(), source=source, tags=()))
    due = await store.queue.due(simulated=True, most=10)
    await store.queue.record([outcome(recipient, DELIVERED, 0) for recipient in due])
    assert ["message_id" in told["data"] for told in await events(store)] == list(sources.values())


# ---- the queue
async def test_the_longest_waiting_come_first(store: Store, messages: Messages, clock: Clock) -> None:
    ids = [await accepted(store, messages) for _ in range(5)]
    due = await store.queue.due(simulated=True, most=3)
    assert [recipient.message_id for recipient in due] == ids[:3]


async def test_real_and_simulated_recipients_do_not_mix(store: Store, messages: Messages) -> None:
    await store.messages.accept(messages.new(simulated=True))
    await store.messages.accept(messages.new(simulated=False))
    (simulated,) = await store.queue.due(simulated=True, most=10)
    (real,) = await store.queue.due(simulated=False, most=10)
    assert simulated.id != real.id


# ---- what recipients make of a message

STATUSES = st.lists(st.sampled_from([RecipientStatus.QUEUED, *REPLIES]), min_size=1, max_size=50)


@given(STATUSES)
def test_a_message_is_the_sum_of_its_recipients(statuses: list[RecipientStatus]) -> None:
    counts = {status: statuses.count(status) for status in set(statuses)}
    status, billing = message_result(counts)
    if {QUEUED, DEFERRED} & set(statuses):
        assert (status, billing) == (MessageStatus.QUEUED, Billing.RESERVED)
        return
    delivered = statuses.count(DELIVERED)
    assert (status is MessageStatus.DELIVERED) == (delivered == len(statuses))
    assert (status is MessageStatus.FAILED) == (delivered == 0)
    assert (status is MessageStatus.PARTIAL) == (0 < delivered < len(statuses))
    assert billing is (Billing.RELEASED if set(statuses) == {BOUNCED} else Billing.SETTLED)


@pytest.mark.parametrize(
    ("results", "status", "billing"),
    [
        ((DELIVERED, DELIVERED), MessageStatus.DELIVERED, Billing.SETTLED),
        ((DELIVERED, BOUNCED), MessageStatus.PARTIAL, Billing.SETTLED),
        ((DELIVERED, FAILED), MessageStatus.PARTIAL, Billing.SETTLED),
        ((BOUNCED, BOUNCED), MessageStatus.FAILED, Billing.RELEASED),
        ((BOUNCED, FAILED), MessageStatus.FAILED, Billing.SETTLED),
        ((DELIVERED, DEFERRED), MessageStatus.QUEUED, Billing.RESERVED),
        ((BOUNCED,), MessageStatus.QUEUED, Billing.RESERVED),
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_the_message_follows_its_recipients(
    store: Store,
    messages: Messages,
    account: Account,
    clock: Clock,
    results: tuple[RecipientStatus, ...],
    status: MessageStatus,
    billing: Billing,
    together: bool,
) -> None:
    message_id = await accepted(store, messages, "a@x.example", "b@x.example")
    due = sorted(await store.queue.due(simulated=True, most=10), key=lambda recipient: recipient.id)
    outcomes = [outcome(recipient, result, clock()) for recipient, result in zip(due, results, strict=False)]
    for batch in [outcomes] if together else [[each] for each in outcomes]:
        await store.queue.record(batch)
    found = await message(store, account, message_id)
    assert (found.status, found.billing_status) == (status, billing)
