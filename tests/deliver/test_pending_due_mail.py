"""Which waiting mail is found next: all of it if it is little, and each account's share if it is not."""

from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from appliance.deliver.pending import LEAST_PER_ACCOUNT, RECIPIENTS_PER_POLL, DueMail
from appliance.deliver.preparing import RECIPIENTS_PER_VISIT, Envelope, Flow, envelopes
from appliance.environment import Environment
from appliance.model.accounts import Role
from appliance.store import Store, open_store
from appliance.store.queue import Queue
from appliance.store.queue_control import Lanes
from tests.bench.queued import fill_queue
from tests.deliver.simulated_delivery import message
from tests.late_reads import late

BIG, SMALL = "big", "small"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, Environment(), inline=True) as opened:
        yield opened


async def account(store: Store, name: str) -> str:
    return (await store.accounts.create(name, f"{name}@example.org", "hash", Role.CUSTOMER, 10**9)).id


def everything(flow: Flow, domain: str, via: object = None) -> bool:
    return True


async def backlog(store: Store, tmp_path: Path, count: int, *, domains: int = 1) -> DueMail:
    fill_queue(tmp_path, await account(store, BIG), count, domains=domains, told=False)
    return DueMail(store, store.messages.env)


def take_all(due_mail: DueMail, found: list[Envelope]) -> None:
    for envelope in found:
        due_mail.take(envelope)


async def test_little_mail_is_found_in_one_look(store: Store) -> None:
    due_mail = DueMail(store, store.messages.env)
    mine = await account(store, SMALL)
    new = message(store.messages.env, mine, "a@one.test", "b@one.test", "c@two.test")
    await store.messages.accept(new)
    found = await due_mail.all(everything)
    assert sorted((envelope.domain, len(envelope.recipients)) for envelope in found) == [
        ("one.test", 2),
        ("two.test", 1),
    ]
    take_all(due_mail, found)
    assert await due_mail.all(everything) == []
    due_mail.release(found[0])
    assert await due_mail.all(everything) == [found[0]]
    assert await due_mail.new(everything) == [found[0]]


@pytest.mark.parametrize("size", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_a_backlog_does_not_hide_one(store: Store, tmp_path: Path, size: int) -> None:
    due_mail = await backlog(store, tmp_path, size)
    mine = await account(store, SMALL)
    single = message(store.messages.env, mine, "ada@elsewhere.test")
    await store.messages.accept(single)
    found = await due_mail.all(everything)
    assert [envelope.message_id for envelope in found].index(single.id) <= 1
    assert 1 < len(found) <= RECIPIENTS_PER_POLL + RECIPIENTS_PER_VISIT


async def test_a_backlog_does_not_hide_a_retry(store: Store, tmp_path: Path) -> None:
    due_mail = await backlog(store, tmp_path, 5_000)
    take_all(due_mail, await due_mail.all(everything))
    assert due_mail.is_behind
    await due_mail.all(everything)
    (owner,) = await store.lanes.accounts(low=0)
    retry = message(store.messages.env, owner, "ada@example.net")
    await store.messages.accept(retry)
    tried = "UPDATE recipients SET attempt_count = 1, status = 'deferred' WHERE message_id = :id"
    await store.engine.change(tried, {"id": retry.id})
    found = await due_mail.all(lambda *_: False)  # no untried mail is wanted
    assert [envelope.message_id for envelope in found] == [retry.id]
    take_all(due_mail, found)
    assert await due_mail.all(lambda *_: False) == []


async def test_the_same_destination_is_no_excuse(store: Store, tmp_path: Path) -> None:
    due_mail = await backlog(store, tmp_path, 5_000)
    take_all(due_mail, await due_mail.all(everything))
    mine = await account(store, SMALL)
    single = message(store.messages.env, mine, "ada@example.net")
    await store.messages.accept(single)
    assert single.id in [envelope.message_id for envelope in (await due_mail.new(everything))[:2]]


async def test_a_full_pool_does_not_hide_the_others(store: Store, tmp_path: Path) -> None:
    due_mail = await backlog(store, tmp_path, 5_000, domains=200)
    wanted = {f"d{number}.example.net" for number in range(150, 160)}
    seen: Counter[str] = Counter()
    for _ in range(20):
        found = await due_mail.all(lambda _, domain, _via: domain in wanted)
        take_all(due_mail, found)
        seen.update(envelope.domain for envelope in found)
    assert set(seen) == wanted


async def test_every_domain_has_its_turn(store: Store, tmp_path: Path) -> None:
    due_mail = await backlog(store, tmp_path, 3_000, domains=300)
    seen: Counter[str] = Counter()
    for _ in range(200):
        found = await due_mail.all(everything)
        take_all(due_mail, found)
        seen.update(envelope.message_id for envelope in found)
    assert len(seen) == 3_000
    assert set(seen.values()) == {1}


async def test_many_accounts_share_a_look(store: Store, tmp_path: Path) -> None:
    accounts = [await account(store, f"account{number}") for number in range(100)]
    for each in accounts:
        fill_queue(tmp_path, each, 60, told=False)
    await store.engine.write(lambda c: None)
    due_mail = DueMail(store, store.messages.env)
    seen: Counter[str] = Counter()
    for _ in range(3):
        found = await due_mail.all(everything)
        take_all(due_mail, found)
        assert len(found) <= RECIPIENTS_PER_POLL + RECIPIENTS_PER_VISIT
        seen.update(envelope.account_id for envelope in found)
    assert set(seen) == set(accounts)
    assert max(seen.values()) <= 2 * min(seen.values()) + LEAST_PER_ACCOUNT


async def test_behind_a_backlog_one_way_of_looking_is_enough(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due_mail = await backlog(store, tmp_path, 1_000)
    by_time = []
    due = Queue.due

    async def counting(
        self: Queue, *, simulated: bool, low: int, most: int, since: int, retries: bool = False
    ) -> object:
        by_time.extend([] if retries else [most])
        return await due(self, simulated=simulated, low=low, most=most, since=since, retries=retries)

    monkeypatch.setattr(Queue, "due", counting)
    rounds = []
    while found := await due_mail.new(everything):
        take_all(due_mail, found)
        rounds.append(len(found))
    assert sum(rounds) == 1_000
    assert len(by_time) <= 3


async def test_one_transaction_is_not_too_long(store: Store) -> None:
    mine = await account(store, SMALL)
    new = message(store.messages.env, mine, *(f"user{number}@one.test" for number in range(120)))
    await store.messages.accept(new)
    due_mail = DueMail(store, store.messages.env)
    sizes = []
    while found := await due_mail.all(everything):
        take_all(due_mail, found)
        sizes += [len(envelope.recipients) for envelope in found]
    assert sizes == [50, 50, 20]


async def test_a_look_is_in_turn(store: Store) -> None:
    """Of what one look finds, no account stands twice in a row while another still waits."""
    for name, count in (("one", 5), ("two", 5), ("three", 2)):
        mine = await account(store, name)
        for number in range(count):
            await store.messages.accept(message(store.messages.env, mine, f"user{number}@one.test"))
    due = await store.queue.due(simulated=False, most=100)
    ordered = envelopes(due)
    assert all(one.account_id != other.account_id for one, other in pairwise(ordered[:10]))


async def test_a_clock_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    """What has become due since is found, though the last look was at a later time."""
    now = 1_700_000_000_000_000
    env = Environment(now=lambda: now)
    async with open_store(tmp_path, env, inline=True) as store:
        due_mail = DueMail(store, env)
        mine = await account(store, SMALL)
        assert await due_mail.all(everything) == []
        now -= 2 * 86_400_000_000
        new = message(env, mine, "ada@example.net")
        await store.messages.accept(new)
        assert [envelope.message_id for envelope in await due_mail.new(everything)] == [new.id]


@pytest.mark.parametrize("kind", ["new", "all", "left"])
async def test_what_is_released_during_a_look_is_not_found_by_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its outcome may be on disk since the store was read, so it would be delivered twice; the next look finds it."""
    due_mail = DueMail(store, store.messages.env)
    await store.messages.accept(message(store.messages.env, await account(store, SMALL), "ada@one.test"))
    (envelope,) = await due_mail.all(everything)
    due_mail.take(envelope)

    async def release() -> None:
        due_mail.release(envelope)

    late(monkeypatch, Lanes if kind == "left" else Queue, "due", release)
    look = getattr(due_mail, kind)
    assert await look(everything) == []
    assert await look(everything) == [envelope]
