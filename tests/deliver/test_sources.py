"""Which address mail leaves from: the choice among sources, a source that is out, and mail that waits for one."""

from collections import Counter
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import force_setattr, replace
from msgspec.structs import replace as dataclass_replace
from trio.testing import MockClock

from appliance.config.settings import WarmupSettings
from appliance.deliver.attempt import Deliverer
from appliance.deliver.pool_limiters import FIRST_PROBE, UNROUTED, PoolLimiters, ProviderServers
from appliance.deliver.preparing import Envelope, Flow
from appliance.deliver.providers import ProviderPools
from appliance.deliver.sources import SOURCE_WAIT, SOURCE_WAIT_EACH, Sources
from appliance.environment import CannotBind, Environment
from appliance.model.mail import DueRecipient
from appliance.model.sources import OutgoingSource, PoolDay, SourceTable, limits_name, pool_and_source
from appliance.net.address_policy import Address
from appliance.net.local_addresses import bind_trouble
from appliance.report.explain import standing
from appliance.store import Store
from appliance.times import SECOND
from tests.deliver.simulated_delivery import Stage, domains, message, one, stage
from tests.fakes.mx import Answer, FakeMx, say_and_hang_up

MX = "127.0.0.1"
GREYLISTED: list[Answer] = [*[b"450 4.2.0 Greylisted\r\n"] * 3, b"250 OK\r\n"]
BLOCKED: Any = {"greeting": say_and_hang_up(b"554 5.7.1 Your address is on our block list\r\n")}


def source(name: str, *addresses: str) -> OutgoingSource:
    return OutgoingSource(name, tuple(map(ip_address, addresses)), f"{name}.example.com")


A, B, C = source("a", "192.0.2.1"), source("b", "192.0.2.2"), source("c", "2001:db8::3", "192.0.2.3")
TABLE = SourceTable({"a": A, "b": B, "c": C}, {"transactional": ("a", "b"), "broadcast": ("c",)})


class Machine:
    """The addresses that a test takes away and gives back."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def trouble(self, address: Address) -> str | None:
        return "is not on this machine" if str(address) in self.gone else None


class FakeStore:
    class engine:
        node = ""


def sources(table: SourceTable = TABLE, machine: Machine | None = None) -> Sources:
    env, store = Environment(), cast(Store, FakeStore())
    limiters = PoolLimiters(store, env, ProviderServers(ProviderPools()))
    made = Sources(store, env, limiters, table, trouble=(machine or Machine()).trouble)
    made.look()
    return made


def envelope(message_id: str, domain: str = "a.test", stream: str = "transactional") -> Envelope:
    sender = "shop@example.com"
    fields = "r", message_id, "acc", f"ada@{domain}", domain, 0, None, None, sender, "s", 1, 1, sender
    return Envelope(message_id, "acc", domain, (DueRecipient(*fields, stream=stream),))


async def send(play: Stage, count: int, stream: str = "transactional", start: int = 0) -> list[str]:
    sent = []
    for number in range(start, start + count):
        new = replace(message(play.env, play.accounts["demo"], f"user{number}@a.test"), stream=stream)
        await play.store.messages.accept(new)
        sent.append(new.id)
    play.scheduler.new_mail.request_poll()
    return sent


async def used(play: Stage, *messages: str) -> Counter[str | None]:
    found = await play.rows("SELECT r.message_id, a.source FROM attempts a JOIN recipients r ON r.id = a.recipient_id")
    return Counter(name for message_id, name in found if not messages or message_id in messages)


# ---- the choice


def test_sources_share_messages_evenly_and_a_message_keeps_its_source_for_a_domain() -> None:
    chosen = sources()
    first = Counter(chosen.in_order(envelope(f"msg_{number}"))[0] for number in range(2_000))
    assert 900 < first["a"] < 1_100
    assert first["a"] + first["b"] == 2_000
    by_domain = Counter(chosen.in_order(envelope("msg_1", f"d{number}.test"))[0] for number in range(2_000))
    assert 900 < by_domain["a"] < 1_100
    assert chosen.in_order(envelope("msg_7")) == sources().in_order(envelope("msg_7"))  # also after a restart


def test_a_source_that_goes_away_moves_no_other_mail() -> None:
    three = SourceTable(TABLE.by_name, {"transactional": ("a", "b", "c")})
    two = SourceTable(TABLE.by_name, {"transactional": ("a", "b")})
    for number in range(200):
        kept = [name for name in sources(three).in_order(envelope(f"msg_{number}")) if name != "c"]
        assert kept == sources(two).in_order(envelope(f"msg_{number}"))


def test_a_stream_without_sources_has_the_address_that_the_system_chooses() -> None:
    assert sources().in_order(envelope("msg_1", stream="digest")) == []
    assert sources().limits(envelope("msg_1", stream="digest"), "google") == ["google"]
    assert sources(SourceTable()).limits_of_lane(Flow("acc"), "a.test", None, "google") == ["google"]


def test_an_account_has_its_own_sources_instead_of_the_streams() -> None:
    chosen = sources()
    chosen._own = {"acc": {"transactional": ("c",)}}
    assert chosen.in_order(envelope("msg_1")) == ["c"]
    assert chosen.limits(envelope("msg_1"), "google") == ["google@c"]
    chosen._own = {"acc": {"transactional": ("removed",)}}
    assert chosen.limits(envelope("msg_1"), UNROUTED) == []  # it waits, and does not use the stream's


def test_a_source_that_is_out_is_no_choice() -> None:
    machine = Machine()
    chosen = sources(machine=machine)
    machine.gone = {"192.0.2.1"}
    chosen.look()
    assert chosen.limits(envelope("msg_1"), "google") == ["google@b"]
    machine.gone = {"192.0.2.1", "192.0.2.2"}
    chosen.look()
    assert chosen.limits(envelope("msg_1"), "google") == chosen.limits(envelope("msg_1"), UNROUTED) == []
    machine.gone.clear()
    chosen.look()
    assert sorted(chosen.limits(envelope("msg_1"), "google")) == ["google@a", "google@b"]


def test_a_source_keeps_the_addresses_that_can_be_bound() -> None:
    machine = Machine()
    machine.gone = {"2001:db8::3"}
    chosen = sources(machine=machine)
    assert chosen._here["c"].addresses == (ip_address("192.0.2.3"),)
    assert chosen._states["c"].is_here
    assert chosen._states["c"].detail == "2001:db8::3 is not on this machine"


def test_a_source_of_another_node_is_no_choice() -> None:
    elsewhere = OutgoingSource("a", A.addresses, "a.example.com", "node2")
    chosen = sources(SourceTable({"a": elsewhere}, {"transactional": ("a",)}))
    assert chosen.limits(envelope("msg_1"), UNROUTED) == []


def test_postpone_mail_returns_at_a_steady_rate() -> None:
    chosen = sources()
    now = chosen.env.now()
    force_setattr(chosen.env, "now", lambda: now)
    times = [chosen.postponed_until() for _ in range(1_000)]
    assert times[0] == now + SOURCE_WAIT
    assert times[-1] == now + SOURCE_WAIT + 999 * SOURCE_WAIT_EACH
    force_setattr(chosen.env, "now", lambda: now - 3 * 86_400 * SECOND)  # the clock was set back
    assert chosen.postponed_until() == now - 3 * 86_400 * SECOND + SOURCE_WAIT


def test_a_name_of_limits_has_the_pool_and_the_source() -> None:
    assert limits_name("google", "") == "google"
    assert pool_and_source(limits_name("mx.example.com", "news")) == ("mx.example.com", "news")
    assert pool_and_source("google") == ("google", "")


def test_a_bind_shows_whether_an_address_is_here() -> None:
    assert bind_trouble(ip_address("127.0.0.7")) is None
    assert bind_trouble(ip_address("192.0.2.1")) == "is not on this machine"


async def test_a_session_from_an_address_that_is_not_here_is_an_error_of_its_own() -> None:
    with pytest.raises(CannotBind):
        await Environment().dial_from("127.0.0.1", 1, "192.0.2.1")
    with pytest.raises(OSError, match="refused") as refused:
        await Environment().dial_from("127.0.0.1", 1, "127.0.0.9")
    assert not isinstance(refused.value, CannotBind)


# ---- through delivery


async def test_each_stream_leaves_from_its_own_sources(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), sources=TABLE) as play:
        mail, news = await send(play, 40), await send(play, 5, "broadcast")
        other = await send(play, 5, "digest")
        await play.final(*mail, *news, *other)
        assert await used(play, *news) == {"c": 5}
        assert await used(play, *other) == {None: 5}
        by_source = await used(play, *mail)
        assert min(by_source["a"], by_source["b"]) > 5
        assert set(play.left_from) == {"192.0.2.1", "192.0.2.2", "192.0.2.3", ""}
        names = {command for command in server.commands if command.startswith("EHLO")}
        assert names == {f"EHLO {name}.example.com" for name in ("a", "b", "c", "mail")}
        assert await play.rows("SELECT DISTINCT pool FROM attempts") == [("a.test",)]


async def test_greylisted_mail_returns_from_the_same_address(tmp_path: Path, autojump_clock: MockClock) -> None:
    servers = {
        f"{MX} from {address}": FakeMx(answers={"RCPT": list(GREYLISTED)}) for address in ("192.0.2.1", "192.0.2.2")
    }
    zone, _ = one(FakeMx())
    async with stage(tmp_path, zone, servers, sources=TABLE) as play:
        await play.final(*await send(play, 10))
        each = await play.rows(
            "SELECT recipient_id, count(DISTINCT source), count(*) FROM attempts GROUP BY recipient_id"
        )
        assert {count for _, count, _ in each} == {1}
        assert max(tries for *_, tries in each) > 1


async def test_mail_of_a_lost_address_leaves_from_the_streams_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    machine = Machine()
    async with stage(tmp_path, *one(FakeMx()), sources=TABLE, trouble=machine.trouble) as play:
        machine.gone = {"192.0.2.1"}
        play.scheduler.deliverer.sources.look()
        mail = await send(play, 20)
        await play.final(*mail)
        assert await used(play) == {"b": 20}
        await play.scheduler.deliverer.sources.publish()
        (state,) = [state for state in await play.store.sources.states() if state.source == "a"]
        assert (state.is_here, state.detail) == (False, "192.0.2.1 is not on this machine")


async def test_mail_waits_without_an_attempt_until_an_address_is_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    machine = Machine()
    machine.gone = {"192.0.2.1", "192.0.2.2"}
    async with stage(tmp_path, *one(FakeMx()), sources=TABLE, trouble=machine.trouble) as play:
        mail, news = await send(play, 5), await send(play, 5, "broadcast")
        await play.final(*news)
        await play.until(partial(play.rows, "SELECT max(next_attempt_at) FROM recipients"), lambda rows: rows[0][0] > 0)
        for waiting in mail:
            assert await play.recipient(waiting) == ("queued", 0)
        await play.scheduler.deliverer.sources.publish()
        record = await play.store.records.of(mail[0])
        assert record is not None
        viewed = ["a.test"], WarmupSettings(), record.account_id, "transactional", TABLE
        view, now = (await play.store.pools.views(*viewed))["a.test"], play.env.now()
        gone = "a: 192.0.2.1 is not on this machine; b: 192.0.2.2 is not on this machine"
        why = f"waiting: all sources of its stream are out ({gone}); it uses up no attempt"
        assert standing(record.recipients[0], view, now, 12) == why
        relayed = (await play.store.pools.views(*viewed[:-1]))["a.test"]
        assert "sources" not in standing(record.recipients[0], relayed, now, 12)
        public = dataclass_replace(view, for_operator=False)
        assert "192.0.2" not in standing(record.recipients[0], public, now, 12)
        assert await used(play) == {"c": 5}
        machine.gone = {"192.0.2.1"}
        await play.final(*mail, within=120)
        assert await used(play, *mail) == {"b": 5}


async def test_an_address_that_vanishes_before_the_session_costs_no_attempt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with stage(tmp_path, *one(FakeMx()), sources=TABLE) as play:
        deliverer: Deliverer = play.scheduler.deliverer
        dial, failures = play.env.dial_from, []

        async def vanished(address: str, port: int, leaving: str) -> Any:
            if leaving == "192.0.2.1":
                failures.append(leaving)
                machine.gone = {leaving}
                raise CannotBind(99, "Cannot assign requested address")
            return await dial(address, port, leaving)

        machine = Machine()
        deliverer.sources.trouble = machine.trouble
        force_setattr(play.env, "dial_from", vanished)
        mail = await send(play, 20)
        await play.final(*mail, within=120)
        assert await used(play) == {"b": 20}
        assert 0 < len(failures) < 20
        assert await play.rows("SELECT DISTINCT attempt_count FROM recipients") == [(1,)]


async def test_a_refused_source_is_taken_out_for_that_pool_only(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, servers = domains({"a.test": FakeMx(), "b.test": FakeMx()})
    servers[f"{MX} from 192.0.2.1"] = blocked = FakeMx(answers=BLOCKED)
    async with stage(tmp_path, zone, servers, sources=TABLE) as play:
        first = await send(play, 20)
        await play.final(*first)
        assert blocked.sessions < 20
        (hold,) = (await play.store.pools.holds()).values()
        assert hold.pool == "a.test@a"
        assert hold.reason == "a server refuses mail from the source a with 554 5.7.1"
        later = await send(play, 20, start=100)
        await play.final(*later, within=200)
        assert await used(play, *later) == {"b": 20}
        elsewhere = [await play.send(f"user{number}@b.test") for number in range(20)]
        await play.final(*elsewhere)
        assert set(await used(play, *elsewhere)) == {"a", "b"}
        assert await play.rows("SELECT count(*) FROM recipients WHERE status <> 'delivered'") == [(0,)]


async def test_a_source_returns_when_a_probe_is_delivered(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, servers = one(FakeMx())
    servers[f"{MX} from 192.0.2.1"] = FakeMx(answers=BLOCKED)
    async with stage(tmp_path, zone, servers, sources=TABLE) as play:
        await play.final(*await send(play, 10))
        assert await play.store.pools.holds()
        servers[f"{MX} from 192.0.2.1"] = FakeMx()
        force_setattr(play.env, "now", lambda now=play.env.now: now() + FIRST_PROBE)
        await play.final(*await send(play, 20, start=100))
        await play.until(play.store.pools.holds, lambda holds: not holds)
        later = await send(play, 20, start=200)
        await play.final(*later)
        assert set(await used(play, *later)) == {"a", "b"}


async def test_the_last_source_follows_the_rules_for_all_mail(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, _ = one(FakeMx())
    servers = {MX: FakeMx(answers=BLOCKED)}
    async with stage(tmp_path, zone, servers, sources=TABLE) as play:
        mail = await send(play, 6)
        await play.until(partial(play.rows, "SELECT count(*) FROM attempts"), lambda rows: rows[0][0] >= 6)
        held = {pool_and_source(pool)[1] for pool in await play.store.pools.holds()}
        assert len(held) == 1  # the other one is deferred, and its mail is tried again
        assert set(await used(play, *mail)) == {"a", "b"}


async def test_operators_hold_a_pool_for_all_sources(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *one(FakeMx()), sources=TABLE) as play:
        await play.final(*await send(play, 2))
        await play.store.pools.hold("a.test", "maintenance")
        limiters = play.scheduler.deliverer.limiters
        await limiters.read_holds()
        assert limiters.is_held("a.test@a")
        assert limiters.is_held("a.test@c")
        await play.store.pools.release("a.test")
        await play.store.pools.hold("a.test", "refused", probe_at=play.env.now() + SECOND)
        await limiters.read_holds()
        assert limiters.is_held("a.test")
        assert not limiters.is_held("a.test@a")  # servers refuse the address that the system chooses, not this one


async def test_a_change_of_an_accounts_sources_counts_within_a_second(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with stage(tmp_path, *one(FakeMx()), sources=TABLE) as play:
        await play.store.sources.set_own(play.accounts["demo"], "transactional", ["c"])
        await play.scheduler.deliverer.sources.refresh()
        assert await play.store.sources.own_of(play.accounts["demo"]) == {"transactional": ("c",)}
        mine = await send(play, 5)
        theirs = [await play.send("ada@a.test", account="other") for _ in range(5)]
        await play.final(*mine, *theirs)
        assert await used(play, *mine) == {"c": 5}
        assert not (await used(play, *theirs))["c"]
        await play.store.sources.set_own(play.accounts["demo"], "transactional", [])
        await play.scheduler.deliverer.sources.refresh()
        back = await send(play, 5)
        await play.final(*back)
        assert not (await used(play, *back))["c"]


async def test_a_source_without_the_family_of_the_servers_is_passed_over(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    table = SourceTable({"a": A, "six": source("six", "2001:db8::6")}, {"transactional": ("a", "six"), "x": ("six",)})
    async with stage(tmp_path, *one(FakeMx()), sources=table) as play:
        await play.final(*await send(play, 10))
        assert await used(play) == {"a": 10}
        (waiting,) = await send(play, 1, "x")
        await play.until(partial(play.recipient, waiting), lambda found: found == ("deferred", 1))
        ((response,),) = await play.rows("SELECT last_smtp_response FROM recipients WHERE message_id = :id", id=waiting)
        assert response == "4.4.4 no source address has the address family of the mail servers of a.test"


async def test_each_source_warms_up_on_its_own_and_others_take_what_exceeds_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    slowly = WarmupSettings(enabled=True, first_hour=10, addresses=(ip_address("192.0.2.1"),))
    async with stage(tmp_path, *one(FakeMx()), sources=TABLE, warmup=slowly) as play:
        mail = await send(play, 60)
        await play.until(partial(play.rows, "SELECT count(*) FROM attempts"), lambda rows: rows[0][0] >= 50)
        assert (await used(play, *mail))["b"] > 45
        await play.final(*mail)
        ((pool, address),) = await play.rows("SELECT pool, source FROM warmups")
        assert (pool, address) == ("a.test", "192.0.2.1")


async def test_results_count_by_source_pool_and_day(tmp_path: Path, autojump_clock: MockClock) -> None:
    refusing = FakeMx(answers={"RCPT": b"550 5.7.1 Service unavailable; client host blocked using a list\r\n"})
    zone, servers = one(FakeMx())
    servers[f"{MX} from 192.0.2.1"] = refusing
    async with stage(tmp_path, zone, servers, sources=TABLE) as play:
        mail = await send(play, 12)
        await play.final(*mail)
        counts = await used(play)
        await play.scheduler.deliverer.sources.publish()
        days = await play.store.sources.days(0)
        ((day,), (other,)) = (tuple(days["a", "other"].values()), tuple(days["b", "other"].values()))
        assert other == PoolDay(delivered=counts["b"])
        assert (day.delivered, day.deferred, day.blocked) == (0, 0, counts["a"])
        assert day.reply == "550 5.7.1 Service unavailable; client host blocked using a list"
