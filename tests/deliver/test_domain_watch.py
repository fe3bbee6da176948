"""DNS is asked about each domain by itself, often until all is right, and what it shows is kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from appliance.config.load import parse
from appliance.deliver.domain_watch import DOMAINS_OF_AN_ACCOUNT, ROUND_EVERY, DomainWatch, use_if_published
from appliance.dns.check import check
from appliance.dns.records import Senders, records_for, return_path_records, senders
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.keys.dkim_keys import SigningKeys
from appliance.model.accounts import Account, DomainDns, RecordStatus
from appliance.store import Store, open_store
from appliance.store.domains import Domains
from appliance.times import DAY, HOUR, MINUTE
from tests.fakes.dns import Records, Trouble, ZoneResolver, zone_text
from tests.store.samples import HASH, Clock

HOST = "mail.example.com"
MX: dict[str, Records] = {"MX": [f"10 {HOST}."]}
SPF: dict[str, Records] = {"TXT": [f'"v=spf1 a:{HOST} -all"']}
OK, MISSING, DIFFERS, UNKNOWN = RecordStatus.OK, RecordStatus.MISSING, RecordStatus.DIFFERS, RecordStatus.UNKNOWN


class Scene:
    def __init__(self, store: Store, account: Account, clock: Clock, inbound: str, mode: str) -> None:
        self.store, self.account, self.clock = store, account, clock
        settings = f'[server]\nhostname = "{HOST}"\n[inbound]\nbind = {inbound}\n[delivery]\nmode = "{mode}"\n'
        self.config = parse(settings, Path("/tmp/config.toml"))
        self.dns = ZoneResolver({HOST: {"A": ["192.0.2.25"]}})
        self.env = Environment(now=clock)
        self.keys = SigningKeys(store, self.env, bytes(32))
        self.watch = DomainWatch(self.config, self.keys, lambda: self.dns)

    async def publish(self, name: str, *, but: str = "none") -> None:
        keys = await self.keys.known(self.account.id, name)
        domain = await self.store.domains.find(self.account.id, name)
        for record in records_for(self.config, domain, keys, self.clock(), senders(self.config, ()), ()):
            if not record.kind.startswith(but):
                value = zone_text(record.value) if record.type == "TXT" else record.value
                there = self.dns.zone.get(record.name, {})
                self.dns.zone[record.name] = {**there, record.type: [value]}

    async def states(self, name: str) -> tuple[RecordStatus | None, ...] | None:
        dns = (await self.store.domains.find(self.account.id, name)).dns
        return None if dns is None else (dns.spf, dns.dkim, dns.dmarc, dns.return_path)

    async def asked_after(self, passed: int) -> bool:
        self.clock.now += passed
        self.dns.asked.clear()
        await self.watch.round()
        return bool(self.dns.asked)


@asynccontextmanager
async def opened(tmp_path: Path, inbound: str, mode: str = "direct") -> AsyncIterator[Scene]:
    clock = Clock()
    async with open_store(tmp_path, Environment(now=clock), inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH)
        yield Scene(store, account, clock, inbound, mode)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(tmp_path, "[]") as made:
        yield made


async def test_a_domain_is_asked_about_often_until_all_is_right(scene: Scene) -> None:
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    assert await scene.states("a.example") is None
    assert await scene.asked_after(0)
    assert await scene.states("a.example") == (MISSING, MISSING, MISSING, None)
    assert not await scene.asked_after(9 * MINUTE)
    await scene.publish("a.example", but="spf")
    assert await scene.asked_after(MINUTE)
    assert await scene.states("a.example") == (MISSING, OK, OK, None)
    await scene.publish("a.example")
    assert await scene.asked_after(10 * MINUTE)
    assert await scene.states("a.example") == (OK, OK, OK, None)
    assert not await scene.asked_after(HOUR - MINUTE)
    scene.dns.zone["a.example"] = {"TXT": ['"v=spf1 -all"']}
    scene.dns.zone["_dmarc.a.example"] = {"TXT": Trouble.SERVFAIL}
    assert await scene.asked_after(MINUTE)
    assert await scene.states("a.example") == (DIFFERS, OK, UNKNOWN, None)
    assert await scene.asked_after(10 * MINUTE)


async def test_a_return_path_counts_where_something_takes_it(tmp_path: Path) -> None:
    async with opened(tmp_path, '["127.0.0.1:2525"]') as scene:
        await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
        await scene.publish("a.example", but="return_path")
        assert await scene.asked_after(0)
        assert await scene.states("a.example") == (OK, OK, OK, MISSING)
        assert await scene.store.domains.return_path(scene.account.id, "a.example") is None
        await scene.publish("a.example")
        assert await scene.asked_after(10 * MINUTE)
        assert await scene.states("a.example") == (OK, OK, OK, OK)
        assert await scene.store.domains.return_path(scene.account.id, "a.example") == "bounces.a.example"
        assert not await scene.asked_after(HOUR - MINUTE)


async def test_a_return_path_is_used_once_dns_shows_both_records(tmp_path: Path) -> None:
    async with opened(tmp_path, '["127.0.0.1:2525"]') as scene:
        await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
        elsewhere: dict[str, Records] = {"MX": ["10 elsewhere.example."], **SPF}
        for shown in ({}, MX, SPF, elsewhere, {**MX, "TXT": Trouble.SERVFAIL}):
            scene.dns.zone["bounces.a.example"] = {**shown}
            assert await scene.asked_after(MINUTE)
            assert await scene.store.domains.return_path(scene.account.id, "a.example") is None, shown
        scene.dns.zone["bounces.a.example"] = {**MX, **SPF}
        assert await scene.asked_after(10 * MINUTE)
        assert await scene.store.domains.return_path(scene.account.id, "a.example") == "bounces.a.example"


async def test_it_ends_after_an_hour_of_wrong_answers_only(tmp_path: Path) -> None:
    """Not at the first wrong one, and never because DNS could not be asked; shown again, it is used again."""
    async with opened(tmp_path, '["127.0.0.1:2525"]') as scene:
        await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
        await scene.publish("a.example")
        name = "bounces.a.example"

        async def in_use_after(passed: int, shown: dict[str, Records]) -> bool:
            scene.dns.zone[name] = {**shown}
            assert await scene.asked_after(passed)
            return await scene.store.domains.return_path(scene.account.id, "a.example") is not None

        both = {**MX, **SPF}
        assert await in_use_after(0, both)
        assert await in_use_after(HOUR, {"MX": Trouble.SERVFAIL})
        assert await in_use_after(3 * HOUR, {"MX": Trouble.SERVFAIL})
        assert await in_use_after(DAY, {})
        assert [await in_use_after(10 * MINUTE, {}) for _ in range(5)] == [True] * 5
        assert await in_use_after(10 * MINUTE, both)
        assert await in_use_after(HOUR, {})  # the wrong answers before do not count
        assert [await in_use_after(10 * MINUTE, {}) for _ in range(6)] == [True] * 5 + [False]
        assert await in_use_after(10 * MINUTE, both)


async def test_without_a_listener_no_return_path_is_looked_up(scene: Scene) -> None:
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    scene.dns.zone["bounces.a.example"] = {**MX, **SPF}
    assert await scene.asked_after(0)
    assert ("bounces.a.example", "MX") not in scene.dns.asked
    assert await scene.store.domains.return_path(scene.account.id, "a.example") is None


async def test_one_that_changed_while_dns_was_asked_is_not_used(scene: Scene) -> None:
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    read = await scene.store.domains.find(scene.account.id, "a.example")
    scene.dns.zone[read.return_path] = {**MX, **SPF}
    checked = await check(scene.dns, return_path_records(read.return_path, Senders((HOST,)), (HOST,)))
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True, return_path="rp.a.example")
    assert not await use_if_published(scene.store, scene.account.id, read, checked)
    assert await scene.store.domains.return_path(scene.account.id, "a.example") is None


async def test_new_keys_sign_within_a_minute_of_their_publication(scene: Scene) -> None:
    name, keys, whose = "a.example", scene.store.dkim_keys, scene.account.id
    await scene.store.access.add_domain(whose, name, usable=True)
    await scene.publish(name)
    assert await scene.asked_after(0)
    assert not await scene.asked_after(MINUTE)
    await scene.keys.begin_rotation(whose, name)
    assert await scene.asked_after(0)
    assert [key.pending for key in await keys.of(whose, name)].count(True) == 2
    await scene.publish(name)
    assert await scene.asked_after(MINUTE)
    assert not any(key.pending for key in await keys.of(whose, name))
    assert not await scene.asked_after(HOUR - MINUTE)


async def test_a_pending_domain_is_proven_by_its_key(scene: Scene) -> None:
    """Not by other records; then it may be sent from, as if its owner had asked."""
    await scene.store.domains.register(scene.account.id, "a.example")
    await scene.publish("a.example", but="dkim")
    await scene.watch.round()
    assert not (await scene.store.domains.find(scene.account.id, "a.example")).usable
    await scene.publish("a.example", but="spf")
    scene.clock.now += 10 * MINUTE
    await scene.watch.round()
    found = await scene.store.domains.find(scene.account.id, "a.example")
    assert found.usable
    assert found.verified_at is not None
    (line,) = await scene.store.audit.page(scene.account.id)
    assert (line.actor_kind, line.actor, line.action) == ("service", "domain watch", "domain.verified")
    assert (line.object, line.address) == ("a.example", "server")
    scene.clock.now += 10 * MINUTE
    await scene.watch.round()
    assert len(await scene.store.audit.page(scene.account.id)) == 1


async def test_a_removed_domain_is_asked_about_no_more(scene: Scene) -> None:
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    await scene.publish("a.example")
    assert await scene.asked_after(0)
    await scene.store.domains.remove(scene.account.id, "a.example")
    assert not await scene.asked_after(2 * DAY)
    await scene.store.domains.register(scene.account.id, "a.example")
    assert await scene.states("a.example") is None
    assert await scene.asked_after(0)


async def test_another_return_path_is_asked_about_at_once(scene: Scene) -> None:
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    assert await scene.asked_after(0)
    read = await scene.store.domains.find(scene.account.id, "a.example")
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True, return_path="rp.a.example")
    await scene.store.domains.record_dns(scene.account.id, read, DomainDns(scene.clock(), OK, OK, OK, OK))
    assert await scene.asked_after(0)
    assert await scene.states("a.example") == (MISSING, MISSING, MISSING, None)


async def test_many_domains_take_turns(scene: Scene) -> None:
    names = [f"d{number:03}.example" for number in range(DOMAINS_OF_AN_ACCOUNT + 5)]
    for name in names:
        await scene.store.access.add_domain(scene.account.id, name, usable=True)
    for expected in (DOMAINS_OF_AN_ACCOUNT, 5, 0):
        scene.dns.asked.clear()
        await scene.watch.round()
        assert sum(scene.dns.asked[name, "TXT"] for name in names) == expected


async def test_dead_dns_of_one_account_delays_no_other(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, '["127.0.0.1:2525"]') as scene:
        real = scene.dns.lookup

        async def lookup(name: str, kind: str) -> Any:
            if "dead" in name:
                await trio.sleep_forever()
            return await real(name, kind)

        monkeypatch.setattr(scene.dns, "lookup", lookup)
        dead = await scene.store.accounts.create("dead", "dead@example.org", HASH)
        for number in range(150):
            await scene.store.access.add_domain(dead.id, f"dead{number}.example", usable=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.watch.run)
            await trio.sleep(20 * ROUND_EVERY)
            await scene.store.domains.register(scene.account.id, "a.example")
            await scene.publish("a.example", but="return_path")
            scene.clock.now += 20 * MINUTE
            await trio.sleep(2 * ROUND_EVERY)
            assert (await scene.store.domains.find(scene.account.id, "a.example")).usable
            await scene.publish("a.example")
            scene.clock.now += MINUTE
            await trio.sleep(ROUND_EVERY + 1)
            assert await scene.store.domains.return_path(scene.account.id, "a.example") == "bounces.a.example"
            nursery.cancel_scope.cancel()


async def test_in_the_sandbox_nothing_is_asked(tmp_path: Path) -> None:
    async with opened(tmp_path, '["127.0.0.1:2525"]', "sandbox") as scene:
        await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
        await scene.watch.run()
        assert not scene.dns.asked


async def test_a_node_without_the_chore_asks_nothing(
    scene: Scene, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = False

    async def has_chore(_self: object, _name: str) -> bool:
        return mine

    monkeypatch.setattr(type(scene.store.engine), "has_chore", has_chore)
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.watch.run)
        await trio.sleep(3 * ROUND_EVERY)
        assert not scene.dns.asked
        mine = True
        await trio.sleep(2 * ROUND_EVERY)
        assert scene.dns.asked
        nursery.cancel_scope.cancel()


async def test_a_storage_that_refuses_once_ends_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals = Domains.due, [StorageUnavailable("the storage is away")]

    async def refused_once(*given: Any, **named: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await real(*given, **named)

    monkeypatch.setattr(Domains, "due", refused_once)
    async with opened(tmp_path, '["127.0.0.1:2525"]') as scene, trio.open_nursery() as nursery:
        await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
        await scene.publish("a.example")
        nursery.start_soon(scene.watch.run)
        await trio.sleep(2 * ROUND_EVERY)
        assert not refusals
        assert await scene.states("a.example") == (OK, OK, OK, OK)
        assert await scene.store.domains.return_path(scene.account.id, "a.example") == "bounces.a.example"
        nursery.cancel_scope.cancel()


async def test_dns_that_never_answers_ends(
    scene: Scene, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lookup(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(scene.dns, "lookup", lookup)
    await scene.store.access.add_domain(scene.account.id, "a.example", usable=True)
    await scene.publish("a.example")
    await scene.watch.round()
    assert await scene.states("a.example") == (UNKNOWN, UNKNOWN, UNKNOWN, None)
    assert await scene.store.domains.due(1, 1) == []
