"""Scheduled messages, on both engines: nothing happens before they are due, and then each is decided about once."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from appliance.environment import Environment, identifier_from, identifier_time
from appliance.errors import Code
from appliance.model.accounts import Account
from appliance.model.dashboard import MailFilter
from appliance.model.mail import Billing, MessageStatus, NewMessage, RecipientOutcome, RecipientStatus
from appliance.store import Store
from appliance.store.suppressions import SUPPRESSED_NOTE
from appliance.telemetry.metrics import SCHEDULED_POSTPONED
from appliance.times import DAY, HOUR, MINUTE, SECOND
from tests.store.samples import CREDITS, Clock, Database, Messages, existing, outcome, refusal

SCHEDULED, QUEUED = RecipientStatus.SCHEDULED, RecipientStatus.QUEUED


@dataclass
class Schedule:
    store: Store
    clock: Clock
    messages: Messages
    account: Account

    async def accept(self, *addresses: str, ahead: int = HOUR, simulated: bool = False) -> NewMessage:
        new = self.messages.new(*addresses, simulated=simulated)
        new = replace(new, scheduled_at=new.created_at + ahead)
        await self.store.messages.accept(new)
        return new

    async def statuses(self, new: NewMessage) -> list[RecipientStatus]:
        message = existing(await self.store.messages.read(new.account_id, new.id))
        return [recipient.status for recipient in message.recipients]

    async def due(self) -> list[str]:
        return sorted([row.message_id for row in await self.store.queue.due(simulated=False, most=100)])

    async def credits(self) -> int | None:
        return (await self.store.accounts.find(self.account.id)).credits


@pytest.fixture
async def schedule(store: Store, clock: Clock, messages: Messages, account: Account) -> Schedule:
    await store.access.add_domain(account.id, "example.com", usable=True)
    return Schedule(store, clock, messages, account)


async def test_a_message_is_queued_when_it_is_due_and_not_before(schedule: Schedule) -> None:
    store, clock = schedule.store, schedule.clock
    later, new = await schedule.accept(ahead=2 * HOUR), await schedule.accept("a@x.example", "b@x.example")
    assert await schedule.credits() == CREDITS - 3, "credits are reserved at once"
    assert store.new_mail.take() == []
    assert await store.scheduled.next_due() == new.scheduled_at
    clock.now = existing(new.scheduled_at) - MINUTE
    assert (await store.scheduled.release_due(), await schedule.due()) == (0, [])
    assert await schedule.statuses(new) == [SCHEDULED, SCHEDULED]
    clock.now = existing(new.scheduled_at)
    assert (await store.scheduled.release_due(), await store.scheduled.release_due()) == (1, 0)
    assert store.new_mail.poll_requested()
    assert await schedule.statuses(new) == [QUEUED, QUEUED]
    assert await schedule.due() == [new.id, new.id]
    assert [row.scheduled_at for row in await store.queue.due(simulated=False, most=9)] == [new.scheduled_at] * 2
    assert (await store.scheduled.count(), await schedule.statuses(later)) == (1, [SCHEDULED])


async def test_a_clock_that_is_set_back_or_forward_sends_nothing_twice(schedule: Schedule) -> None:
    store, clock = schedule.store, schedule.clock
    new = await schedule.accept()
    clock.now -= DAY
    assert await store.scheduled.release_due() == 0
    clock.now += 2 * DAY
    assert await store.scheduled.release_due() == 1
    clock.now -= 2 * DAY
    assert await store.scheduled.release_due() == 0
    # What a fast clock postponed is brought forward. A scheduled message is not.
    other = await schedule.accept(ahead=20 * DAY)
    await store.queue_control.bring_forward(clock.now + 5 * DAY)
    await store.queue_control.retry()
    assert (await schedule.statuses(other), await schedule.due()) == ([SCHEDULED], [new.id])


async def test_a_reopened_store_still_has_the_schedule(database: Database, clock: Clock) -> None:
    async with database.open(inline=True) as store:
        account = await store.accounts.create("demo", "d@example.org", "hash", credit=None)
        await store.access.add_domain(account.id, "example.com", usable=True)
        schedule = Schedule(store, clock, Messages(Environment(now=clock), account.id), account)
        new = await schedule.accept()
    clock.now += 2 * HOUR
    async with database.open(inline=True) as store:
        assert await store.scheduled.release_due() == 1
        assert [row.message_id for row in await store.queue.due(simulated=False, most=9)] == [new.id]


async def test_simulated_messages_wake_the_sandbox(schedule: Schedule) -> None:
    new = await schedule.accept(simulated=True)
    schedule.clock.now += 2 * HOUR
    assert await schedule.store.scheduled.release_due() == 1
    assert [row.message_id for row in await schedule.store.queue.due(simulated=True, most=9)] == [new.id]
    assert not schedule.store.new_mail.poll_requested()


# ---- checked again when due
async def test_messages_of_a_suspended_account_wait_until_it_is_resumed(schedule: Schedule) -> None:
    store, account = schedule.store, schedule.account
    new = await schedule.accept()
    await store.accounts.set_suspended(account.id, suspended=True)
    schedule.clock.now += 2 * HOUR
    assert await store.scheduled.release_due() == 1
    assert (await store.scheduled.release_due(), await store.scheduled.release_held()) == (0, 0)
    assert await schedule.statuses(new) == [SCHEDULED]
    assert await store.scheduled.next_due() is None, "held messages cost nothing"
    with refusal(Code.CONFLICT):
        await store.scheduled.move(account.id, new.id, schedule.clock.now + DAY)
    await store.accounts.set_suspended(account.id, suspended=False)
    assert (await store.scheduled.release_held(), await store.scheduled.release_held()) == (1, 0)
    assert await schedule.statuses(new) == [QUEUED]


async def test_a_message_of_a_removed_domain_fails(schedule: Schedule) -> None:
    new = await schedule.accept("a@x.example", "b@x.example")
    await schedule.store.domains.remove(schedule.account.id, "example.com")
    schedule.clock.now += 2 * HOUR
    assert await schedule.store.scheduled.release_due() == 1
    message = existing(await schedule.store.messages.read(new.account_id, new.id))
    assert (message.status, message.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)
    assert {recipient.outcome for recipient in message.recipients} == {RecipientOutcome.CANCELLED}
    assert all((recipient.last_smtp_response or "").startswith("cancelled: ") for recipient in message.recipients)
    assert (await schedule.credits(), await schedule.due()) == (CREDITS, [])


async def test_addresses_suppressed_meanwhile_bounce(schedule: Schedule) -> None:
    store, account_id = schedule.store, schedule.account.id
    await store.suppressions.add(account_id, "early@x.example", "by hand")
    new = await schedule.accept("early@x.example", "late@x.example", "left@x.example", "ok@x.example")
    assert await schedule.statuses(new) == [RecipientStatus.BOUNCED, SCHEDULED, SCHEDULED, SCHEDULED]
    await store.suppressions.add(account_id, "late@x.example", "by hand")
    await store.unsubscriptions.add(account_id, "tag:two", "left@x.example")
    schedule.clock.now += 2 * HOUR
    assert await store.scheduled.release_due() == 1
    message = existing(await store.messages.read(account_id, new.id))
    bounced = RecipientStatus.BOUNCED
    assert [recipient.status for recipient in message.recipients] == [bounced, bounced, bounced, QUEUED]
    assert message.recipients[1].last_smtp_response == SUPPRESSED_NOTE
    assert (await schedule.credits(), await schedule.due()) == (CREDITS - 1, [new.id])


async def test_a_message_to_suppressed_addresses_only_is_not_scheduled(schedule: Schedule) -> None:
    await schedule.store.suppressions.add(schedule.account.id, "b@example.net", "by hand")
    await schedule.accept("b@example.net")
    assert await schedule.store.scheduled.count() == 0


async def test_messages_of_a_deleted_account_are_cancelled(schedule: Schedule) -> None:
    """Those that were held, those that are due, and those that are due later, which the deletion gives up."""
    store, account_id = schedule.store, schedule.account.id
    held = await schedule.accept(ahead=MINUTE)
    await store.accounts.set_suspended(account_id, suspended=True)
    schedule.clock.now += 2 * MINUTE
    await store.scheduled.release_due()
    await store.accounts.set_suspended(account_id, suspended=False)
    due, later = await schedule.accept(ahead=SECOND), [await schedule.accept(ahead=9 * DAY) for _ in range(3)]
    await store.accounts.delete(account_id)
    schedule.clock.now += MINUTE
    assert await store.scheduled.release_due() == 1
    await store.scheduled.give_up(account_id)
    while await store.scheduled.release_held():
        pass
    for new in (held, due, *later):
        message = existing(await store.messages.read(account_id, new.id))
        assert (message.status, message.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)
        assert "the account was deleted" in existing(message.recipients[0].last_smtp_response)
    assert (await store.scheduled.count(), await schedule.due()) == (0, [])


# ---- one transaction
async def test_a_transaction_has_a_bounded_number_of_recipients(schedule: Schedule) -> None:
    await schedule.store.accounts.set_credits(schedule.account.id, None)
    for _ in range(9):
        await schedule.accept(*(f"r{number}@x.example" for number in range(12)))
    schedule.clock.now += 2 * HOUR
    assert [await schedule.store.scheduled.release_due() for _ in range(4)] == [4, 4, 1, 0]


async def test_a_transaction_has_a_bounded_amount_of_metadata(schedule: Schedule) -> None:
    """Each recipient that is cancelled or suppressed has an event with the metadata. A message goes at any size."""
    metadata = '{"key":"%s"}' % ("x" * 512 * 1024)
    for addresses in (["a@x.example"], ["a@x.example", "b@x.example", "c@x.example"], ["a@x.example"]):
        new = schedule.messages.new(*addresses)
        await schedule.store.messages.accept(replace(new, scheduled_at=new.created_at + HOUR, metadata=metadata))
    schedule.clock.now += 2 * HOUR
    assert [await schedule.store.scheduled.release_due() for _ in range(4)] == [1, 1, 1, 0]


UNREADABLE = "UPDATE messages SET sender = 'no address' WHERE id = :id"


async def test_an_unreadable_message_stops_no_other(schedule: Schedule, caplog: pytest.LogCaptureFixture) -> None:
    store, postponed = schedule.store, dict(SCHEDULED_POSTPONED.values)
    bad, good = await schedule.accept(), await schedule.accept("a@x.example")
    await store.engine.change(UNREADABLE, {"id": bad.id})
    schedule.clock.now += 2 * HOUR
    assert (await store.scheduled.release_due(), await store.scheduled.release_due()) == (2, 0)
    assert (await schedule.due(), await schedule.statuses(bad)) == ([good.id], [SCHEDULED])
    assert SCHEDULED_POSTPONED.values[""] == postponed[""] + 1
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.message == "scheduled message postponed for an hour: it cannot be processed"
    schedule.clock.now += HOUR
    await store.engine.change("UPDATE messages SET sender = 'a@example.com' WHERE id = :id", {"id": bad.id})
    assert await store.scheduled.release_due() == 1
    assert await schedule.due() == [bad.id, good.id]


# ---- moved and cancelled
async def test_a_message_moves_until_it_is_due(schedule: Schedule) -> None:
    store, account_id = schedule.store, schedule.account.id
    new = await schedule.accept()
    await store.scheduled.move(account_id, new.id, new.created_at + 3 * HOUR)
    schedule.clock.now += 2 * HOUR
    assert await store.scheduled.release_due() == 0
    schedule.clock.now += HOUR
    with refusal(Code.CONFLICT):  # due, though nothing has queued it yet
        await store.scheduled.move(account_id, new.id, schedule.clock.now + DAY)
    assert await store.scheduled.release_due() == 1
    with refusal(Code.CONFLICT):
        await store.scheduled.move(account_id, new.id, schedule.clock.now + DAY)
    assert existing(await store.messages.read(account_id, new.id)).scheduled_at == new.created_at + 3 * HOUR


async def test_a_cancelled_message_is_never_queued(schedule: Schedule) -> None:
    store, account_id = schedule.store, schedule.account.id
    new = await schedule.accept("a@x.example", "b@x.example")
    with refusal(Code.NOT_FOUND):
        await store.queue_control.cancel(new.id, "test", "acc_other")
    assert await store.queue_control.cancel(new.id, "test", account_id) == 2
    with refusal(Code.CONFLICT):
        await store.queue_control.cancel(new.id, "test", account_id)
    schedule.clock.now += 2 * HOUR
    assert (await store.scheduled.release_due(), await schedule.due()) == (0, [])
    assert (await schedule.credits(), await store.scheduled.count()) == (CREDITS, 0)


async def test_a_restored_backup_can_drop_what_was_due_before(schedule: Schedule) -> None:
    """The lost machine may have sent it after the backup; what is due later it has not sent."""
    store, clock = schedule.store, schedule.clock
    overdue, later = await schedule.accept("a@x.example", "b@x.example"), await schedule.accept(ahead=3 * HOUR)
    held = await schedule.accept(ahead=MINUTE)
    await store.accounts.set_suspended(schedule.account.id, suspended=True)
    clock.now += 2 * MINUTE
    await store.scheduled.release_due()
    await store.accounts.set_suspended(schedule.account.id, suspended=False)
    clock.now += 2 * HOUR
    waiting = await store.queue_control.totals()
    assert (waiting.due, waiting.deferred) == (2, 0)
    assert waiting.oldest_at == identifier_time(overdue.id)
    assert await store.queue_control.cancel_older(clock.now, "restored") == 3
    assert (await store.scheduled.release_due(), await store.scheduled.release_held()) == (0, 0)
    assert await schedule.statuses(overdue) == [RecipientStatus.FAILED] * 2
    assert (await schedule.statuses(held), await schedule.statuses(later)) == ([RecipientStatus.FAILED], [SCHEDULED])
    assert (await schedule.credits(), await store.scheduled.count()) == (CREDITS - 1, 1)


# ---- what else reads messages
async def test_scheduled_messages_are_no_part_of_the_queue(schedule: Schedule) -> None:
    store = schedule.store
    await schedule.accept()
    waiting = await store.queue_control.totals()
    assert (waiting.due, waiting.deferred, await store.queue_control.summary(9, 9)) == (0, 0, [])
    assert (await store.queue.next_due(simulated=False), await store.lanes.accounts(low=0)) == (None, [])


async def test_the_list_finds_them_by_their_outcome(schedule: Schedule) -> None:
    store, account_id = schedule.store, schedule.account.id
    new = await schedule.accept()
    await store.messages.accept(schedule.messages.new())
    page = await store.mail_log.page(account_id, MailFilter(outcome=RecipientOutcome.SCHEDULED), None, 9)
    assert [(message.id, message.scheduled_at) for message in page.messages] == [(new.id, new.scheduled_at)]
    assert page.messages[0].outcomes == {RecipientOutcome.SCHEDULED: 1}
    assert page.messages[0].recipients[0].status is SCHEDULED
    schedule.clock.now += 2 * HOUR
    await store.scheduled.release_due()
    page = await store.mail_log.page(account_id, MailFilter(outcome=RecipientOutcome.SCHEDULED), None, 9)
    assert page.messages == ()


async def test_retention_leaves_them(schedule: Schedule) -> None:
    store = schedule.store
    new = await schedule.accept(ahead=29 * DAY)
    now = schedule.clock.now = new.created_at + 28 * DAY
    await store.deletion.bodies("", now, now, 1_000)
    await store.deletion.mail("", now, 1_000)
    assert await store.messages.mime(new.id) == new.mime
    assert await schedule.statuses(new) == [SCHEDULED]
    assert identifier_from("msg", now) > new.id
    schedule.clock.now += 2 * DAY
    await store.scheduled.release_due()
    assert await schedule.due() == [new.id]


async def test_a_delay_counts_from_the_scheduled_time(schedule: Schedule) -> None:
    store, clock = schedule.store, schedule.clock
    new = await schedule.accept(ahead=5 * HOUR)
    clock.now = existing(new.scheduled_at)
    await store.scheduled.release_due()
    delayed = "SELECT delayed_at FROM recipients"
    for passed, expected in ((MINUTE, False), (HOUR + SECOND, True)):
        (due,) = await store.queue.due(simulated=False, most=9)
        clock.now = existing(new.scheduled_at) + passed
        await store.queue.record([outcome(due, RecipientStatus.DEFERRED, clock.now, next_attempt_at=clock.now + 1)])
        assert [(at is not None) for (at,) in await store.engine.rows(delayed, {})] == [expected]
