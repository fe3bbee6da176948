"""Whose verdicts count for which pool, who may take its slots, and how a pool that is held comes back by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.config.settings import WarmupSettings
from appliance.deliver.pool_limiter import LONGEST_PAUSE, SENDER_FAULTS
from appliance.deliver.pool_limiters import FIRST_PROBE, LONGEST_PROBE, PROBE_AGAIN, UNANSWERED_SLOTS
from appliance.deliver.providers import ProviderPools
from appliance.deliver.upkeep import Intervals
from appliance.model.warmup import begin
from appliance.telemetry.metrics import OPEN_CONNECTIONS
from appliance.times import SECOND
from tests.deliver.simulated_delivery import SOURCES, Stage, stage
from tests.fakes.mx import FakeMx, say_and_hang_up, silence

GOOGLE, DEAD, EVIL = "127.0.0.10", "127.0.0.66", "127.0.0.13"
REFUSED = b"550 5.7.1 Your address is on our list\r\n"
MINUTE = 60 * SECOND

RARELY = Intervals(publish=30.0, close_idle=30.0, save_warmup=30.0)  # hours have many seconds


@pytest.fixture(autouse=True)
def seldom_checked_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days have many seconds."""
    monkeypatch.setattr("appliance.concurrency.wake.CLOCK_CHECK_INTERVAL", 60.0)


def zone() -> dict[str, dict[str, list[str]]]:
    """Google with two customers' domains, and an attacker's domain that names a Google host where no server listens."""
    return {
        "aspmx.l.google.com": {"A": [GOOGLE]},
        "gmail.test": {"MX": ["10 aspmx.l.google.com."]},
        "shop.test": {"MX": ["10 aspmx.l.google.com."]},
        "alt4.aspmx.l.google.com": {"A": [DEAD]},
        "evil.test": {"MX": ["10 alt4.aspmx.l.google.com.", "20 mx.evil.test."]},
        "mx.evil.test": {"A": [EVIL]},
    }


@asynccontextmanager
async def google(
    directory: Path, server: FakeMx, *others: tuple[str, FakeMx], intervals: Intervals = RARELY
) -> AsyncIterator[Stage]:
    async with stage(directory, zone(), {GOOGLE: server, **dict(others)}, intervals=intervals) as played:
        await played.final(await played.send("first@gmail.test"), within=60)
        await trio.sleep(1)
        assert await pool_of(played, await delivered(played, "second@gmail.test")) == "google"
        yield played


async def delivered(played: Stage, address: str, account: str = "demo", within: float = 60) -> str:
    sent = await played.send(address, account=account)
    await played.final(sent, within=within)
    return sent


async def pool_of(played: Stage, message: str) -> str:
    query = """SELECT a.pool FROM attempts a JOIN recipients r ON r.id = a.recipient_id
        WHERE r.message_id = :id ORDER BY number DESC LIMIT 1"""
    return str((await played.rows(query, id=message))[0][0])


async def hold(played: Stage) -> tuple[int, int]:
    found = (await played.store.pools.holds())["google"]
    assert found.probe_at is not None
    return found.probe_at - found.held_at, found.probes


async def held(played: Stage) -> None:
    for number in range(SENDER_FAULTS):
        await delivered(played, f"user{number}@gmail.test", "demo" if number % 2 else "other")
    await played.until(played.store.pools.holds, lambda holds: "google" in holds, within=5)


@asynccontextmanager
async def refusing(directory: Path, intervals: Intervals = RARELY) -> AsyncIterator[tuple[Stage, dict[str, bytes]]]:
    """Google is held: it has refused both accounts, by a script that a test may change."""
    script: dict[str, bytes] = {}
    async with google(directory, FakeMx(answers=script), intervals=intervals) as played:
        script["RCPT"] = REFUSED
        await held(played)
        yield played, script


# ---- whose verdicts


@pytest.mark.parametrize("answer", [b"421 4.7.0 slow down\r\n", REFUSED], ids=["421", "550"])
@pytest.mark.parametrize("command", ["greeting", "MAIL", "."])
async def test_a_strangers_server_says_nothing_of_a_provider(
    tmp_path: Path, autojump_clock: MockClock, answer: bytes, command: str
) -> None:
    evil = FakeMx(answers={command: answer})
    async with google(tmp_path, FakeMx(), (EVIL, evil)) as played:
        for number in range(2 * SENDER_FAULTS):
            await played.send(f"user{number}@evil.test", account="other")
        await trio.sleep(5)
        assert evil.sessions > 0
        for number in range(40):
            await played.send(f"user{number}@gmail.test")
        await trio.sleep(2)
        assert len(played.servers[GOOGLE].messages) == 42
        assert "google" not in await played.store.pools.holds()
        told = await played.rows("SELECT DISTINCT pool FROM attempts WHERE mx_host = 'mx.evil.test'")
        assert told in ([("evil.test",)], [])


async def test_a_provider_under_a_strangers_name_is_the_provider(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with google(tmp_path, FakeMx()) as played:
        played.resolver.zone |= {"vanity.test": {"MX": ["10 mx.vanity.test."]}, "mx.vanity.test": {"A": [GOOGLE]}}
        assert await pool_of(played, await delivered(played, "ada@vanity.test")) == "google"


async def test_one_account_does_not_slow_a_provider(tmp_path: Path, autojump_clock: MockClock) -> None:
    script: dict[str, bytes] = {}
    async with google(tmp_path, FakeMx(answers=script)) as played:
        script["."] = b"421 4.7.26 unauthenticated\r\n"
        await played.send("ada@shop.test", account="other")
        await trio.sleep(1)
        script.clear()
        waiting = await played.send("ada@gmail.test", account="other")
        await delivered(played, "bob@gmail.test", within=3)
        assert await played.recipient(waiting) == ("queued", 0)
        await trio.sleep(20)
        assert await played.recipient(waiting) == ("delivered", 1)


async def test_a_greeting_slows_the_pool(tmp_path: Path, autojump_clock: MockClock) -> None:
    script: dict[str, bytes] = {}
    async with google(tmp_path, FakeMx(answers=script)) as played:
        await trio.sleep(60)  # for the connection to be closed
        script["greeting"] = b"421 4.7.0 too many connections\r\n"
        await played.send("ada@shop.test", account="other")
        await trio.sleep(1)
        script.clear()
        waiting = await played.send("ada@gmail.test")
        await trio.sleep(5)
        assert await played.recipient(waiting) == ("queued", 0)


async def test_refusals_of_one_account_hold_no_provider(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Dozens of 5.7.1 by Google itself to one account of two hold nothing: the other's mail goes on."""
    script: dict[str, bytes] = {}
    async with google(tmp_path, FakeMx(answers=script)) as played:
        script["RCPT"] = REFUSED
        for number in range(6 * SENDER_FAULTS):
            await played.send(f"user{number}@shop.test", account="other")
        await trio.sleep(60)
        script.clear()
        assert await played.store.pools.holds() == {}
        await delivered(played, "ada@gmail.test", within=3)
        ((count,),) = await played.rows("SELECT count(*) FROM recipients WHERE status = 'queued'")
        assert count > 0  # the account that is refused waits between two messages
        await trio.sleep(count * LONGEST_PAUSE / SECOND + 60)
        assert await played.rows("SELECT count(*) FROM recipients WHERE status = 'queued'") == [(0,)]


async def test_refusals_of_several_accounts_hold_a_provider(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with refusing(tmp_path) as (played, _):
        waiting = [await played.send("ada@gmail.test"), await played.send("ada@shop.test")]
        await trio.sleep(60)
        assert [await played.recipient(message) for message in waiting] == [("queued", 0)] * 2


# ---- whose slots


async def test_dead_hosts_with_a_providers_name_take_none_of_its_slots(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Hundreds of messages to hosts named like Google's that never greet leave Google's slots to Google's mail."""
    hosts = {f"alt{number}.aspmx.l.google.com": f"127.0.1.{number}" for number in range(1, 41)}
    async with google(
        tmp_path, FakeMx(), *((each, FakeMx(answers={"greeting": silence})) for each in hosts.values())
    ) as played:
        for number, (host, address) in enumerate(hosts.items()):
            played.resolver.zone |= {host: {"A": [address]}, f"evil{number}.test": {"MX": [f"10 {host}."]}}
            for user in range(10):
                await played.send(f"user{user}@evil{number}.test", account="other")
        await trio.sleep(5)
        began = trio.current_time()
        sent = [await played.send(f"user{number}@gmail.test", account="demo") for number in range(40)]
        await played.final(*sent, within=5)
        assert trio.current_time() - began < 5
        assert OPEN_CONNECTIONS["deliver"]() >= len(hosts)  # they all still wait for a greeting


async def test_a_second_server_is_not_flooded_by_way_of_the_first(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Mail that goes on to Google because its own server is dead finds no more slots there than Google has."""
    server = FakeMx(answers={"RCPT": silence})
    async with stage(tmp_path, zone(), {GOOGLE: server}, intervals=RARELY) as played:
        limit = ProviderPools().of("aspmx.l.google.com").limits.concurrency
        for number in range(8):
            name = f"dead{number}.test"
            played.resolver.zone |= {
                name: {"MX": [f"10 mx.{name}.", "20 aspmx.l.google.com."]},
                f"mx.{name}": {"A": [f"127.0.2.{number + 1}"]},
            }
            for user in range(10):
                await played.send(f"user{user}@{name}")
        await trio.sleep(60)
        assert 0 < server.sessions <= limit + UNANSWERED_SLOTS  # before it had answered
        ((deferred,),) = await played.rows("SELECT count(*) FROM recipients WHERE status = 'deferred'")
        assert deferred >= 80 - limit - UNANSWERED_SLOTS  # their own server was dead: they are tried again


async def test_a_second_server_of_a_held_pool_gets_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    script: dict[str, bytes] = {}
    async with google(tmp_path, FakeMx(answers=script)) as played:
        mx = {"dead.test": {"MX": ["10 mx.dead.test.", "20 aspmx.l.google.com."]}, "mx.dead.test": {"A": [DEAD]}}
        played.resolver.zone |= mx
        await played.store.pools.hold("google", "I look into it")
        await trio.sleep(2)
        count = len(played.servers[GOOGLE].messages)
        sent = await played.send("ada@dead.test")
        await trio.sleep(5)
        assert await played.recipient(sent) == ("deferred", 1)
        await played.store.pools.release("google")
        await played.final(sent, within=600)
        assert len(played.servers[GOOGLE].messages) == count + 1


# ---- probes


def told_of_pools(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, int | None]]:
    """What the log says of pools since the last time: level, event, and how long it was."""
    found = [record for record in caplog.records if record.message.startswith("pool ")]
    told = [(record.levelname, record.message, getattr(record, "fields", {}).get("seconds")) for record in found]
    caplog.clear()
    return told


async def test_a_held_pool_comes_back_by_itself(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "appliance")
    async with refusing(tmp_path) as (played, script):
        began = trio.current_time()
        sent = [await played.send(f"later{number}@gmail.test") for number in range(20)]
        sessions = len([each for each in played.servers[GOOGLE].commands if each.startswith("RCPT")])
        await trio.sleep(FIRST_PROBE / SECOND - 60)
        assert [await played.recipient(message) for message in sent] == [("queued", 0)] * 20
        await trio.sleep(120)
        tried = [each for each in played.servers[GOOGLE].commands if each.startswith("RCPT")]
        assert len(tried) == sessions + 1
        assert [(await played.recipient(message))[0] for message in sent].count("deferred") == 1
        at, count = await hold(played)
        assert at == pytest.approx(3 * FIRST_PROBE, abs=5 * SECOND)
        assert count == 1
        script.clear()
        await played.final(*sent, within=2 * FIRST_PROBE / SECOND)
        assert await played.store.pools.holds() == {}
        assert 3 * FIRST_PROBE / SECOND <= trio.current_time() - began <= 3 * FIRST_PROBE / SECOND + 120
        begun, ended = told_of_pools(caplog)
        assert begun == ("ERROR", "pool held: its servers refuse mail from this server", None)
        assert ended[:2] == ("INFO", "pool open again: probe delivered")
        assert ended[2] == pytest.approx(3 * FIRST_PROBE / SECOND, abs=130)


async def test_the_log_tells_of_an_operators_hold_twice(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "appliance")
    async with google(tmp_path, FakeMx()) as played:
        await played.store.pools.hold("google", "I look into it")
        await trio.sleep(600)
        assert told_of_pools(caplog) == [("WARNING", "pool held by the operator", None)]
        await trio.sleep(600)
        assert told_of_pools(caplog) == []
    async with stage(tmp_path, zone(), {GOOGLE: FakeMx()}, intervals=RARELY) as played:
        await trio.sleep(600)
        assert told_of_pools(caplog) == []
        await played.store.pools.release("google")
        await trio.sleep(600)
        ((level, event, seconds),) = told_of_pools(caplog)
        assert (level, event) == ("INFO", "pool open again: resumed by the operator")
        assert seconds is not None
        assert seconds >= 1200


async def test_probes_grow_rarer(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each waits twice as long as the one before, and none longer than the longest."""
    async with refusing(tmp_path, intervals=replace(RARELY, poll_all=60.0)) as (played, _):
        for number in range(20):
            await played.send(f"later{number}@gmail.test")
        times = [0]
        for number in range(1, 6):
            await played.until(lambda: hold(played), lambda found: found[1] == number, 2 * LONGEST_PROBE / SECOND)  # noqa: B023
            times.append((await hold(played))[0])
        waits = [(after - before) / MINUTE for before, after in pairwise(times[1:])]
        assert waits == pytest.approx([60, 120, 240, 240], rel=0.1)


async def test_a_probe_that_reaches_no_server_is_tried_with_another_account(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A dead host with the provider's name uses up no probe: a minute later another account's mail goes."""
    async with refusing(tmp_path) as (played, script):
        script.clear()
        for number in range(30):
            await played.send(f"user{number}@evil.test", account="other")
        await trio.sleep(1)
        good = await played.send("ada@gmail.test")
        await played.final(good, within=(FIRST_PROBE + 3 * PROBE_AGAIN) / SECOND)
        assert await played.store.pools.holds() == {}


async def test_an_operators_hold_is_never_probed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with refusing(tmp_path) as (played, script):
        script.clear()
        await played.store.pools.hold("google", "I look into it")
        sent = await played.send("ada@gmail.test")
        played.scheduler.intervals = replace(RARELY, poll_all=60.0, close_idle=600.0)
        await trio.sleep(2 * LONGEST_PROBE / SECOND)
        assert await played.recipient(sent) == ("queued", 0)
        played.scheduler.intervals = RARELY
        await trio.sleep(60)  # until it polls as often again
        assert await played.store.pools.release("google")
        await played.final(sent, within=5)


async def test_probes_go_on_after_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with refusing(tmp_path) as (played, _):
        sent = [await played.send(f"later{number}@gmail.test") for number in range(3)]
        await played.until(lambda: hold(played), lambda found: found[1] == 1, within=2 * FIRST_PROBE / SECOND)
        before = await hold(played)
    async with stage(tmp_path, zone(), {GOOGLE: FakeMx()}, intervals=RARELY) as played:
        await trio.sleep(60)
        assert await hold(played) == before
        await played.final(*sent, within=5 * FIRST_PROBE / SECOND)
        assert await played.store.pools.holds() == {}


# ---- warm-up


async def test_a_warm_up_counts_a_provider_that_has_answered(tmp_path: Path, autojump_clock: MockClock) -> None:
    settings = WarmupSettings(enabled=True)
    source = str(SOURCES[4])
    at_once = replace(RARELY, save_warmup=1.0)
    async with stage(tmp_path, zone(), {GOOGLE: FakeMx()}, warmup=settings, running=False, intervals=at_once) as played:
        begun = replace(begin("google", source, played.env.now()), day=5)
        await played.store.warmups.keep([begun])
        played.nursery.start_soon(played.scheduler.run)
        await played.final(await played.send("first@gmail.test"), within=60)
        await trio.sleep(1)
        await played.final(*[await played.send(f"user{number}@gmail.test") for number in range(5)], within=600)
        await trio.sleep(5)
        days = {pool: day for pool, day, _ in await played.rows("SELECT pool, day, sent FROM warmups")}
        sent = {pool: sent for pool, _, sent in await played.rows("SELECT pool, day, sent FROM warmups")}
        assert days == {"google": 5, "aspmx.l.google.com": 5}
        assert sum(sent.values()) == 6
        assert sent["google"] >= 5


async def test_dead_hosts_take_nothing_of_a_providers_warm_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    names = {GOOGLE: FakeMx(), DEAD: FakeMx(answers={"greeting": silence})}
    async with stage(
        tmp_path, zone(), names, warmup=WarmupSettings(enabled=True, first_hour=40), intervals=RARELY
    ) as played:
        await played.final(await played.send("first@gmail.test"), within=60)
        for number in range(50):
            await played.send(*(f"user{number}{letter}@evil.test" for letter in "abcdefgh"), account="other")
        await trio.sleep(200)
        sent = [await played.send(f"user{number}@gmail.test") for number in range(4)]
        await played.final(*sent, within=5)


async def test_the_first_servers_refusals_hold_its_pool_though_the_second_takes_the_mail(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The pool whose server refuses us is held and probed, not closed because another server answered last."""
    refusing = FakeMx(answers={"greeting": say_and_hang_up(b"554 5.7.1 your address is blocked\r\n")})
    zone = {
        "both.test": {"MX": ["10 mx.orga.test.", "20 mx.orgb.test."]},
        "one.test": {"MX": ["10 mx.orga.test."]},
        "mx.orga.test": {"A": ["127.0.0.1"]},
        "mx.orgb.test": {"A": ["127.0.0.2"]},
    }
    async with stage(tmp_path, zone, {"127.0.0.1": refusing, "127.0.0.2": FakeMx()}, intervals=RARELY) as played:
        for number in range(SENDER_FAULTS):
            await played.final(await played.send(f"user{number}@both.test"), within=1_000)
        await trio.sleep(1)
        assert "orga.test" in await played.store.pools.holds()
        refusing.answers = {}
        waiting = [await played.send("ada@one.test"), await played.send("ada@both.test")]
        await played.final(*waiting, within=2 * FIRST_PROBE / SECOND)
        assert {await played.recipient(each) for each in waiting} == {("delivered", 1)}
        assert await played.store.pools.holds() == {}


async def test_a_destination_in_use_is_published_every_day(tmp_path: Path, autojump_clock: MockClock) -> None:
    published = "SELECT updated_at FROM destinations WHERE domain = 'gmail.test'"
    async with google(tmp_path, FakeMx()) as played:
        times: list[int] = []
        for _ in range(2):
            await delivered(played, "again@gmail.test")
            await trio.sleep(60)
            times += (await played.rows(published))[0]
            await trio.sleep(25 * 3600)
        assert times[0] < times[1]
