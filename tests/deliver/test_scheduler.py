"""Delivery as a whole, on a virtual clock: the schedule, the pools, and what may not end the loop."""

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.deliver.attempt import Deliverer
from appliance.deliver.pending import PENDING_OF_NEW, PENDING_PER_POOL
from appliance.deliver.pool_limiter import FIRST_PAUSE, SENDER_FAULTS
from appliance.deliver.pool_limiters import FIRST_PROBE
from appliance.deliver.providers import PoolLimits
from appliance.deliver.route import Host, Route
from appliance.deliver.upkeep import NOT_PUBLISHED, Intervals
from appliance.errors import Refused, StorageUnavailable
from appliance.model.queue import PoolHold
from appliance.store.pools import EVERY
from appliance.store.pools import PoolStates as StoredPools
from appliance.store.queue import Queue
from appliance.store.queue_control import QueueControl
from appliance.times import SECOND
from tests.deliver.simulated_delivery import DELAYS, MIME, OK, SIGNATURE, START, Stage, domain_zone, domains, one, stage
from tests.fakes.mx import Answer, FakeMx, hang_up, wait_and_say
from tests.late_reads import late

LATER = b"451 4.3.0 later\r\n"


class Crowd:
    """Takes messages after some seconds, and counts how many wait for that at once."""

    def __init__(self, seconds: float) -> None:
        self.most = 0
        self._seconds = seconds
        self._here = 0

    async def answer(self, stream: trio.abc.Stream) -> None:
        self._here += 1
        self.most = max(self.most, self._here)
        await trio.sleep(self._seconds)
        self._here -= 1
        await stream.send_all(OK)


# ---- the schedule


@pytest.mark.slow  # more than a day of simulated time
async def test_twelve_attempts_through_48_hours(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMx(answers={"RCPT": LATER})
    rarely = Intervals(poll_all=60.0, publish=600.0, close_idle=600.0, save_warmup=600.0)  # two days are many seconds
    monkeypatch.setattr("appliance.concurrency.wake.CLOCK_CHECK_INTERVAL", 60.0)
    async with stage(tmp_path, *one(server), intervals=rarely) as played:
        message = await played.send("ada@a.test")
        await trio.sleep(60 * 3600)
        times = [at for (at,) in await played.rows("SELECT started_at FROM attempts ORDER BY number")]
        waits = [(later - at) / 1_000_000 for at, later in pairwise(times)]
        assert len(times) == 12
        assert all(delay <= wait <= 1.2 * delay + 1 for wait, delay in zip(waits, DELAYS, strict=True))
        assert 48 <= sum(waits) / 3600 <= 58
        assert await played.recipient(message) == ("failed", 12)
        assert await played.rows("SELECT type FROM events") == [("email.failed",)]
        assert played.signer.signed == 1
        decisions = [text for (text,) in await played.rows("SELECT decision FROM attempts ORDER BY number")]
        assert decisions[0].startswith("deferred: attempt 2 of 12 at 2025-")
        assert decisions[-1] == "failed: 12 attempts are used up"


@pytest.mark.parametrize(
    ("answers", "sessions"),
    [
        pytest.param({"RCPT": [LATER, LATER, OK]}, 2, id="both put off"),
        pytest.param({"RCPT": [LATER, OK]}, 1, id="one put off"),
        pytest.param({"RCPT": [LATER, b"550 5.1.1 no\r\n", OK]}, 1, id="one refused"),
        pytest.param({"MAIL": [LATER, OK]}, 1, id="the sender put off"),
    ],
)
async def test_a_connection_on_which_all_was_put_off_is_closed(
    answers: dict[str, Any], sessions: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = FakeMx(answers=answers)
    async with stage(tmp_path, *one(server)) as played:
        first = await played.send("ada@a.test", "bob@a.test")
        await played.until(lambda: played.recipient(first), lambda found: found[1] == 1)
        await played.final(await played.send("eve@a.test"))
        assert server.sessions == sessions
        assert ("QUIT" in server.commands) == (sessions == 2)


async def test_the_signature_of_the_first_attempt_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": [LATER, OK]})
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("ada@a.test"))
        assert played.signer.signed == 1
        assert server.messages[0].data.startswith(SIGNATURE)


async def test_a_clock_that_jumps_makes_no_burst(tmp_path: Path, autojump_clock: MockClock) -> None:
    crowd = Crowd(0.5)
    server = FakeMx(answers={".": crowd.answer})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=3)) as played:
        sent = [await played.send(f"user{number}@a.test", delay=number * 900) for number in range(1, 150)]
        leap = played.env.now() + 2 * 86_400 * 1_000_000
        await played.change("UPDATE recipients SET next_attempt_at = next_attempt_at - :leap", leap=leap - START)
        played.scheduler.new_mail.request_poll()
        await played.final(*sent, within=120)
        assert crowd.most == 3
        assert server.commands.count("DATA") == len(sent)


# ---- pools


async def from_the_only_account(played: Stage, count: int) -> list[str]:
    """So many messages to a.test, in an installation with one account: what is said of one of several holds nothing."""
    await played.store.accounts.set_suspended(played.accounts["other"], True)
    return [await played.send(f"user{number}@a.test") for number in range(count)]


async def test_a_local_deferral_uses_no_attempt(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"MAIL": [b"421 4.7.0 slow down\r\n", b"250 2.1.0 ok\r\n"]})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1)) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(10)]
        await trio.sleep(FIRST_PAUSE / 1_000_000 - 1)
        assert [await played.recipient(message) for message in sent].count(("queued", 0)) == 9
        assert await played.rows("SELECT count(*) FROM attempts") == [(1,)]
        assert await played.rows("SELECT count(*) FROM events") == [(0,)]
        await trio.sleep(4)
        assert [await played.recipient(message) for message in sent].count(("delivered", 1)) == 9
        ((decision,),) = await played.rows("SELECT decision FROM attempts WHERE smtp_code = 421")
        assert decision.endswith("; mail to this pool slows down")


async def test_what_was_left_follows_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    stuck, free = FakeMx(answers={"greeting": wait_and_say(3_000, b"220 at last\r\n")}), FakeMx()
    async with stage(tmp_path, *domains({"stuck.test": stuck, "free.test": free}), running=False) as played:
        for number in range(PENDING_PER_POOL):
            await played.send(f"user{number}@stuck.test")
        sent = [await played.send(f"user{number}@free.test") for number in range(3 * PENDING_PER_POOL)]
        await played.change("UPDATE recipients SET next_attempt_at = next_attempt_at - 3600000000")
        played.nursery.start_soon(played.scheduler.run)
        await played.final(*sent, within=20)
        assert trio.current_time() < 1.5
        assert stuck.messages == []


@pytest.mark.parametrize("offered", [False, True], ids=["from the store", "new"])
async def test_one_blocked_destination_blocks_no_other(
    tmp_path: Path, autojump_clock: MockClock, offered: bool
) -> None:
    stuck, free = FakeMx(answers={"greeting": wait_and_say(3_000, b"220 at last\r\n")}), FakeMx()
    async with stage(tmp_path, *domains({"stuck.test": stuck, "free.test": free})) as played:

        async def send(recipients: Iterable[str]) -> list[str]:
            submit = played.offer if offered else played.send
            return [await submit(recipient) for recipient in recipients]

        await send(f"user{number}@stuck.test" for number in range(PENDING_OF_NEW + 2 * PENDING_PER_POOL))
        await trio.sleep(3)
        began = trio.current_time()
        sent = await send(f"user{number}@free.test" for number in range(2 * PENDING_PER_POOL))
        await played.final(*sent, within=5)
        assert trio.current_time() - began < 2
        assert stuck.messages == []


async def test_a_pool_is_held_after_ten_refusals(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten 5.7.1 in a row hold the pool at once: what waits is not tried, and goes when the hold is released."""
    script: dict[str, bytes] = {"RCPT": b"550 5.7.1 go away\r\n"}
    server = FakeMx(answers=script)
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1)) as played:
        sent = await from_the_only_account(played, 2 * SENDER_FAULTS)
        await trio.sleep(600)  # no probe goes that soon
        statuses = [(await played.recipient(message))[0] for message in sent]
        assert (statuses.count("bounced"), statuses.count("queued")) == (SENDER_FAULTS, SENDER_FAULTS)
        assert list(await played.store.pools.holds()) == ["a.test"]
        assert await played.rows("SELECT * FROM suppressions") == []
        (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
        assert line.startswith("pool held: its servers refuse mail")
        script.clear()
        await played.store.pools.release("a.test")
        await played.final(*sent, within=5)


async def test_a_hold_counts_before_the_store_is_read_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = StoredPools.holds

    async def slowly(self: StoredPools) -> dict[str, PoolHold]:
        found = await holds(self)
        await trio.sleep(3)  # longer than it takes until the limiters are checked again
        return found

    monkeypatch.setattr(StoredPools, "holds", slowly)
    monkeypatch.setattr("appliance.concurrency.wake.CLOCK_CHECK_INTERVAL", 60.0)
    server = FakeMx(answers={"RCPT": b"550 5.7.1 go away\r\n"})
    rarely = Intervals(publish=10.0, close_idle=600.0, save_warmup=600.0)
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1), intervals=rarely) as played:
        await from_the_only_account(played, 2 * SENDER_FAULTS)
        await trio.sleep(600)
        assert await played.rows("SELECT count(*) FROM attempts") == [(SENDER_FAULTS,)]
        for probes in range(1, 4):
            await trio.sleep((FIRST_PROBE << (probes - 1)) / SECOND)
            assert await played.rows("SELECT count(*) FROM attempts") == [(SENDER_FAULTS + probes,)]


async def test_a_hold_is_not_undone_by_an_older_reading(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(tmp_path, *one(FakeMx()), running=False) as played:
        limiters = played.scheduler.deliverer.limiters

        async def hold() -> None:
            await played.store.pools.hold("a.test", "by the operator")
            await limiters.read_holds()

        late(monkeypatch, StoredPools, "holds", hold)
        await limiters.read_holds()
        assert limiters.is_held("a.test")
        await played.store.pools.release("a.test")
        await limiters.read_holds()
        assert not limiters.is_held("a.test")


async def test_a_hold_is_not_undone_by_a_reading_from_before_it_was_on_record(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading began before the commit, and ends after it: the hold is not in it, and counts all the same."""
    holds, hold = StoredPools.holds, StoredPools.hold
    committed, older, last = trio.Event(), trio.Event(), trio.Event()
    locks = [older, last]

    async def late_holds(self: StoredPools) -> dict[str, PoolHold]:
        found = await holds(self)
        await locks.pop(0).wait()
        return found

    async def read_and_hold(self: StoredPools, *given: Any) -> None:
        monkeypatch.setattr(StoredPools, "holds", late_holds)
        played.nursery.start_soon(limiters.read_holds)
        await trio.testing.wait_all_tasks_blocked()
        await hold(self, *given)
        committed.set()

    monkeypatch.setattr(StoredPools, "hold", read_and_hold)
    async with stage(tmp_path, *one(FakeMx()), running=False) as played:
        limiters = played.scheduler.deliverer.limiters
        limiter = limiters.of_route(Route("a.test", (Host("mx.a.test", (ip_address("127.0.0.1"),)),), 25))
        played.nursery.start_soon(limiters._hold, limiter)
        await committed.wait()
        await trio.testing.wait_all_tasks_blocked()
        for lock in (older, last):
            lock.set()
            await trio.testing.wait_all_tasks_blocked()
            assert limiters.is_held("a.test")
        assert locks == []


async def test_all_mail_waits_while_delivery_is_paused(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Mail to known pools and to domains never seen waits alike, new or old, and goes once the pause is over."""
    server = FakeMx()
    zone, addresses = domain_zone("a.test", "b.test")
    async with stage(tmp_path, zone, dict.fromkeys(addresses.values(), server)) as played:
        await played.final(await played.send("first@a.test"))
        await played.store.pools.hold(EVERY, "restored")
        await trio.sleep(2)
        known, unknown, later = (
            await played.send("x@a.test"),
            await played.send("x@b.test"),
            await played.send("y@a.test", delay=60),
        )
        await trio.sleep(600)
        assert len(server.messages) == 1
        await played.store.pools.release(EVERY)
        await played.final(known, unknown, later, within=3)
        assert len(server.messages) == 4


async def test_a_hold_that_cannot_be_stored_still_holds(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full disk the hold counts in memory until it can be written."""
    refusals: list[str] = []
    stored = StoredPools.hold

    async def refuse_at_first(self: StoredPools, pool: str, reason: str, probe_at: int | None = None) -> None:
        if len(refusals) < 5:
            refusals.append(pool)
            raise StorageUnavailable("full")
        await stored(self, pool, reason, probe_at)

    monkeypatch.setattr(StoredPools, "hold", refuse_at_first)
    server = FakeMx(answers={"RCPT": b"550 5.7.1 go away\r\n"})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1)) as played:
        sent = await from_the_only_account(played, 2 * SENDER_FAULTS)
        await trio.sleep(20)
        assert [(await played.recipient(message))[0] for message in sent].count("bounced") == SENDER_FAULTS
        assert len(refusals) == 5
        assert list(await played.store.pools.holds()) == ["a.test"]


async def test_one_message_for_many_is_one_refusal(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": [b"550 5.7.1 spam\r\n", OK]})
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send(*(f"user{number}@a.test" for number in range(20))))
        good = await played.send("ada@a.test")
        await played.final(good, within=5)
        assert (await played.recipient(good))[0] == "delivered"
        assert await played.store.pools.holds() == {}


async def test_the_rate_of_a_pool_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), limits=PoolLimits(per_minute=60)) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(90)]
        await trio.sleep(5)
        assert 60 <= len(server.messages) <= 66
        await played.final(*sent, within=60)
        assert trio.current_time() >= 29


async def test_limiters_with_nothing_to_remember_are_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After mail to two hundred domains nothing of their pools stays in memory, nor in what the shell is told."""
    names = [f"d{number}.test" for number in range(200)]
    async with stage(tmp_path, *domains({name: FakeMx() for name in names})) as played:
        sent = [await played.send(f"ada@{name}") for name in names]
        await played.final(*sent)
        await trio.sleep(3)
        assert not played.scheduler.deliverer.limiters._limiters
        assert played.scheduler.pending.total == 0
        assert not played.scheduler.pending.queues
        assert await played.rows("SELECT count(*) FROM pool_states") == [(0,)]
        assert await played.rows("SELECT count(*) FROM destinations") == [(200,)]


async def test_what_cannot_be_told_to_the_shell_ends_no_delivery(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = StoredPools.say

    async def fail(self: StoredPools, *told: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(StoredPools, "say", fail)
    async with stage(tmp_path, *domains({name: FakeMx() for name in ("a.test", "b.test")}), running=False) as played:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(played.scheduler.run)
            await played.final(await played.send("ada@a.test"), within=5)
            await trio.sleep(25)
            await played.final(await played.send("bob@a.test"), within=5)
            logged = [record for record in caplog.records if record.message == NOT_PUBLISHED]
            assert len(logged) == 3
            assert all(record.exc_info for record in logged)
            monkeypatch.setattr(StoredPools, "say", stored)
            await trio.sleep(15)
            assert await played.rows("SELECT domain FROM destinations") == [("a.test",)]
            monkeypatch.setattr(StoredPools, "say", fail)
            caplog.clear()
            await played.final(await played.send("eve@b.test"), within=5)
            nursery.cancel_scope.cancel()
        assert NOT_PUBLISHED in [record.message for record in caplog.records]


async def test_sessions_in_all_are_limited(tmp_path: Path, autojump_clock: MockClock) -> None:
    names = [f"d{number}.test" for number in range(20)]
    crowd = Crowd(0.1)
    async with stage(
        tmp_path, *domains({name: FakeMx(answers={".": crowd.answer}) for name in names}), running=False
    ) as played:
        played.scheduler.sessions = 4
        sent = [await played.send(f"ada@{name}") for name in names]
        played.nursery.start_soon(played.scheduler.run)
        await played.final(*sent, within=10)
        assert crowd.most == 4
        assert trio.current_time() < 0.9


# ---- fairness


async def test_pools_take_turns_at_the_last_slots(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(
        tmp_path,
        *domains({name: FakeMx(answers={".": wait_and_say(0.5, OK)}) for name in ("big.test", "small.test")}),
        running=False,
    ) as played:
        played.scheduler.sessions = 2
        played.nursery.start_soon(played.scheduler.run)
        for number in range(40):
            await played.send(f"user{number}@big.test")
        await trio.sleep(2)
        single = await played.send("ada@small.test")
        began = trio.current_time()
        await played.final(single, within=20)
        assert trio.current_time() - began < 3


async def test_a_big_account_does_not_delay_a_small_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(1.0, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=2)) as played:
        for number in range(1_000):
            await played.send(f"user{number}@a.test")
        await trio.sleep(10)
        single = await played.send("ada@a.test", account="other")
        began = trio.current_time()
        await played.final(single, within=60)
        assert trio.current_time() - began < 5


@pytest.mark.parametrize("backlog", [90, 150, 700])
async def test_a_slow_pool_does_not_belong_to_one_account(
    tmp_path: Path, autojump_clock: MockClock, backlog: int
) -> None:
    server = FakeMx(answers={".": wait_and_say(1.2, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1)) as played:
        for number in range(backlog):
            await played.send(f"user{number}@a.test")
        await trio.sleep(5)
        for offered in (False, True):
            single = await (played.offer if offered else played.send)("ada@a.test", account="other")
            began = trio.current_time()
            await played.final(single, within=90)
            assert trio.current_time() - began < 6


async def test_few_large_messages_are_under_way_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each is in memory for as long as its server takes; small ones go on meanwhile, and all arrive."""
    names = [f"d{number}.test" for number in range(8)]
    crowd = Crowd(1)
    servers = {name: FakeMx(answers={".": crowd.answer}) for name in names} | {"small.test": FakeMx()}
    async with stage(tmp_path, *domains(servers), running=False, large_message=100) as played:
        played.scheduler.large_sessions = 3
        played.nursery.start_soon(played.scheduler.run)
        sent = [await played.offer(f"ada@{name}", mime=MIME + b"x" * 100 + b"\r\n") for name in names]
        small = await played.send("ada@small.test")
        await played.final(small, within=0.9)
        await played.final(*sent, within=10)
        assert crowd.most == 3


# ---- connections


async def test_a_connection_is_used_again_up_to_the_limit(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    limits = PoolLimits(concurrency=1, messages_per_connection=10)
    async with stage(tmp_path, *one(server), limits=limits) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(30)]
        await played.final(*sent)
        await trio.sleep(1)
        assert server.sessions == 3
        assert server.commands.count("QUIT") == 3
        assert len(server.messages) == 30


async def test_domains_of_one_server_share_its_connections(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    zone, servers = one(server)
    async with stage(tmp_path, zone | {"b.test": {"MX": ["10 mx.a.test."]}}, servers) as played:
        await played.final(await played.send("ada@a.test"))
        await played.final(await played.send("ada@b.test"))
        assert len(server.messages) == 2
        assert server.sessions == 1


async def test_an_idle_connection_is_closed(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("ada@a.test"))
        assert "QUIT" not in server.commands
        await trio.sleep(25)
        assert server.commands[-1] == "QUIT"


@pytest.mark.parametrize("end", [hang_up, b"421 4.4.2 idle too long\r\n"])
async def test_a_stale_connection_is_dialled_again(tmp_path: Path, autojump_clock: MockClock, end: Any) -> None:
    server = FakeMx(answers={"MAIL": [b"250 2.1.0 ok\r\n", end, b"250 2.1.0 ok\r\n"]})
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("ada@a.test"))
        await trio.sleep(5)
        second = await played.send("bob@a.test")
        await played.final(second, within=5)
        assert await played.recipient(second) == ("delivered", 1)
        assert server.sessions == 2


async def test_a_result_is_recorded_before_goodbye(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"QUIT": wait_and_say(4, b"221 bye\r\n")})
    async with stage(tmp_path, *one(server), limits=PoolLimits(messages_per_connection=1)) as played:
        message = await played.send("ada@a.test")
        await played.final(message, within=1)
        assert (await played.recipient(message))[0] == "delivered"


# ---- what may not end the loop


@pytest.mark.parametrize(("error", "has_traceback"), [(RuntimeError, True), (apsw.IOError, False)])
async def test_an_error_in_an_attempt_defers(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
    has_traceback: bool,
) -> None:
    deliver = Deliverer._deliver

    async def fail_once(self: Deliverer, active: Any, envelope: Any) -> Any:
        if envelope.recipients[0].address == "bug@a.test" and envelope.recipients[0].attempt_count == 0:
            raise error("disk I/O error")
        return await deliver(self, active, envelope)

    monkeypatch.setattr(Deliverer, "_deliver", fail_once)
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        bad, good = await played.send("bug@a.test"), await played.send("ada@a.test")
        await played.final(good, within=5)
        assert await played.recipient(bad) == ("deferred", 1)
        ((response,),) = await played.rows("SELECT smtp_response FROM attempts WHERE smtp_code IS NULL")
        assert response == "4.3.0 an error on our side; it is in the operator's log"
        await played.final(bad)
        assert await played.recipient(bad) == ("delivered", 2)
        (record,) = [record for record in caplog.records if record.message == "delivery failed"]
        assert vars(record)["fields"]["message_id"] == bad
        assert (record.exc_info is not None) is has_traceback
        assert has_traceback or "disk I/O error" in vars(record)["fields"]["cause"]


async def _refuse(*_: object) -> None:
    raise StorageUnavailable("the disk is full")


async def _break(*_: object) -> None:
    raise RuntimeError("a bug")


async def test_results_wait_for_the_storage(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        with monkeypatch.context() as patched:
            patched.setattr(Queue, "record", _refuse)
            message = await played.send("ada@a.test")
            await trio.sleep(30)
            assert await played.recipient(message) == ("queued", 0)
        await played.final(message, within=5)
        assert await played.recipient(message) == ("delivered", 1)
        assert len(server.messages) == 1


async def test_no_more_wait_for_the_disk_than_there_are_slots(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=3)) as played:
        with monkeypatch.context() as patched:
            patched.setattr(Queue, "record", _refuse)
            sent = [await played.send(f"user{number}@a.test") for number in range(40)]
            await trio.sleep(60)
            assert 3 <= len(server.messages) <= 6
        await played.final(*sent, within=10)
        assert len(server.messages) == 40


async def test_a_result_that_cannot_be_recorded_is_not_repeated(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeMx()
    record: Callable[..., Any] = Queue.record
    async with stage(tmp_path, *one(server)) as played:
        monkeypatch.setattr(Queue, "record", _break)
        await played.send("ada@a.test")
        await trio.sleep(300)
        assert len(server.messages) == 1
        monkeypatch.setattr(Queue, "record", record)
        good = await played.send("bob@a.test")
        await played.final(good, within=5)
        assert len(server.messages) == 2


# ---- the end


async def test_at_the_end_running_sessions_are_finished(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(3, OK)})
    async with stage(tmp_path, *one(server), limits=PoolLimits(concurrency=1), running=False) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(3)]
        with trio.move_on_after(1):
            await played.scheduler.run()
        assert trio.current_time() == pytest.approx(3, abs=0.1)
        assert sorted([(await played.recipient(message))[0] for message in sent]) == ["delivered", "queued", "queued"]
        assert server.commands.count("DATA") == 1


@pytest.mark.parametrize("steps", range(8))
async def test_it_can_be_ended_at_once(tmp_path: Path, autojump_clock: MockClock, steps: int) -> None:
    async with stage(tmp_path, *one(FakeMx()), running=False) as played:
        await played.send("ada@a.test")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(played.scheduler.run)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert trio.current_time() < 12


async def test_at_the_end_no_server_is_waited_for_too_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(500, OK)})
    async with stage(tmp_path, *one(server), running=False) as played:
        played.scheduler.grace = 20
        message = await played.send("ada@a.test")
        with trio.move_on_after(1):
            await played.scheduler.run()
        assert trio.current_time() == pytest.approx(21, abs=0.1)
        assert await played.recipient(message) == ("queued", 0)


async def test_at_the_end_a_storage_that_refuses_holds_nothing_up(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the process has to end because of its disk, results that cannot be recorded do not keep it alive."""
    async with stage(tmp_path, *one(FakeMx()), running=False) as played:
        monkeypatch.setattr(Queue, "record", _refuse)
        await played.send("ada@a.test")
        with trio.move_on_after(5):
            await played.scheduler.run()
        assert trio.current_time() < 7


# ---- several recipients


async def test_more_than_one_transaction_can_hold_go_in_several(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        message = await played.send(*(f"user{number}@a.test" for number in range(120)))
        await played.final(message, within=30)
        got = [address for each in server.messages for address in each.recipients]
        assert sorted(got) == sorted(f"user{number}@a.test" for number in range(120))
        assert max(len(each.recipients) for each in server.messages) == 50
        assert await played.rows("SELECT status FROM messages WHERE id = :id", id=message) == [("delivered",)]


async def test_envelopes_share_a_route(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(100)]
        await played.final(*sent)
        assert played.resolver.asked["a.test", "MX"] == 1
        await trio.sleep(5)
        await played.final(await played.send("ada@a.test"))
        assert played.resolver.asked["a.test", "MX"] == 2


async def test_a_domain_without_a_route_fails_for_all_its_envelopes(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, {}, {}) as played:
        sent = [await played.send(f"user{number}@missing.test") for number in range(5)]
        await played.final(*sent, within=5)
        assert [await played.recipient(message) for message in sent] == [("bounced", 1)] * 5


# ---- while the store is asked whether a message is still wanted


async def doubted(played: Stage, *addresses: str) -> str:
    """A message that was to be cancelled, in vain: before it goes in a few seconds, the store is asked."""
    sent = await played.send(*addresses, delay=5)
    with played.store.under_delivery.cancelling(sent):
        pass
    return sent


async def test_a_cancellation_meanwhile_finds_the_recipients_under_delivery(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is older than the cancellation, so the message goes: the cancellation has to be refused."""
    refusals: list[str] = []

    async def cancel() -> None:
        with pytest.raises(Refused, match="being handed to a server"):
            await played.store.queue_control.cancel(sent, "no")
        refusals.append(sent)

    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        sent = await doubted(played, "ada@a.test")
        late(monkeypatch, QueueControl, "waiting", cancel)
        await played.final(sent, within=10)
        assert refusals == [sent]
        assert await played.recipient(sent) == ("delivered", 1)
        assert len(server.messages) == 1


async def test_what_is_not_wanted_any_more_is_not_under_delivery(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = QueueControl.waiting

    async def cancelled_before(self: QueueControl, message_id: str) -> frozenset[str]:
        await played.change("UPDATE recipients SET next_attempt_at = NULL WHERE address = 'bob@a.test'")
        return await waiting(self, message_id)

    monkeypatch.setattr(QueueControl, "waiting", cancelled_before)
    server = FakeMx(answers={"MAIL": wait_and_say(60, OK)})
    async with stage(tmp_path, *one(server)) as played:
        sent = await doubted(played, "ada@a.test", "bob@a.test")
        await trio.sleep(30)
        found = await played.rows("SELECT id FROM recipients ORDER BY address")
        assert [recipient in played.store.under_delivery for (recipient,) in found] == [True, False]
        await played.final(sent, within=60)
        found = await played.rows("SELECT address, attempt_count FROM recipients ORDER BY address")
        assert found == [("ada@a.test", 1), ("bob@a.test", 0)]


async def test_without_an_answer_a_message_waits(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    waiting = QueueControl.waiting

    async def refuse(self: QueueControl, message_id: str) -> frozenset[str]:
        if away:
            raise StorageUnavailable("The storage is away.")
        return await waiting(self, message_id)

    monkeypatch.setattr(QueueControl, "waiting", refuse)
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        first, second = await doubted(played, "ada@a.test"), await doubted(played, "bob@a.test")
        await trio.sleep(60)
        assert await played.recipient(first) == await played.recipient(second) == ("queued", 0)
        assert await played.store.queue_control.cancel(second, "no") == 1
        away = False
        await played.final(first, second, within=60)
        assert await played.recipient(first) == ("delivered", 1)
        assert [mail.recipients for mail in server.messages] == [("ada@a.test",)]


async def test_a_retry_goes_before_untried_mail_of_its_pool(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, addresses = domain_zone("a.test")
    put_off, count = wait_and_say(5, b"451 4.7.1 greylisted\r\n"), 400
    answers: dict[str, Answer | list[Answer]] = {
        f"RCPT user{number}@a.test": [put_off, b"250 ok\r\n"] for number in range(count)
    }
    server, limits = FakeMx(answers=answers), PoolLimits(concurrency=2)
    async with stage(tmp_path, zone, {addresses["a.test"]: server}, limits=limits) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(count)]
        await trio.sleep(60)
        first = [each for each in sent if await played.recipient(each) == ("deferred", 1)]
        assert len(first) >= 20
        await played.final(*first, within=1.5 * DELAYS[0])
        ((untried,),) = await played.rows("SELECT count(*) FROM recipients WHERE attempt_count = 0")
        assert untried > count // 4
