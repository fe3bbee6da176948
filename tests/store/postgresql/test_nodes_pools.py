"""The pools of several nodes: told as one, held by each for itself, and by the operator for all."""

from collections.abc import AsyncIterator
from pathlib import Path

import outcome
import pytest
import trio

from appliance.config.load import parse
from appliance.config.settings import WarmupSettings
from appliance.deliver.pool_limiters import PoolLimiters, ProviderServers
from appliance.deliver.providers import pools
from appliance.environment import Environment
from appliance.model.accounts import Account
from appliance.model.mail import OutgoingSession
from appliance.model.queue import PoolHold, PoolState, SlowedAccount
from appliance.report.explain import standing
from appliance.store import Store
from appliance.store.engine import Row
from appliance.store.postgresql.engine import PostgresEngine, prepare
from appliance.store.postgresql.nodes import BEAT, HOLDS_KEPT, STEADY, Membership, NodeIdentity
from tests.store.postgresql.stepping import FIRST, SECOND, Barrier, Meet, queued_behind, stopping
from tests.store.samples import CREDITS, DAY, HASH, MORNING, Clock, Messages, existing

LATER = MORNING + DAY  # when a probe goes
WHY = "10 refusals of us as a sender in a row"


async def joined(url: str, clock: Clock, name: str, run: str = "") -> Store:
    identity = NodeIdentity(f"{name}{run}", name, f"home of {name}", f"{name}.test", "1", 1)
    member = await prepare(url, 0, None, lambda: identity)
    return Store(PostgresEngine(f"{url}&application_name={name}", member), Environment(now=clock))


@pytest.fixture
async def two(url: str, clock: Clock) -> AsyncIterator[list[Store]]:
    opened = [await joined(url, clock, name) for name in (FIRST, SECOND)]
    yield opened
    with trio.CancelScope(shield=True):
        for store in opened:
            await store.engine.close()


@pytest.fixture
async def shell(url: str, clock: Clock) -> AsyncIterator[Store]:
    store = Store(PostgresEngine(url), Environment(now=clock))
    yield store
    with trio.CancelScope(shield=True):
        await store.engine.close()


async def leave(store: Store) -> None:
    assert isinstance(store.engine, PostgresEngine)
    await store.engine.leave()


async def told(store: Store) -> list[tuple[str, str, str, int | None]]:
    return [(hold.pool, hold.node, hold.reason, hold.probe_at) for hold in await store.pools.all_holds()]


async def test_a_pool_on_two_nodes_is_told_once(two: list[Store]) -> None:
    one, other = two
    slowed = SlowedAccount("acc_1", 9, "too much", 1)
    await one.pools.say([PoolState("google", 3, 10, None, None, 0)], {})
    await other.pools.say([PoolState("google", 2, 5, 7, "busy", 0, slowed_accounts=(slowed,))], {})
    (both,) = await one.pools.states()
    assert (both.in_use, both.allowed, both.slowed_until, both.slowed_by) == (5, 15, 7, "busy")
    assert both.slowed_accounts == (slowed,)
    await one.pools.say([], {})
    assert [(state.in_use, state.allowed) for state in await other.pools.states()] == [(2, 5)]


async def test_what_a_run_said_ends_with_it(two: list[Store], shell: Store) -> None:
    for number, store in enumerate(two):
        session = OutgoingSession(f"rcp_{number}", "mx.test", "192.0.2.1", 1, "greeting", 1)
        await store.pools.say([PoolState("google", 3, 10, None, None, 0)], {}, [session])
    assert [(state.in_use, state.allowed) for state in await shell.pools.states()] == [(6, 20)]
    await leave(two[0])
    assert [(state.in_use, state.allowed) for state in await shell.pools.states()] == [(3, 10)]
    await two[1].pools.say([PoolState("yahoo", 0, 5, None, None, 0)], {})
    for table in ("pool_states", "smtp_sessions"):
        assert await shell.engine.rows(f"SELECT owner FROM {table} WHERE owner <> '{SECOND}'", {}) == []


async def test_a_session_that_a_killed_run_said_it_had(two: list[Store]) -> None:
    async def say(store: Store, *hosts: str) -> list[Row]:
        sessions = [OutgoingSession("rcp_1", host, "192.0.2.1", 1, "greeting", 1) for host in hosts]
        await store.pools.say([], {}, sessions)
        return await store.engine.rows("SELECT owner, host FROM smtp_sessions", {})

    killed, other = two
    assert await say(killed, "mx1.test") == [(FIRST, "mx1.test")]
    assert await say(other, "mx2.test") == [(SECOND, "mx2.test")]
    assert await say(killed) == [(SECOND, "mx2.test")]
    assert await say(other) == []


# ---- whose hold it is
async def test_an_automatic_hold_is_of_one_node(two: list[Store], shell: Store) -> None:
    one, other = two
    await one.pools.hold("google", WHY, LATER)
    await one.pools.hold("google", "another reason", LATER + 1)
    (hold,) = (await one.pools.holds()).values()
    assert (hold.node, hold.reason, hold.probe_at, hold.probes) == (FIRST, WHY, LATER, 0)
    assert await other.pools.holds() == await shell.pools.holds() == {}
    assert [(await store.queue_control.depth()).held for store in two] == [("google",), ()]
    await other.pools.hold("google", "refused here too", LATER + 2)
    later = PoolHold("google", WHY, hold.held_at, LATER + 5, 1, FIRST)
    await one.pools.probed(later)
    assert await one.pools.holds() == {"google": later}
    expected = [("google", FIRST, WHY, LATER + 5), ("google", SECOND, "refused here too", LATER + 2)]
    assert await told(shell) == await told(one) == expected
    assert await other.pools.release("google", automatic=True)
    assert not await other.pools.release("google", automatic=True)
    assert await told(shell) == expected[:1]


async def test_the_limiters_of_two_nodes(two: list[Store]) -> None:
    servers = ProviderServers(pools(parse("", Path("config.toml"))))
    limiters = [PoolLimiters(store, Environment(), servers) for store in two]

    async def held() -> list[bool]:
        for each in limiters:
            await each.read_holds()
        return [each.is_held("google") for each in limiters]

    await two[0].pools.hold("google", WHY, 1)
    assert await held() == [True, False]
    assert [each.may_probe("google", "acc") for each in limiters] == [True, False]
    await two[1].pools.hold("google", "by the operator")
    assert await held() == [True, True]
    assert [each.may_probe("google", "acc") for each in limiters] == [False, False]
    await two[1].pools.release("google")
    assert await held() == [False, False]


async def test_the_operators_hold_takes_the_place_of_all(two: list[Store], shell: Store) -> None:
    one, other = two
    await one.pools.hold("google", WHY, LATER)
    await other.pools.hold("google", "refused here too", LATER)
    await shell.pools.hold("google", "by the operator")
    assert await told(shell) == [("google", "", WHY, None)]
    await other.pools.hold("google", "again", LATER)
    hold = (await one.pools.holds())["google"]
    assert await other.pools.holds() == {"google": hold}
    assert not await one.pools.release("google", automatic=True)
    await one.pools.probed(PoolHold("google", WHY, hold.held_at, LATER, 1, FIRST))
    assert await told(shell) == [("google", "", WHY, None)]
    assert await other.pools.release("google")
    assert await told(shell) == []


async def test_a_release_ends_the_holds_of_every_node(two: list[Store], shell: Store) -> None:
    for store in two:
        await store.pools.hold("google", WHY, LATER)
        await store.pools.hold("yahoo", WHY, LATER)
    assert await shell.pools.release("google")
    assert not await shell.pools.release("google")
    assert await told(shell) == [("yahoo", FIRST, WHY, LATER), ("yahoo", SECOND, WHY, LATER)]


async def test_a_resume_lifts_the_holds_and_the_slow_downs_of_every_node(two: list[Store], shell: Store) -> None:
    one, other = two
    await one.pools.hold("google", WHY, LATER)
    await other.pools.say([PoolState("google", 0, 1, LATER, "slower", MORNING)], {})
    before = await one.pools.resumed()
    resumed = await shell.pools.resume("google")
    assert [(hold.node, hold.reason) for hold in resumed.holds] == [(FIRST, WHY)]
    assert resumed.slowed is not None
    assert resumed.slowed.slowed_by == "slower"
    assert await told(shell) == []
    assert before == {}
    assert await one.pools.resumed() == await other.pools.resumed() == {"google": 1}


async def test_an_automatic_hold_of_the_machine_this_was_copied_from(two: list[Store], shell: Store) -> None:
    await shell.pools.hold("google", WHY, LATER)
    assert await told(shell) == [("google", "", WHY, LATER)]
    (hold,) = (await two[0].pools.holds()).values()
    await two[0].pools.probed(PoolHold("google", WHY, hold.held_at, LATER + 1, 1))
    assert (await two[1].pools.holds())["google"].probe_at == LATER + 1
    assert await two[1].pools.release("google", automatic=True)
    assert await two[0].pools.holds() == {}


# ---- as long as the node is there
async def test_a_hold_outlives_the_run(url: str, clock: Clock, two: list[Store], shell: Store) -> None:
    one, other = two
    await one.pools.hold("google", WHY, LATER)
    await leave(one)
    assert await told(shell) == []
    assert await other.pools.holds() == {}
    again = await joined(url, clock, FIRST, run="_again")
    assert await told(shell) == [("google", FIRST, WHY, LATER)]
    assert list(await again.pools.holds()) == ["google"]
    await again.engine.close()


async def test_the_only_node_is_not_named(two: list[Store], shell: Store) -> None:
    await two[0].pools.hold("google", WHY, LATER)
    await leave(two[1])
    assert await told(shell) == [("google", "", WHY, LATER)]


async def test_holds_of_nodes_that_are_gone_are_forgotten(url: str, clock: Clock, two: list[Store]) -> None:
    week = Environment().now() - HOLDS_KEPT
    for store, probe_at in ((two[0], week - 10**7), (two[1], week - 10**7)):
        await store.pools.hold("google", WHY, probe_at)
    await two[0].pools.hold("yahoo", WHY, week + 10**8)
    await leave(two[0])
    moment = [0.0]
    member = Membership(NodeIdentity("third", "third", "there", "", "", 1), lambda: moment[0])
    engine = PostgresEngine(url, member)
    await engine._beats.run(member.join)
    for _ in range(int(STEADY / BEAT) + 2):
        moment[0] += BEAT
        await engine._beats.run(lambda connection: member.beat(connection, 0))
    await engine._beats.run(member.adopt)
    left = await engine.rows("SELECT pool, node FROM node_holds ORDER BY pool", {})
    assert left == [("google", SECOND), ("yahoo", FIRST)]
    await engine.close()


# ---- whose mail waits
async def test_only_what_the_node_delivers_is_said_to_wait(two: list[Store], clock: Clock) -> None:
    account = await two[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
    messages = Messages(Environment(now=clock), account.id)
    await two[0].pools.say([PoolState("google", 0, 5, None, None, 0)], {"gmail.com": "google"})
    await two[0].pools.hold("google", WHY, LATER)
    there = messages.new("b@gmail.com", simulated=False)
    await two[1].messages.accept(there)
    assert await two[0].pools.holding(account.id) == await two[1].pools.holding(account.id) == []
    assert "takes it next" in await explained(two[1], account, there.id)
    here = messages.new("a@gmail.com", simulated=False)
    await two[0].messages.accept(here)
    (hold,) = await two[1].pools.holding(account.id)
    assert (hold.pool, hold.node) == ("google", FIRST)
    assert f"pool google is held by node {FIRST}: {WHY}; next probe" in await explained(two[1], account, here.id)
    await two[1].pools.hold("google", WHY, LATER)
    assert len(await two[0].pools.holding(account.id)) == 1
    await two[1].pools.hold("google", "by the operator")
    assert await explained(two[1], account, here.id) == f"waiting: pool google is held: {WHY}"


async def explained(store: Store, account: Account, message_id: str) -> str:
    record = existing(await store.records.of(message_id))
    (recipient,) = record.recipients
    views = await store.pools.views([recipient.domain], WarmupSettings(), account.id)
    return standing(recipient, views[recipient.domain], LATER - 1, 12)


# ---- both at once

_BOTH = "SELECT pool, '' FROM pool_holds UNION ALL SELECT pool, node FROM node_holds"


@pytest.mark.parametrize("stopped_by", ["node", "operator"])
async def test_a_node_and_the_operator_hold_a_pool_at_once(two: list[Store], meet: Meet, stopped_by: str) -> None:
    statement = "INSERT INTO node_holds" if stopped_by == "node" else "INSERT INTO pool_holds (pool, reason, held_at, p"

    async def automatic(store: Store) -> None:
        await store.pools.hold("google", WHY, LATER)

    async def by_operator(store: Store) -> None:
        await store.pools.hold("google", "by the operator")

    first, second = (automatic, by_operator) if stopped_by == "node" else (by_operator, automatic)
    ended = await meet(statement, lambda: first(two[0]), lambda: second(two[1]), after=True)
    assert all(isinstance(each, outcome.Value) for each in ended), ended
    assert await two[0].engine.rows(_BOTH, {}) == [("google", "")]


async def test_a_hold_during_a_release(two: list[Store], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await two[0].pools.hold("google", WHY, LATER)
    with stopping(monkeypatch, Barrier(SECOND, "DELETE FROM node_holds", after=True)) as barrier:
        ended = await queued_behind(
            url, barrier, lambda: two[1].pools.release("google"), lambda: two[0].pools.hold("google", "again", LATER)
        )
    assert all(isinstance(each, outcome.Value) for each in ended), ended
    assert await told(two[0]) == [("google", FIRST, "again", LATER)]
