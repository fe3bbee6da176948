"""The bytes of large messages: stored in parts before the message, whole or not at all, and deleted a few at a time."""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.lowlevel
from msgspec.structs import replace

from appliance.environment import Environment
from appliance.errors import Code, Refused, StorageUnavailable
from appliance.model.accounts import Account
from appliance.model.mail import NewMessage
from appliance.store import KeyTaken, Store
from appliance.store.body_parts import (
    HEAD,
    IN_HAND,
    INLINE,
    LONGEST_PART_REST,
    PAGE_BYTES,
    PART,
    PARTS_PER_COMMIT,
    PartsMissing,
)
from appliance.store.engine import Row, Tx
from appliance.store.message_records import READ_ON_LOOP
from appliance.store.messages import accept
from appliance.store.new_mail import Acceptance
from tests.store.samples import DAY, HASH, Clock, Database, Messages, at_once, existing, record, refusal
from tests.store.test_body_parts_stored_bytes import counted, limited, recounted
from tests.store.test_retention import DELIVERED, bodies, mail

WRITTEN_ON_LOOP = 3 * 1024 * 1024 + 5
# Parts that neither a record refers to nor the list of loose ones has; records whose parts are not all there.
LOST = """
SELECT DISTINCT p.message_id FROM message_body_parts p
WHERE NOT EXISTS (SELECT 1 FROM message_bodies b WHERE b.message_id = p.message_id AND b.parts_size > 0)
    AND NOT EXISTS (SELECT 1 FROM loose_parts l WHERE l.message_id = p.message_id)
"""
INCOMPLETE = """
SELECT b.message_id FROM message_bodies b WHERE b.parts_size <>
    (SELECT coalesce(sum(length(p.content)), 0) FROM message_body_parts p WHERE p.message_id = b.message_id)
    AND NOT EXISTS (SELECT 1 FROM loose_parts l WHERE l.message_id = b.message_id)
"""


async def rows(store: Store, query: str) -> list[Row]:
    return await store.engine.rows(query, {})


async def parts(store: Store) -> tuple[int, int]:
    assert await rows(store, LOST) == await rows(store, INCOMPLETE) == []
    ((in_all,),), ((loose,),) = (
        await rows(store, "SELECT count(*) FROM message_body_parts"),
        await rows(store, "SELECT count(*) FROM loose_parts"),
    )
    return int(str(in_all)), int(str(loose))


def large(messages: Messages, size: int = WRITTEN_ON_LOOP, **fields: object) -> NewMessage:
    return replace(messages.new(), mime=random.Random(size).randbytes(size), **fields)


async def cleared(store: Store, budget: int = 1) -> int:
    clock = store.body_parts.env.now
    assert isinstance(clock, Clock)
    clock.now += IN_HAND
    steps = 0
    while (await store.body_parts.clear(budget)).more:
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (INLINE - 1, 0),
        (INLINE, 0),
        (INLINE + 1, (INLINE + 1 - HEAD) // PART + 1),
        (HEAD + 8 * PART, 8),
        (HEAD + 8 * PART + 1, 9),
        (10 * 1024 * 1024, (10 * 1024 * 1024 - HEAD - 1) // PART + 1),
    ],
)
async def test_a_message_comes_back_as_it_was(store: Store, messages: Messages, size: int, count: int) -> None:
    new = large(messages, size)
    await store.messages.accept(new)
    assert await parts(store) == (count, 0)
    assert await store.messages.mime(new.id) == new.mime
    assert await store.messages.content(new.id) == new.mime
    assert await store.mail_log.mime(messages.account_id, new.id) == new.mime
    found = await store.messages.to_send(new.id)
    assert (found.mime, found.size) == (new.mime if size <= READ_ON_LOOP else None, size)
    facts = existing(await store.mail_log.facts(messages.account_id, new.id))
    assert (facts.size, facts.body_kept) == (size, True)
    assert await counted(store) == await recounted(store)


async def test_a_body_from_before_is_read_whole(store: Store, messages: Messages) -> None:
    new = messages.new()
    await store.messages.accept(new)
    old = b"x" * WRITTEN_ON_LOOP
    await store.engine.change(
        "UPDATE message_bodies SET mime = :mime WHERE message_id = :id", {"mime": old, "id": new.id}
    )
    assert await store.messages.to_send(new.id) == (None, None, WRITTEN_ON_LOOP)
    assert await store.messages.content(new.id) == await store.mail_log.mime(messages.account_id, new.id) == old


async def test_what_is_refused_writes_no_parts(store: Store, messages: Messages, account: Account) -> None:
    await store.messages.accept(messages.new(key="taken"))
    before = await store.engine.version()
    with pytest.raises(Refused) as refused:
        await store.messages.accept(limited(large(messages), WRITTEN_ON_LOOP))
    assert refused.value.code is Code.RATE_LIMITED
    with pytest.raises(KeyTaken):
        await store.messages.accept(large(messages, idempotency=messages.new(key="taken").idempotency))
    assert await store.engine.version() == before
    await store.accounts.set_credits(account.id, 0)
    before = await store.engine.version()
    with refusal(Code.INSUFFICIENT_CREDITS):
        await store.messages.accept(large(messages))
    assert await store.engine.version() == before
    assert await parts(store) == (0, 0)


async def test_a_refusal_after_the_parts_deletes_them(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=2)
        messages, results = Messages(database.env, account.id), []

        async def send(new: NewMessage) -> None:
            try:
                await store.messages.accept(new)
                results.append("accepted")
            except Refused as refused:
                results.append(refused.code.value)

        await at_once(send, ((large(messages, 2 * INLINE),) for _ in range(5)))
        assert sorted(results) == ["accepted"] * 2 + ["insufficient_credits"] * 3
        assert await parts(store) == (2 * -(-(2 * INLINE - HEAD) // PART), 0)
        assert await counted(store) == await recounted(store)


def before_each_part(monkeypatch: pytest.MonkeyPatch, store: Store, others: Callable[[], Awaitable[None]]) -> None:
    write = store.engine.write_ahead

    async def beside(work: Callable[[Tx], object]) -> object:
        await others()
        return await write(work)

    monkeypatch.setattr(store.engine, "write_ahead", beside)


async def test_others_commit_between_parts(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=None)
        messages, seen = Messages(database.env, account.id), list[int]()
        new = large(messages)

        async def others() -> None:
            assert await store.messages.read(account.id, new.id) is None
            seen.append((await parts(store))[0])
            await store.messages.accept(messages.new())

        before_each_part(monkeypatch, store, others)
        await store.messages.accept(new)
        assert seen == list(range(0, -(-(WRITTEN_ON_LOOP - HEAD) // PART), PARTS_PER_COMMIT))
        assert await store.messages.mime(new.id) == new.mime


async def test_only_beside_other_writes_is_there_a_rest_between_parts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr("appliance.store.body_parts.trio.sleep", rest)
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=None)
        messages = Messages(database.env, account.id)
        await store.messages.accept(large(messages))
        assert rests == []

        async def others() -> None:
            await store.messages.accept(messages.new())

        before_each_part(monkeypatch, store, others)
        await store.messages.accept(large(messages))
        assert len(rests) == (WRITTEN_ON_LOOP - HEAD) // (PART * PARTS_PER_COMMIT)
        assert all(0 < seconds <= LONGEST_PART_REST for seconds in rests)


async def test_who_goes_away_leaves_nothing(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=None)
        new = large(Messages(database.env, account.id), 8 * 1024 * 1024)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.messages.accept, new)
            while not (await parts(store))[0]:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert await parts(store) == (0, 0)
        assert await store.messages.read(account.id, new.id) is None
        assert await counted(store) == await recounted(store) == {account.id: 0}


async def test_nothing_refers_to_parts_that_are_missing(store: Store, messages: Messages) -> None:
    new = large(messages)
    async with store.body_parts.written(new.id, new.mime):
        await store.engine.change("DELETE FROM message_body_parts WHERE number = 7", {})
        (result,) = await store.engine.write(lambda tx: accept(tx, Environment(), [new]))
    assert isinstance(result, StorageUnavailable)
    assert (
        await rows(store, "SELECT count(*) FROM messages")
        == await rows(store, "SELECT count(*) FROM message_bodies")
        == [(0,)]
    )


async def test_a_part_that_is_missing_is_told(store: Store, messages: Messages) -> None:
    new = large(messages)
    await store.messages.accept(new)
    await store.engine.change("DELETE FROM message_body_parts WHERE number = 2", {})
    with pytest.raises(PartsMissing, match=new.id):
        await store.messages.content(new.id)
    with pytest.raises(PartsMissing, match=new.id):
        await store.mail_log.mime(messages.account_id, new.id)


async def test_what_is_being_accepted_is_not_cleared(store: Store, messages: Messages) -> None:
    left, new = large(messages), large(messages)
    for each in (left, new):
        async with store.body_parts.written(each.id, each.mime):
            if each is new:
                assert await cleared(store) > 0
                (result,) = await store.engine.write(lambda tx: accept(tx, Environment(), [new]))
                assert result == Acceptance(1)
    assert await store.messages.mime(new.id) == new.mime
    assert await parts(store) == (-(-(WRITTEN_ON_LOOP - HEAD) // PART), 0)


@pytest.mark.parametrize("how", ["bodies", "receipts kept", "mail"])
async def test_retention_deletes_parts_in_steps(store: Store, messages: Messages, clock: Clock, how: str) -> None:
    new, stays = large(messages), large(messages)
    await store.messages.accept(new)
    await record(store, clock, [DELIVERED])
    clock.now += DAY // 24
    await store.messages.accept(stays)
    count = (await parts(store))[0] // 2
    if how == "mail":
        clock.now += 31 * DAY
        assert await mail(store, clock) == 1
    else:
        clock.now += 2 * DAY if how == "bodies" else 0
        assert await bodies(store, clock, age=60_000_000) == 1
    assert await parts(store) == (2 * count, 1)
    assert await counted(store) == await recounted(store)
    assert await store.messages.mime(new.id) is None
    first = await store.body_parts.clear(3 * PART // PAGE_BYTES)
    assert (first.deleted, first.more, await parts(store)) == (3, True, (2 * count - 3, 1))
    assert await cleared(store) >= count - 3
    assert await parts(store) == (count, 0)
    assert await store.messages.mime(stays.id) == stays.mime
    assert await counted(store) == await recounted(store)
