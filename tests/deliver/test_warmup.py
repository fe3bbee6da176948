"""The warm-up of sending addresses within delivery, on a virtual clock: what goes when, from where, and what waits."""

from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.config.settings import WarmupSettings
from appliance.deliver import warmup as warmup_module
from appliance.deliver.attempt import Deliverer
from appliance.deliver.observation import NAMED_POOLS
from appliance.deliver.route import Host, Relay, Route
from appliance.deliver.upkeep import Intervals
from appliance.deliver.warmup import Permit
from appliance.model.mail import Outcome
from appliance.model.warmup import begin
from appliance.report.explain import standing
from appliance.store.pools import WarmupStates
from appliance.telemetry.prometheus import Readings
from appliance.times import DAY, HOUR
from tests.deliver.simulated_delivery import SOURCES, START, Stage, domains, one
from tests.deliver.simulated_delivery import stage as simulated
from tests.fakes.mx import FakeMx, hang_up
from tests.late_reads import late

ON = WarmupSettings(enabled=True)
FOUR, SIX = str(SOURCES[4]), str(SOURCES[6])
BOTH = {"a.test": {"MX": ["10 mx.a.test."]}, "mx.a.test": {"A": ["127.0.0.1"], "AAAA": ["fd00::1"]}}
MINUTES = 60.0


# Less often than in earnest: days have many seconds.
RARELY = Intervals(poll_all=30.0, publish=30.0, close_idle=600.0, save_warmup=30.0)
stage = partial(simulated, intervals=RARELY)


@pytest.fixture(autouse=True)
def seldom_checked_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days have many seconds."""
    monkeypatch.setattr("appliance.concurrency.wake.CLOCK_CHECK_INTERVAL", 60.0)


async def delivered(played: Stage, pool: str = "a.test") -> list[int]:
    query = "SELECT started_at FROM attempts WHERE pool = :pool AND smtp_code = 250 ORDER BY started_at"
    return [at - START for (at,) in await played.rows(query, pool=pool)]


async def sources(played: Stage) -> dict[str, int]:
    return dict(await played.rows("SELECT source, sent FROM warmups WHERE pool = 'a.test'"))


async def attempts(played: Stage) -> int:
    ((count,),) = await played.rows("SELECT count(*) FROM attempts")
    return int(count)


async def explanation(played: Stage, message: str, settings: WarmupSettings = ON) -> str:
    record = await played.store.records.of(message)
    assert record is not None
    tried = record.recipients[0]
    view = (await played.store.pools.views([tried.domain], settings, record.account_id))[tried.domain]
    return standing(tried, view, played.env.now(), 12)


# ---- through days


@pytest.mark.slow  # more than a day of simulated time
async def test_a_pool_gets_what_each_day_allows(tmp_path: Path, autojump_clock: MockClock) -> None:
    rarely = replace(RARELY, poll_all=120.0, publish=600.0, save_warmup=600.0)
    few = WarmupSettings(enabled=True, first_hour=2, growth=1.5)
    async with stage(tmp_path, *one(FakeMx()), warmup=few, intervals=rarely) as played:
        for length, count in ((24, 2 * 24), (6, 3 * 6 + 6)):
            for number in range(count):
                await played.send(f"user{number}@a.test")
            await trio.sleep(length * 3600)
        times = await delivered(played)
        hours = [sum(hour * HOUR <= at < (hour + 1) * HOUR for at in times) for hour in range(30)]
        assert [set(hours[:24]), set(hours[24:])] == [{2}, {3}]
        assert await attempts(played) == len(times)
        untried = "SELECT count(*) FROM recipients WHERE status = 'queued' AND attempt_count = 0"
        assert await played.rows(untried) == [(6,)]
        assert await played.rows("SELECT DISTINCT type FROM events") == [("email.delivered",)]


async def test_an_hour_is_no_burst(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *one(FakeMx()), warmup=ON) as played:
        for number in range(30):
            await played.send(f"user{number}@a.test")
        await trio.sleep(31 * MINUTES)
        times = [at // 60_000_000 for at in await delivered(played)]
        assert times[:2] == [0, 0]
        assert times[2:] == [3 * number for number in range(1, 11)]


async def test_a_restart_goes_on_with_the_day_and_the_hour(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), warmup=ON) as played:
        for number in range(40):
            await played.send(f"user{number}@a.test")
        await trio.sleep(31 * MINUTES)
        assert len(await delivered(played)) == 12
    async with stage(tmp_path, *one(server), warmup=ON) as played:
        (pace,) = await played.rows("SELECT pool, source, day, day_at, sent, used FROM warmups")
        assert pace == ("a.test", FOUR, 0, pytest.approx(START, abs=1_000_000), 12, 12)
        await trio.sleep(60)
        assert len(await delivered(played)) == 12  # no new burst
        await trio.sleep(27 * MINUTES)
        assert len(await delivered(played)) == 20
        await trio.sleep(11 * MINUTES)
        assert 22 <= len(await delivered(played)) <= 25
    async with stage(tmp_path, *one(server), warmup=ON) as played:
        await trio.sleep(25 * 3600)
        await played.final(*[await played.send(f"late{number}@a.test") for number in range(2)])
        await trio.sleep(60)
        assert await played.rows("SELECT day FROM warmups") == [(1,)]


async def test_other_pools_go_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *domains({name: FakeMx() for name in ("a.test", "b.test")}), warmup=ON) as played:
        waiting = [await played.send(f"user{number}@a.test") for number in range(200)]
        await trio.sleep(60)
        await played.final(await played.send("ada@b.test"), within=2)
        assert len(await delivered(played)) == 2
        told = await explanation(played, waiting[-1])
        assert told == f"waiting: warm-up of pool a.test from {FOUR}: 20 an hour on day 1, 2 used; next at 15:09:40"


async def test_accounts_take_turns_for_what_may_go(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *one(FakeMx()), warmup=ON) as played:
        for number in range(300):
            await played.send(f"user{number}@a.test")
        await trio.sleep(60)
        await played.final(await played.send("ada@a.test", account="other"), within=6 * MINUTES)
        assert len(await delivered(played)) <= 4


async def test_recipients_are_counted_and_a_message_goes_in_parts(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), warmup=ON) as played:
        message = await played.send(*[f"user{number}@a.test" for number in range(30)])
        await trio.sleep(59 * MINUTES)
        assert len(await delivered(played)) == 20
        await played.final(message, within=3600)
        got = sorted(address for each in server.messages for address in each.recipients)
        assert got == sorted(f"user{number}@a.test" for number in range(30))
        assert await attempts(played) == 30
        assert played.scheduler.pending.total == 0


async def test_few_are_prepared_while_many_wait(tmp_path: Path, autojump_clock: MockClock) -> None:
    """No more envelopes are pending than may go in half an hour: their routes would grow old."""
    async with stage(tmp_path, *one(FakeMx()), warmup=ON) as played:
        for number in range(200):
            await played.send(f"user{number}@a.test")
        await trio.sleep(60)
        assert played.scheduler.pending.total == 10


# ---- sources


async def test_each_source_has_its_own_warm_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    servers = {"127.0.0.1": FakeMx(), "fd00::1": FakeMx()}
    async with stage(tmp_path, BOTH, servers, warmup=ON) as played:
        for number in range(100):
            await played.send(f"user{number}@a.test")
        await trio.sleep(59 * MINUTES)
        assert [len(server.messages) for server in servers.values()] == [20, 20]
        assert await sources(played) == {FOUR: 20, SIX: 20}
        assert await attempts(played) == 40


async def test_a_dead_family_costs_no_attempt_and_lends_no_room(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, BOTH, {"127.0.0.1": server}, warmup=ON) as played:
        for number in range(100):
            await played.send(f"user{number}@a.test")
        await trio.sleep(119 * MINUTES)
        assert len(server.messages) == 40
        assert await attempts(played) == 40
        assert (await sources(played))[FOUR] == 40
        assert (await sources(played)).get(SIX, 0) == 0
        dead = [at for at, address in played.dialled if address == "fd00::1"]
        assert 0 < len(dead) <= 2 * 2 * 24  # two at a time, every five minutes


async def test_what_no_server_took_is_given_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"greeting": hang_up})
    async with stage(tmp_path, *one(server), warmup=ON) as played:
        sent = [await played.send(f"user{number}@a.test") for number in range(10)]
        await trio.sleep(100)
        assert [await played.recipient(message) for message in sent] == [("deferred", 1)] * 10
        assert await sources(played) == {FOUR: 0}


async def test_what_no_readable_recipient_needs_is_given_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *one(FakeMx()), warmup=ON) as played:
        message = await played.send("bob@a.test", delay=5)
        await played.change("UPDATE recipients SET address = 'no address'")
        await played.until(lambda: played.recipient(message), lambda state: state == ("deferred", 1), within=100)
        await trio.sleep(100)
        assert sum((await sources(played)).values()) == 0


async def test_only_the_addresses_named_are_held_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    new = WarmupSettings(enabled=True, addresses=(ip_address(SIX),))
    async with stage(tmp_path, *one(server), warmup=new) as played:
        await played.final(*[await played.send(f"user{number}@a.test") for number in range(150)], within=60)
        assert await sources(played) == {}
    named = WarmupSettings(enabled=True, addresses=(ip_address(FOUR),))
    async with stage(tmp_path, *one(server), warmup=named) as played:
        for number in range(150):
            await played.send(f"user{number}@a.test")
        await trio.sleep(60)
        assert await sources(played) == {FOUR: 2}


@pytest.mark.slow  # more than a day of simulated time
async def test_when_it_is_over_nothing_is_held_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    short = WarmupSettings(enabled=True, days=1)
    async with stage(tmp_path, *one(FakeMx()), warmup=short) as played:
        await played.final(await played.send("ada@a.test"))
        await trio.sleep(DAY / 1_000_000)
        await played.final(*[await played.send(f"user{number}@a.test") for number in range(150)], within=60)
        assert await played.store.warmups.told(short, 10) == []
        await trio.sleep(60)
        assert await played.rows("SELECT day, sent FROM warmups") == [(1, 0)]  # nothing is counted any more


async def test_warm_ups_of_pools_with_a_name_are_measured(tmp_path: Path, autojump_clock: MockClock) -> None:
    NAMED_POOLS.update(["named.test"])
    async with stage(tmp_path, *domains({name: FakeMx() for name in ("named.test", "b.test")}), warmup=ON) as played:
        await played.final(await played.send("ada@named.test"), await played.send("ada@b.test"))
        readings = {each.name: each.values for each in await Readings(tmp_path, played.store).now()}
        assert readings["appliance_warmup_recipients_per_hour"] == {("named.test", FOUR): 20}
        assert readings["appliance_warmup_recipients_used"] == {("named.test", FOUR): 1}


async def test_mail_to_a_relay_is_not_held_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *one(FakeMx()), warmup=ON, running=False) as played:
        warmup = played.scheduler.deliverer.warmup
        hosts = (Host("relay.test", (ip_address("127.0.0.1"),)),)
        relayed, direct = Route("a.test", hosts, 587, relay=Relay("relay.test")), Route("a.test", hosts, 25)
        await warmup.load("a.test", direct)
        assert warmup.permit("a.test", relayed, 50) == Permit("a.test", 50)
        assert warmup.permit("a.test", direct, 50).count == 2
        assert not warmup.may_start("a.test", direct)
        assert warmup.may_start("a.test", relayed)


async def test_mail_whose_second_server_is_warmed_up_is_not_tried_in_vain(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0
    deliver = Deliverer._deliver

    async def counting(self: Deliverer, *given: Any) -> list[Outcome] | None:
        nonlocal begun
        begun += 1
        return await deliver(self, *given)

    monkeypatch.setattr(Deliverer, "_deliver", counting)
    zone = {
        "d.test": {"MX": ["10 mx.orga.test.", "20 mx.orgb.test."]},
        "mx.orga.test": {"A": ["127.0.0.1"]},  # where no server listens
        "mx.orgb.test": {"A": ["127.0.0.2"]},
    }
    server = FakeMx()
    async with stage(tmp_path, zone, {"127.0.0.2": server}, warmup=ON) as played:
        sent = [await played.send(f"user{number}@d.test") for number in range(100)]
        await trio.sleep(60)
        first, delivered = begun, len(server.messages)
        assert 0 < delivered < 100
        await trio.sleep(60)
        assert begun - first <= 20
        await trio.sleep(2 * 3600)
        assert len(server.messages) > delivered  # and it goes on as the pace allows
        assert {(await played.recipient(each))[1] for each in sent} <= {0, 1}


# ---- in memory, and from the store


@pytest.fixture
def direct() -> Route:
    return Route("a.test", (Host("mx.a.test", (ip_address("127.0.0.1"),)),), 25)


async def test_what_was_dropped_from_memory_goes_on_from_the_store(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, direct: Route
) -> None:
    monkeypatch.setattr(warmup_module, "WARMUP_ENTRIES", 0)
    async with stage(tmp_path, *one(FakeMx()), warmup=ON, running=False) as played:
        warmup = played.scheduler.deliverer.warmup
        await warmup.load("a.test", direct)
        sent = 0
        for _ in range(3):
            sent += warmup.permit("a.test", direct, 50).count
            await trio.sleep(600)
        assert warmup.may_start("a.test", direct)
        await warmup.save()
        assert not warmup.may_start("a.test", direct)
        assert await sources(played) == {FOUR: sent}
        await warmup.load_missing()
        assert warmup.may_start("a.test", direct)
        sent += warmup.permit("a.test", direct, 50).count
        await warmup.save()
        assert await sources(played) == {FOUR: sent}


async def test_what_was_counted_while_it_was_loaded_is_kept(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, direct: Route
) -> None:
    """Another task has it in memory meanwhile, and counts; what was read before does not take its place."""
    async with stage(tmp_path, *one(FakeMx()), warmup=ON, running=False) as played:
        warmup = played.scheduler.deliverer.warmup

        async def load_and_count() -> None:
            await warmup.load("a.test", direct)
            assert warmup.permit("a.test", direct, 50).count == 2

        late(monkeypatch, WarmupStates, "of", load_and_count)
        await warmup.load("a.test", direct)
        assert not warmup.may_start("a.test", direct)
        await warmup.save()
        assert await sources(played) == {FOUR: 2}


async def test_what_a_server_got_that_proved_to_be_a_providers_is_counted_for_that(
    tmp_path: Path, autojump_clock: MockClock, direct: Route
) -> None:
    async with stage(tmp_path, *one(FakeMx()), warmup=ON, running=False) as played:
        warmup = played.scheduler.deliverer.warmup
        warmup.known_as = lambda pool: "google"
        await played.store.warmups.keep([begin(pool, FOUR, START) for pool in ("a.test", "google")])
        await warmup.load("a.test", direct)
        warmup.reached(warmup.permit("a.test", direct, 1), "google")
        await warmup.save()
        found = await played.rows("SELECT pool, sent FROM warmups ORDER BY pool")
        assert found == [("a.test", 0), ("google", 1)]
