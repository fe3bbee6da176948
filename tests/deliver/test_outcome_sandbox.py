"""When sandbox mail is delivered: due recipients at once, deferrals at their time, after a wake without delay."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import apsw
import pytest
import trio
from trio.testing import MockClock

from appliance.concurrency.wake import Wake
from appliance.deliver import outcome as sandbox
from appliance.deliver.outcome import DEFERRAL, simulate
from appliance.environment import Environment
from appliance.feedback.reply_rules import judge_reply
from appliance.model.accounts import Account
from appliance.model.mail import DueRecipient, RecipientStatus
from appliance.store import Store, open_store
from appliance.store.pools import EVERY
from tests.store.samples import CREDITS, HASH, MORNING, FailingDisk, Faults, Messages

ATTEMPTS = 12
# Each test names the virtual clock itself, because only then pytest-trio runs it on that.


@pytest.fixture
def env() -> Environment:
    return Environment(now=lambda: MORNING + round(trio.current_time() * 1_000_000))


@pytest.fixture
async def store(tmp_path: Path, env: Environment) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "data", env, inline=True) as opened:
        yield opened


@pytest.fixture
async def account(store: Store) -> Account:
    return await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)


@pytest.fixture
def faults() -> Iterator[Faults]:
    disk = FailingDisk()
    yield disk.faults
    disk.unregister()


async def statuses(store: Store, account: Account, message_id: str) -> list[RecipientStatus]:
    message = await store.messages.read(account.id, message_id)
    assert message is not None
    return [recipient.status for recipient in message.recipients]


async def test_a_deferral_is_delivered_two_seconds_later(
    autojump_clock: MockClock, store: Store, env: Environment, account: Account, nursery: trio.Nursery
) -> None:
    new = Messages(env, account.id).new("defer@example.net")
    await store.messages.accept(new)
    nursery.start_soon(sandbox.run_sandbox, store, env, Wake(), ATTEMPTS)
    await trio.sleep(1.9)
    assert await statuses(store, account, new.id) == [RecipientStatus.DEFERRED]
    await trio.sleep(0.2)
    assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]
    message = await store.messages.read(account.id, new.id)
    assert message is not None
    assert message.recipients[0].attempt_count == 2


@pytest.mark.parametrize("reads_before", [1, 2, 3, 4])
async def test_a_recipient_that_becomes_due_during_a_poll_is_not_missed(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery, reads_before: int
) -> None:
    """Too late for the poll and too early for the question when the next is due, it must not wait for a minute."""
    reads, jumps_after = 0, 1_000_000

    def now() -> int:  # a second passes between two reads of the clock
        nonlocal reads
        reads += 1
        return MORNING + round(trio.current_time() * 1_000_000) + (1_000_000 if reads > jumps_after else 0)

    env, wake = Environment(now=now), Wake()
    async with open_store(tmp_path / "data", env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        new = Messages(env, account.id).new("defer@example.net")
        await store.messages.accept(new)
        nursery.start_soon(sandbox.run_sandbox, store, env, wake, ATTEMPTS)
        await trio.sleep(1.5)
        assert await statuses(store, account, new.id) == [RecipientStatus.DEFERRED]
        reads, jumps_after = 0, reads_before
        wake.set()
        await trio.sleep(0.1)
        assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]
        nursery.cancel_scope.cancel()


async def test_a_wake_ends_the_sleep(
    autojump_clock: MockClock, store: Store, env: Environment, account: Account, nursery: trio.Nursery
) -> None:
    """What is accepted while the pool sleeps is delivered at once, not when the sleep would have ended."""
    wake = Wake()
    nursery.start_soon(sandbox.run_sandbox, store, env, wake, ATTEMPTS)
    await trio.sleep(10)
    new = Messages(env, account.id).new()
    await store.messages.accept(new)
    began = trio.current_time()
    wake.set()
    await trio.testing.wait_all_tasks_blocked()
    assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]
    assert trio.current_time() == began


async def test_without_a_wake_it_looks_once_a_minute(
    autojump_clock: MockClock, store: Store, env: Environment, account: Account, nursery: trio.Nursery
) -> None:
    nursery.start_soon(sandbox.run_sandbox, store, env, Wake(), ATTEMPTS)
    await trio.sleep(10)
    new = Messages(env, account.id).new()
    await store.messages.accept(new)
    await trio.sleep(61)
    assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]


async def test_more_than_a_batch_is_delivered(
    autojump_clock: MockClock, store: Store, env: Environment, account: Account
) -> None:
    await store.accounts.set_credits(account.id, 10 * sandbox.SANDBOX_BATCH)
    messages = Messages(env, account.id)
    for _ in range(3):
        await store.messages.accept(
            messages.new(*(f"r{number}@x.example" for number in range(sandbox.SANDBOX_BATCH // 2 + 1)))
        )
    counts = []
    while count := await sandbox.deliver_due(store, env, ATTEMPTS):
        counts.append(count)
    assert counts == [sandbox.SANDBOX_BATCH, 3 * (sandbox.SANDBOX_BATCH // 2 + 1) - sandbox.SANDBOX_BATCH]
    assert await sandbox.deliver_due(store, env, ATTEMPTS) == 0


async def test_real_mail_is_left_alone(
    autojump_clock: MockClock, store: Store, env: Environment, account: Account
) -> None:
    new = Messages(env, account.id).new(simulated=False)
    await store.messages.accept(new)
    assert await sandbox.deliver_due(store, env, ATTEMPTS) == 0
    assert await statuses(store, account, new.id) == [RecipientStatus.QUEUED]


async def test_storage_that_refuses_delays_and_stops_nothing(
    autojump_clock: MockClock,
    faults: Faults,
    tmp_path: Path,
    env: Environment,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_store(tmp_path / "full", env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        new = Messages(env, account.id).new()
        await store.messages.accept(new)
        async with trio.open_nursery() as inner:
            with faults.raising(on_write=apsw.FullError):
                inner.start_soon(sandbox.run_sandbox, store, env, Wake(), ATTEMPTS)
                await trio.sleep(5)
                assert await statuses(store, account, new.id) == [RecipientStatus.QUEUED]
            await trio.sleep(2)
            assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]
            inner.cancel_scope.cancel()
    assert "delivery paused: storage unavailable" in caplog.text


async def test_simulated_mail_waits_while_all_mail_is_paused(
    autojump_clock: MockClock, store: Store, env: Environment, account: Account, nursery: trio.Nursery
) -> None:
    await store.pools.hold(EVERY, "restored")
    new = Messages(env, account.id).new("ok@example.net")
    await store.messages.accept(new)
    nursery.start_soon(sandbox.run_sandbox, store, env, Wake(), ATTEMPTS)
    await trio.sleep(3600)
    assert await statuses(store, account, new.id) == [RecipientStatus.QUEUED]
    await store.pools.release(EVERY)
    await trio.sleep(1.1)
    assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]
    nursery.cancel_scope.cancel()


async def test_a_clock_set_back_leaves_no_simulated_mail_behind(
    autojump_clock: MockClock, tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A deferral that would be due in two days by the right clock is delivered at once."""
    ahead = 2 * 86_400 * 1_000_000
    env = Environment(now=lambda: MORNING + ahead + round(trio.current_time() * 1_000_000))
    async with open_store(tmp_path / "data", env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        new = Messages(env, account.id).new("defer@example.net")
        await store.messages.accept(new)
        nursery.start_soon(sandbox.run_sandbox, store, env, Wake(), ATTEMPTS)
        await trio.sleep(1)
        assert await statuses(store, account, new.id) == [RecipientStatus.DEFERRED]
        ahead = 0
        await trio.sleep(5)
        assert await statuses(store, account, new.id) == [RecipientStatus.DELIVERED]
        nursery.cancel_scope.cancel()


# ---- simulated delivery: the local part decides, and nothing is left to chance


NOW = 1_700_000_000_000_000
ATTEMPTS = 12


def due(address: str, attempts: int = 0) -> DueRecipient:
    return DueRecipient(
        id="rcp_1",
        message_id="msg_1",
        account_id="acc_1",
        address=address,
        domain="example.net",
        attempt_count=attempts,
        last_smtp_code=None,
        last_smtp_response=None,
        envelope_from="a@example.com",
        subject="s",
        recipient_count=1,
        charged=1,
    )


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
