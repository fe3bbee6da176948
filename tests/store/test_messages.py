"""Accepting a message: everything it means is written together, or nothing of it."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, LedgerKind
from appliance.model.mail import Billing, MessageStatus, RecipientStatus, Source
from appliance.store import KeyTaken, Store
from appliance.store.queue import WRITTEN_ON_LOOP
from appliance.store.suppressions import SUPPRESSED_NOTE
from tests import stored_mail
from tests.store.samples import CREDITS, DAY, HASH, SECOND, Clock, Database, Messages, at_once, existing


async def balance(store: Store) -> int | None:
    return (await store.accounts.named("demo")).credits


async def count(store: Store, table: str) -> int:
    ((found,),) = await store.engine.rows(f"SELECT count(*) FROM {table}", {})
    return int(found)


async def refused(store: Store, message: object) -> Refused:
    with pytest.raises(Refused) as raised:
        await store.messages.accept(message)  # type: ignore[arg-type]  # a NewMessage, as replace() gives it
    return raised.value


async def test_what_was_accepted_is_read_back(store: Store, messages: Messages, account: Account) -> None:
    new = messages.new("B@example.net", "c@example.net")
    await store.messages.accept(new)
    message = existing(await store.messages.read(account.id, new.id))
    assert (message.id, message.status, message.source) == (new.id, MessageStatus.QUEUED, Source.API)
    assert (message.sender, message.subject, message.created_at) == (new.sender, new.subject, new.created_at)
    assert (message.billing_status, message.recipient_count, message.credits_reserved) == (Billing.RESERVED, 2, 2)
    assert [recipient.email for recipient in message.recipients] == ["B@example.net", "c@example.net"]
    for recipient in message.recipients:
        assert (recipient.status, recipient.billing_status) == (RecipientStatus.QUEUED, Billing.RESERVED)
        assert (recipient.attempt_count, recipient.delivered_at, recipient.bounced_at) == (0, None, None)
    assert await store.messages.mime(new.id) == new.mime


async def test_another_account_sees_nothing(store: Store, messages: Messages) -> None:
    new = messages.new()
    await store.messages.accept(new)
    other = await store.accounts.create("other", "other@example.org", HASH)
    assert await store.messages.read(other.id, new.id) is None
    assert await store.messages.read(other.id, "msg_never") is None
    assert await store.messages.mime("msg_never") is None


# ---- credits
async def test_a_message_takes_a_credit_for_each_recipient(store: Store, messages: Messages, account: Account) -> None:
    new = messages.new("a@x.example", "b@x.example", "c@x.example")
    await store.messages.accept(new)
    assert await balance(store) == CREDITS - 3
    newest = (await store.accounts.ledger(account.id))[0]
    assert (newest.kind, newest.amount, newest.balance) == (LedgerKind.RESERVE, -3, CREDITS - 3)
    assert (newest.message_id, newest.recipient_id) == (new.id, None)


async def test_the_last_credit_is_spent_once(store: Store, messages: Messages, account: Account) -> None:
    await store.accounts.set_credits(account.id, 2)
    await store.messages.accept(messages.new("a@x.example"))
    refusal = await refused(store, messages.new("a@x.example", "b@x.example", key="refused"))
    assert refusal.code is Code.INSUFFICIENT_CREDITS
    assert "needs 2 credits" in refusal.text
    assert "has 1" in refusal.text
    await store.messages.accept(messages.new("a@x.example"))
    assert await balance(store) == 0
    assert (await refused(store, messages.new("a@x.example"))).code is Code.INSUFFICIENT_CREDITS
    assert [await count(store, table) for table in ("messages", "message_bodies", "recipients")] == [2, 2, 2]
    assert await count(store, "idempotency_keys") == 0


async def test_parallel_sends_share_the_last_credits(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=10)
        messages, results = Messages(database.env, account.id), []

        async def send(size: int) -> None:
            try:
                await store.messages.accept(messages.new(size=size))
                results.append("accepted")
            except Refused as refusal:
                results.append(refusal.code.value)

        await at_once(send, ((2 * WRITTEN_ON_LOOP if number % 10 == 0 else 100,) for number in range(50)))
        assert sorted(results) == ["accepted"] * 10 + ["insufficient_credits"] * 40
        assert await balance(store) == 0
        assert await count(store, "messages") == 10


async def test_an_unlimited_account_keeps_no_ledger(store: Store, messages: Messages, account: Account) -> None:
    await store.accounts.set_credits(account.id, None)
    entries = len(await store.accounts.ledger(account.id))
    await store.messages.accept(messages.new())
    assert await balance(store) is None
    assert len(await store.accounts.ledger(account.id)) == entries


async def test_a_test_costs_nothing_and_passes_every_limit(store: Store, messages: Messages, account: Account) -> None:
    await store.accounts.set_credits(account.id, 0)
    await store.accounts.set_daily_cap(account.id, 0)
    new = messages.new(test=True)
    await store.messages.accept(new)
    message = existing(await store.messages.read(account.id, new.id))
    assert (message.source, message.credits_reserved, await balance(store)) == (Source.TEST, 0, 0)
    assert await count(store, "daily_volume WHERE recipients > 0") == 0


# ---- idempotency
async def test_a_key_is_good_for_one_message(store: Store, messages: Messages, account: Account) -> None:
    new = messages.new(key="once")
    await store.messages.accept(new)
    with pytest.raises(KeyTaken):
        await store.messages.accept(messages.new(key="once"))
    assert await count(store, "messages") == 1
    assert await balance(store) == CREDITS - 1
    first = existing(await store.messages.remembered(account.id, "key:1", "once"))
    assert (first.fingerprint, first.request_id, first.receipt) == (b"print of once", new.request_id, new.receipt)


async def test_a_key_belongs_to_its_scope(store: Store, messages: Messages, account: Account) -> None:
    new = messages.new(key="shared")
    await store.messages.accept(new)
    assert new.idempotency is not None
    other = replace(messages.new(key="shared"), idempotency=replace(new.idempotency, scope="key:2"))
    assert await store.messages.remembered(account.id, "key:2", "shared") is None
    await store.messages.accept(other)
    assert await count(store, "messages") == 2


async def test_an_expired_key_is_free_again(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await store.messages.accept(messages.new(key="daily"))
    clock.now += DAY - SECOND
    with pytest.raises(KeyTaken):
        await store.messages.accept(messages.new(key="daily"))
    clock.now += 2 * SECOND
    assert await store.messages.remembered(account.id, "key:1", "daily") is None
    again = messages.new(key="daily")
    await store.messages.accept(again)
    first = existing(await store.messages.remembered(account.id, "key:1", "daily"))
    assert first.request_id == again.request_id
    assert await count(store, "messages") == 2


async def test_a_key_that_was_refused_stays_free(store: Store, messages: Messages, account: Account) -> None:
    await store.accounts.set_suspended(account.id, True)
    new = messages.new(key="later")
    assert (await refused(store, new)).code is Code.ACCOUNT_SUSPENDED
    assert await store.messages.remembered(account.id, "key:1", "later") is None
    await store.accounts.set_suspended(account.id, False)
    await store.messages.accept(new)


async def test_fifty_at_once_under_one_key_make_one_message(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=100)
        messages, results = Messages(database.env, account.id), []

        async def send() -> None:
            try:
                await store.messages.accept(messages.new(key="one"))
                results.append("accepted")
            except KeyTaken:
                results.append("taken")

        await at_once(send, [()] * 50)
        assert sorted(results) == ["accepted"] + ["taken"] * 49
        assert (await count(store, "messages"), await balance(store)) == (1, 99)


# ---- the day's cap
async def test_the_cap_counts_recipients_of_the_day(store: Store, messages: Messages, clock: Clock) -> None:
    await store.accounts.set_daily_cap(messages.account_id, 3)
    await store.messages.accept(messages.new("a@x.example", "b@x.example"))
    refusal = await refused(store, messages.new("a@x.example", "b@x.example"))
    assert refusal.code is Code.WARMUP_LIMITED
    assert refusal.retry_after is not None
    assert 14 * 3600 < refusal.retry_after <= 15 * 3600  # it is shortly after nine
    await store.messages.accept(messages.new("c@x.example"))
    assert (await refused(store, messages.new())).code is Code.WARMUP_LIMITED
    assert await balance(store) == CREDITS - 3
    clock.now += (refusal.retry_after + 1) * SECOND
    await store.messages.accept(messages.new("a@x.example", "b@x.example"))


async def test_the_refusal_of_a_cap_says_when_to_come_back(store: Store, messages: Messages, clock: Clock) -> None:
    await store.accounts.set_daily_cap(messages.account_id, 1)
    await store.messages.accept(messages.new())
    refusal = await refused(store, messages.new())
    assert refusal.retry_after is not None
    clock.now += refusal.retry_after * SECOND
    await store.messages.accept(messages.new())


async def test_a_new_cap_counts_what_was_sent_before_it(store: Store, messages: Messages, account: Account) -> None:
    await store.messages.accept(messages.new("a@x.example", "b@x.example"))
    await store.messages.accept(messages.new(test=True))
    await store.accounts.set_daily_cap(account.id, 3)
    assert (await refused(store, messages.new("c@x.example", "d@x.example"))).code is Code.WARMUP_LIMITED
    await store.messages.accept(messages.new("c@x.example"))


# ---- suppressed recipients
async def test_a_suppressed_recipient_bounces_at_once(store: Store, messages: Messages, account: Account) -> None:
    await store.suppressions.add(account.id, "gone@x.example", "manual")
    new = messages.new("Gone@x.example", "here@x.example")
    await store.messages.accept(new)
    message = existing(await store.messages.read(account.id, new.id))
    gone, here = message.recipients
    assert (gone.status, gone.billing_status, gone.attempt_count) == (RecipientStatus.BOUNCED, Billing.RELEASED, 0)
    assert (gone.last_smtp_code, gone.last_smtp_response, gone.bounced_at) == (None, SUPPRESSED_NOTE, new.created_at)
    assert here.status is RecipientStatus.QUEUED
    assert message.status is MessageStatus.QUEUED
    assert await balance(store) == CREDITS - 1
    assert [due.id for due in await store.queue.due(simulated=True, most=10)] == [here.id]
    assert await count(store, "events") == 1


async def test_a_message_to_suppressed_recipients_only_has_failed(store: Store, messages: Messages) -> None:
    await store.suppressions.add(messages.account_id, "gone@x.example", "manual")
    new = messages.new("gone@x.example")
    await store.messages.accept(new)
    message = existing(await store.messages.read(messages.account_id, new.id))
    assert (message.status, message.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)
    assert await balance(store) == CREDITS


async def test_another_accounts_suppressions_do_not_count(store: Store, messages: Messages) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await store.suppressions.add(other.id, "b@example.net", "manual")
    await store.messages.accept(messages.new("b@example.net"))
    assert len(await store.queue.due(simulated=True, most=10)) == 1


# ---- the hand-over to delivery
async def test_a_message_is_handed_to_delivery_after_its_commit(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        new = Messages(database.env, account.id).new(simulated=False)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.messages.accept, new)
                while await store.messages.read(account.id, new.id) is None:
                    await trio.lowlevel.checkpoint()
                assert new.id in store.new_mail
        assert [(fresh.message, fresh.charged) for fresh in store.new_mail.take()] == [(new, 1)]
        assert new.id not in store.new_mail
        assert not store.new_mail.poll_requested()


async def test_what_is_not_accepted_is_not_handed_over(store: Store, messages: Messages) -> None:
    poor = messages.new(*(f"user{number}@example.net" for number in range(CREDITS + 1)), simulated=False)
    await refused(store, poor)
    await store.messages.accept(messages.new(key="order-1", simulated=False))
    again = messages.new(key="order-1", simulated=False)
    with pytest.raises(KeyTaken):
        await store.messages.accept(again)
    assert len(store.new_mail.take()) == 1
    assert poor.id not in store.new_mail
    assert again.id not in store.new_mail


async def test_what_is_not_wholly_to_be_tried_is_left_to_a_poll(store: Store, messages: Messages) -> None:
    await store.suppressions.add(messages.account_id, "b@example.net", "by hand")
    await store.messages.accept(messages.new("b@example.net", "c@example.net", simulated=False))
    assert store.new_mail.take() == []
    assert store.new_mail.poll_requested()


async def test_simulated_mail_wakes_its_simulation(store: Store, messages: Messages, autojump_clock: MockClock) -> None:
    await store.messages.accept(messages.new())
    before = trio.current_time()
    await store.new_simulated_mail.wait(50)
    assert trio.current_time() == before
    assert store.new_mail.take() == []
    assert not store.new_mail.poll_requested()


async def test_a_record_holds_recipients_and_attempts(store: Store, database: Database) -> None:
    env = database.env
    account = await stored_mail.account(store)
    message = await stored_mail.accept(store, env, account, "a@one.example", "b@two.example")
    await stored_mail.defer(store, env, message)
    await store.queue_control.retry_message(message.id)
    for recipient in (await stored_mail.due(store, message))[:1]:
        await stored_mail.finish(store, env, recipient, RecipientStatus.DELIVERED, 250)
    record = existing(await store.records.of(message.id))
    assert (record.account_name, record.message.id) == ("acme", message.id)
    by_status = {tried.recipient.status: tried for tried in record.recipients}
    delivered, deferred = by_status[RecipientStatus.DELIVERED], by_status[RecipientStatus.DEFERRED]
    assert {delivered.domain, deferred.domain} == {"one.example", "two.example"}
    assert [attempt.smtp_code for attempt in delivered.attempts] == [451, 250]
    assert (delivered.next_attempt_at, deferred.simulated) == (None, False)
    assert deferred.next_attempt_at is not None
    (attempt,) = deferred.attempts
    assert (attempt.pool, attempt.mx_host, attempt.mx_address) == ("example.net", "mx.example.net", "192.0.2.1")
    assert attempt.finished_at - attempt.started_at == 412_000
    assert attempt.decision == "deferred: attempt 2 of 12"
    assert attempt.dialogue is not None


async def test_a_message_that_is_not_there_has_no_record(store: Store) -> None:
    assert await store.records.of("msg_0") is None
