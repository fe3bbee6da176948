"""Under the ramp each recipient has one route: to the MX or by the relay, chosen by its address and kept for good."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from appliance.deliver.ramp import ADJUST_EVERY, FOLLOW_EVERY
from appliance.errors import Code, Refused
from appliance.model.database import Feature
from appliance.model.ramp import Via, bucket_of
from appliance.times import DAY, HOUR
from tests.deliver.simulated_delivery import OK, Stage, domain_zone, stage
from tests.fakes.mx import FakeMx, hang_up

RELAY = "127.9.9.9"
SETTINGS = f'[delivery]\nmode = "relay"\nrelay_host = "{RELAY}"\nrelay_tls = "off"\n'
OWN_RELAY = '[delivery.relays."b.test"]\nhost = "127.9.9.8"\ntls = "off"\n'
NAMES = [f"user{number}@a.test" for number in range(40)]


def ramp(percent: int) -> str:
    return f"{SETTINGS}[delivery.ramp]\npercent = {percent}\n"


def servers(**answers: object) -> tuple[dict[str, dict[str, list[str]]], dict[str, FakeMx], FakeMx, FakeMx]:
    """A zone, its servers, and of these the domain's own and the relay."""
    zone, addresses = domain_zone("a.test", "b.test")
    own, relay = FakeMx(answers=dict(answers)), FakeMx()  # type: ignore[arg-type]
    by_address = {addresses["a.test"]: own, addresses["b.test"]: FakeMx(), RELAY: relay, "127.9.9.8": FakeMx()}
    return zone, by_address, own, relay


def received(server: FakeMx) -> set[str]:
    return {line.partition("<")[2].partition(">")[0] for line in server.commands if line.startswith("RCPT")}


def below(percent: int, names: Sequence[str] = NAMES) -> set[str]:
    return {name for name in names if bucket_of(name) < percent}


async def routes(play: Stage) -> set[tuple[str | None, str | None]]:
    rows = await play.rows("SELECT r.route, a.route FROM recipients r LEFT JOIN attempts a ON a.recipient_id = r.id")
    return {(row[0], row[1]) for row in rows}


def test_a_bucket_is_stable_and_ignores_case() -> None:
    assert [bucket_of(name) for name in ("ada@example.net", "ADA@Example.NET")] == [52, 52]
    counts = [bucket_of(f"user{number}@example.net") for number in range(10_000)]
    assert all(80 <= counts.count(bucket) <= 125 for bucket in (0, 50, 99))


@pytest.mark.parametrize("percent", [0, 30, 100])
async def test_the_share_goes_direct_and_the_others_by_the_relay(
    tmp_path: Path, autojump_clock: MockClock, percent: int
) -> None:
    zone, by_address, own, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(percent)) as play:
        await play.final(await play.offer(*NAMES), await play.send("ada@b.test"))
        assert received(own) == below(percent)
        assert received(relay) - {"ada@b.test"} == set(NAMES) - below(percent)
        assert {(via, via) for via in ("direct", "relay")} >= await routes(play)


async def test_without_a_ramp_all_mail_goes_by_the_relay_and_nothing_is_bound(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    zone, by_address, own, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=SETTINGS) as play:
        await play.final(await play.offer(*NAMES))
        assert (received(own), received(relay)) == (set(), set(NAMES))
        assert await play.rows("SELECT DISTINCT bucket, route FROM recipients") == [(None, None)]
        assert await play.rows("SELECT DISTINCT route FROM attempts") == [("relay",)]
        assert await play.rows("SELECT * FROM ramp_hours") == []


async def test_a_domain_with_its_own_relay_never_goes_direct(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, by_address, _, _ = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(100) + OWN_RELAY) as play:
        await play.final(await play.offer("ada@b.test"))
        assert received(by_address["127.9.9.8"]) == {"ada@b.test"}
        assert await routes(play) == {("relay", "relay")}


async def test_a_recipient_keeps_its_route_when_the_percentage_changes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Both when an attempt was refused, and when the server may have the message."""
    zone, by_address, own, relay = servers(**{".": [hang_up, b"451 4.3.0 later\r\n", OK]})
    async with stage(tmp_path, zone, by_address, settings=ramp(100)) as play:
        sent = [await play.offer("ada@a.test"), await play.offer("bob@a.test")]
        await trio.sleep(30)
        assert await play.rows("SELECT DISTINCT route, attempt_count FROM recipients") == [("direct", 1)]
        await change(play, 0)
        sent.append(await play.offer("cay@a.test"))
        await play.final(*sent)
        assert received(own) == {"ada@a.test", "bob@a.test"}
        assert received(relay) == {"cay@a.test"}


async def test_a_restart_between_the_binding_and_the_result_keeps_the_route(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    zone, by_address, own, relay = servers(**{".": [silent_for_a_day, OK]})
    async with stage(tmp_path, zone, by_address, settings=ramp(100)) as play:
        sent = await play.offer("ada@a.test")
        await trio.sleep(5)  # killed while the server has the message
        assert await play.rows("SELECT route, attempt_count FROM recipients") == [("direct", 0)]
    async with stage(tmp_path, zone, by_address, settings=ramp(0)) as play:
        await play.final(sent)
        assert received(own) == {"ada@a.test"}
        assert received(relay) == set()


async def test_mail_from_before_the_ramp_stays_with_the_relay(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A relay may have it: an attempt that a kill interrupted left no record."""
    zone, by_address, own, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=SETTINGS, running=False) as play:
        sent = await play.send("ada@a.test")
    async with stage(tmp_path, zone, by_address, settings=ramp(100)) as play:
        await play.final(sent, await play.offer("bob@a.test"))
        assert (received(own), received(relay)) == ({"bob@a.test"}, {"ada@a.test"})


async def test_mail_that_a_relay_may_have_is_not_sent_direct_after_the_ramp(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    zone, by_address, own, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(0), running=False) as play:
        sent = [await play.send("ada@a.test"), await play.send("bob@a.test")]
        await play.change("UPDATE recipients SET route = 'relay' WHERE message_id = :id", id=sent[0])
    async with stage(tmp_path, zone, by_address, settings=SETTINGS.replace('"relay"', '"direct"')) as play:
        await play.final(*sent)
        assert (received(own), received(relay)) == ({"bob@a.test"}, {"ada@a.test"})


async def test_mail_that_waits_follows_a_new_percentage(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Mail that is ready, too: after a roll-back nothing new goes direct."""
    zone, by_address, own, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(100)) as play:
        await play.store.pools.hold("a.test", "by hand")
        await play.scheduler.deliverer.limiters.read_holds()
        sent = [await play.offer(name) for name in NAMES[:10]]
        await trio.sleep(5)
        assert not received(own)
        await change(play, 0)
        await play.final(*sent)
        assert (received(own), received(relay)) == (set(), set(NAMES[:10]))


async def test_mail_that_waits_for_the_mx_does_not_delay_the_relay(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Even if all of it is older and there is more than one poll reads."""
    zone, by_address, own, relay = servers()
    old = [name for name in (f"old{number}@a.test" for number in range(2_000)) if bucket_of(name) < 50][:700]
    new = [name for name in NAMES if bucket_of(name) >= 50]
    async with stage(tmp_path, zone, by_address, settings=ramp(50), running=False) as play:
        for name in (*old, *new):
            await play.store.messages.accept(play.message(name))
        await play.store.pools.hold("a.test", "by hand")
        play.nursery.start_soon(play.scheduler.run)
        query = "SELECT 1 FROM recipients WHERE status = 'delivered'"
        await play.until(partial(play.rows, query), lambda rows: len(rows) >= len(new), within=600)
        assert (received(own), received(relay)) == (set(), set(new))


async def test_a_provider_may_have_its_own_percentage(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, by_address, own, relay = servers()
    zone["a.test"] = {"MX": ["10 aspmx.l.google.com."]}
    zone["aspmx.l.google.com"] = {"A": ["127.0.0.1"]}
    async with stage(tmp_path, zone, by_address, settings=ramp(0)) as play:
        await play.store.ramp.change(lambda plan: plan.having("google", 100, play.env.now()))
        await trio.sleep(2 * FOLLOW_EVERY)
        await play.final(await play.offer(*NAMES), await play.offer("ada@b.test"))
        assert (received(own), received(relay)) == (set(NAMES), {"ada@b.test"})
        rows = await play.rows("SELECT provider, route, delivered, within_minute FROM ramp_hours ORDER BY provider")
        assert rows == [("google", "direct", 40, 40), ("other", "relay", 1, 1)]


async def test_a_slow_name_server_does_not_hold_up_the_relay(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, by_address, _, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(0)) as play:

        async def never(name: str) -> object:
            return await trio.sleep_forever()

        object.__setattr__(play.scheduler.deliverer.ramp.resolver, "mx", never)
        await play.final(await play.offer("ada@a.test"), within=10)
        assert received(relay) == {"ada@a.test"}


async def test_two_bindings_of_one_recipient_do_not_both_succeed(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, by_address, _, _ = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(50), running=False) as play:
        await play.send("ada@a.test")
        due = await play.store.queue.due(simulated=False, most=10)
        bind = play.store.ramp.bind
        assert [await bind(due, Via.DIRECT), await bind(due, Via.RELAY), await bind(due, Via.DIRECT)] == [
            True,
            False,
            True,
        ]


async def change(play: Stage, percent: int) -> None:
    await play.store.ramp.change(lambda plan: replace(plan.having("", percent, play.env.now())))
    await trio.sleep(2 * FOLLOW_EVERY)
    assert play.store.ramping.plan is not None
    assert play.store.ramping.plan.percent == percent


async def silent_for_a_day(stream: trio.abc.Stream) -> bytes:
    await trio.sleep(86_400)
    return OK


async def test_auto_steps_back_when_the_direct_route_does_worse(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Once: the results that lowered the percentage do not lower it again. A day later good results raise it."""
    zone, by_address, _, _ = servers()
    insert = """INSERT INTO ramp_hours (hour, provider, route, delivered, bounced)
        VALUES (:hour, 'other', :route, 90, :bounced)"""
    async with stage(tmp_path, zone, by_address, settings=ramp(20)) as play:
        hour = play.env.now() // HOUR - 1
        for route, bounced in (("direct", 10), ("relay", 1)):
            await play.change(insert, hour=hour, route=route, bounced=bounced)
        await play.store.ramp.change(lambda plan: replace(plan, auto=True))
        await trio.sleep(2 * ADJUST_EVERY + 2)
        plan = play.store.ramping.plan
        assert plan is not None
        assert plan.percent == 10
        assert plan.reason.startswith("all others: 20 % to 10 %, because 10.0% bounced or failed")
        await play.change("UPDATE ramp_hours SET bounced = 0")
        await play.store.ramp.change(lambda plan: replace(plan, changed_at={"": play.env.now() - DAY}))
        await trio.sleep(2 * ADJUST_EVERY + 2)
        plan = play.store.ramping.plan
        assert plan is not None
        assert plan.percent == 20


async def test_auto_does_not_undo_a_command(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A percentage that was set while `auto` decided stays."""
    zone, by_address, _, _ = servers()
    async with stage(tmp_path, zone, by_address, settings=ramp(0), running=False) as play:
        plan = await play.store.ramp.change(lambda plan: replace(plan, percent=0, auto=True))
        assert plan is not None
        await play.store.ramp.change(lambda plan: replace(plan.having("", 50, 1), auto=False))
        await play.scheduler.deliverer.ramp.adjust(plan)
        stored = await play.store.ramp.stored()
        assert stored is not None
        assert stored.percent == 50


async def test_no_ramp_starts_beside_a_node_that_does_not_know_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """That node would ignore the stored routes. The ramp starts once it has ended."""
    zone, by_address, own, relay = servers()
    async with stage(tmp_path, zone, by_address, settings=SETTINGS) as play:
        is_alone = False

        async def fence(feature: Feature) -> None:
            await trio.lowlevel.checkpoint()
            if not is_alone:
                raise Refused(Code.TEMPORARY_FAILURE, f"This cluster takes no {feature} yet", retry_after=60)

        play.store.engine.fence_older_nodes = fence  # type: ignore[method-assign]
        await play.store.ramp.change(lambda plan: plan.having("", 100, 1))
        await trio.sleep(5)
        await play.final(await play.offer("ada@a.test"))
        is_alone = True
        await trio.sleep(2 * FOLLOW_EVERY)
        await play.final(await play.offer("bob@a.test"))
        assert (received(own), received(relay)) == ({"bob@a.test"}, {"ada@a.test"})
