"""When sandbox mail is delivered: due recipients at once, deferrals at their time, after a wake without delay."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio.testing import MockClock

from appliance.concurrency.wake import Wake
from appliance.deliver import sandbox
from appliance.deliver.sandbox import DEFERRAL, simulate
from appliance.environment import Environment
from appliance.feedback.reply_rules import judge_reply
from appliance.model.accounts import Account
from appliance.model.mail import DueRecipient, RecipientStatus
from appliance.store import Store, open_store
from appliance.store.pools import EVERY
from tests.store.samples import CREDITS, HASH, MORNING, FailingDisk, Messages

ATTEMPTS = 12
# Each test names the virtual clock itself, because only then pytest-trio runs it on that.


def virtual_now() -> int:
    return MORNING + round(trio.current_time() * 1_000_000)


@dataclass
class Box:
    """A store with one account, and a sandbox that runs in `nursery`."""

    store: Store
    env: Environment
    account: Account
    nursery: trio.Nursery
    wake: Wake = field(default_factory=Wake)

    def run(self) -> None:
        self.nursery.start_soon(sandbox.run_sandbox, self.store, self.env, self.wake, ATTEMPTS)

    async def send(self, address: str = "ok@example.net", **fields: Any) -> str:
        new = Messages(self.env, self.account.id).new(address, **fields)
        await self.store.messages.accept(new)
        return new.id

    async def status(self, message_id: str) -> RecipientStatus:
        message = await self.store.messages.read(self.account.id, message_id)
        assert message is not None
        (recipient,) = message.recipients
        return recipient.status


@asynccontextmanager
async def opened(directory: Path, now: Callable[[], int] = virtual_now) -> AsyncIterator[Box]:
    env = Environment(now=now)
    async with open_store(directory / "data", env, inline=True) as store, trio.open_nursery() as nursery:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        yield Box(store, env, account, nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    async with opened(tmp_path) as made:
        yield made


async def test_a_deferral_is_delivered_two_seconds_later(autojump_clock: MockClock, box: Box) -> None:
    message_id = await box.send("defer@example.net")
    box.run()
    await trio.sleep(1.9)
    assert await box.status(message_id) is RecipientStatus.DEFERRED
    await trio.sleep(0.2)
    assert await box.status(message_id) is RecipientStatus.DELIVERED
    message = await box.store.messages.read(box.account.id, message_id)
    assert message is not None
    assert message.recipients[0].attempt_count == 2


@pytest.mark.parametrize("reads_before", [1, 2, 3, 4])
async def test_a_recipient_that_becomes_due_during_a_poll_is_not_missed(
    autojump_clock: MockClock, tmp_path: Path, reads_before: int
) -> None:
    """Too late for the poll and too early for the question when the next is due, it must not wait for a minute."""
    reads, jumps_after = 0, 1_000_000

    def now() -> int:  # a second passes between two reads of the clock
        nonlocal reads
        reads += 1
        return virtual_now() + (1_000_000 if reads > jumps_after else 0)

    async with opened(tmp_path, now) as box:
        message_id = await box.send("defer@example.net")
        box.run()
        await trio.sleep(1.5)
        assert await box.status(message_id) is RecipientStatus.DEFERRED
        reads, jumps_after = 0, reads_before
        box.wake.set()
        await trio.sleep(0.1)
        assert await box.status(message_id) is RecipientStatus.DELIVERED


async def test_a_wake_ends_the_sleep(autojump_clock: MockClock, box: Box) -> None:
    box.run()
    await trio.sleep(10)
    message_id = await box.send()
    began = trio.current_time()
    box.wake.set()
    await trio.testing.wait_all_tasks_blocked()
    assert await box.status(message_id) is RecipientStatus.DELIVERED
    assert trio.current_time() == began


async def test_without_a_wake_it_looks_once_a_minute(autojump_clock: MockClock, box: Box) -> None:
    box.run()
    await trio.sleep(10)
    message_id = await box.send()
    await trio.sleep(61)
    assert await box.status(message_id) is RecipientStatus.DELIVERED


async def test_more_than_a_batch_is_delivered(autojump_clock: MockClock, box: Box) -> None:
    batch, half = sandbox.SANDBOX_BATCH, sandbox.SANDBOX_BATCH // 2 + 1
    await box.store.accounts.set_credits(box.account.id, 10 * batch)
    messages = Messages(box.env, box.account.id)
    for _ in range(3):
        await box.store.messages.accept(messages.new(*(f"r{number}@x.example" for number in range(half))))
    counts = [await sandbox.deliver_due(box.store, box.env, ATTEMPTS) for _ in range(3)]
    assert counts == [batch, 3 * half - batch, 0]


async def test_mail_that_arrives_singly_shares_a_transaction(
    autojump_clock: MockClock, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first message is delivered at once; those that follow within a rest are delivered together after it."""
    counts = list[int]()
    deliver = sandbox.deliver_due

    async def counted(*args: Any) -> int:
        if count := await deliver(*args):
            counts.append(count)
        return count

    monkeypatch.setattr(sandbox, "deliver_due", counted)
    box.run()
    await trio.sleep(10)
    for _ in range(11):
        await box.send()
        box.wake.set()
        await trio.sleep(0.01)
    await trio.sleep(sandbox.MIN_PAUSE)
    assert counts == [1, 5, 5]


async def test_real_mail_is_left_alone(autojump_clock: MockClock, box: Box) -> None:
    message_id = await box.send(simulated=False)
    assert await sandbox.deliver_due(box.store, box.env, ATTEMPTS) == 0
    assert await box.status(message_id) is RecipientStatus.QUEUED


async def test_storage_that_refuses_delays_and_stops_nothing(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    async with opened(tmp_path) as box:
        message_id = await box.send()
        with disk.faults.raising(on_write=apsw.FullError):
            box.run()
            await trio.sleep(5)
            assert await box.status(message_id) is RecipientStatus.QUEUED
        await trio.sleep(2)
        assert await box.status(message_id) is RecipientStatus.DELIVERED
    disk.unregister()
    assert "delivery paused: storage unavailable" in caplog.text


async def test_simulated_mail_waits_while_all_mail_is_paused(autojump_clock: MockClock, box: Box) -> None:
    await box.store.pools.hold(EVERY, "restored")
    message_id = await box.send()
    box.run()
    await trio.sleep(3600)
    assert await box.status(message_id) is RecipientStatus.QUEUED
    await box.store.pools.release(EVERY)
    await trio.sleep(1.1)
    assert await box.status(message_id) is RecipientStatus.DELIVERED


async def test_a_clock_set_back_leaves_no_simulated_mail_behind(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A deferral that would be due in two days by the right clock is delivered at once."""
    ahead = 2 * 86_400 * 1_000_000
    async with opened(tmp_path, lambda: virtual_now() + ahead) as box:
        message_id = await box.send("defer@example.net")
        box.run()
        await trio.sleep(1)
        assert await box.status(message_id) is RecipientStatus.DEFERRED
        ahead = 0
        await trio.sleep(5)
        assert await box.status(message_id) is RecipientStatus.DELIVERED


# ---- simulated delivery: the local part decides, and nothing is left to chance

NOW = 1_700_000_000_000_000


def due(address: str, attempts: int = 0) -> DueRecipient:
    return DueRecipient("rcp_1", "msg_1", "acc_1", address, "example.net", attempts, None, None, "a@b.c", "s", 1, 1)


@pytest.mark.parametrize(
    ("address", "status", "code", "tries"),
    [
        ("user@example.net", RecipientStatus.DELIVERED, 250, 1),
        ("bounce@example.net", RecipientStatus.BOUNCED, 550, 1),
        ("BOUNCE+tag@example.net", RecipientStatus.BOUNCED, 550, 1),
        ("bounced@bounce.example", RecipientStatus.BOUNCED, 550, 1),
        ("user@bounce.example", RecipientStatus.DELIVERED, 250, 1),
        ("fail-over@example.net", RecipientStatus.FAILED, 451, ATTEMPTS),
        ("defer@example.net", RecipientStatus.DEFERRED, 451, 1),
        ("not-bounce@example.net", RecipientStatus.DELIVERED, 250, 1),
    ],
)
def test_the_local_part_decides(address: str, status: RecipientStatus, code: int, tries: int) -> None:
    result = simulate(due(address), NOW, ATTEMPTS)
    assert (result.status, result.at, len(result.attempts)) == (status, NOW, tries)
    assert {attempt.smtp_code for attempt in result.attempts} == {code}
    for attempt in result.attempts:
        assert attempt.smtp_response is not None
        assert attempt.smtp_response.startswith(f"{code} ")
        assert result.bounce_class == (
            None if code == 250 else judge_reply(code, None, attempt.smtp_response).bounce_class
        )


def test_a_deferral_is_delivered_the_second_time() -> None:
    first = simulate(due("defer@example.net"), NOW, ATTEMPTS)
    assert first.next_attempt_at == NOW + DEFERRAL == NOW + 2_000_000
    second = simulate(due("defer@example.net", attempts=1), NOW + DEFERRAL, ATTEMPTS)
    assert (second.status, second.next_attempt_at) == (RecipientStatus.DELIVERED, None)


def test_a_failure_uses_up_what_attempts_are_left() -> None:
    assert len(simulate(due("fail@example.net", attempts=5), NOW, ATTEMPTS).attempts) == ATTEMPTS - 5


@pytest.mark.parametrize("local", ["bounce", "fail", "defer", "user"])
def test_no_address_is_suppressed(local: str) -> None:
    assert simulate(due(f"{local}@example.net"), NOW, ATTEMPTS).suppress is None
