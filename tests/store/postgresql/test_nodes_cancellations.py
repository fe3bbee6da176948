"""A message is cancelled on a node that does not deliver it: the owner is asked, and its answer counts."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from time import monotonic

import pytest
import trio

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.model.database import CancelRequest
from appliance.store import Store
from appliance.store.engine import RecordAnswer
from appliance.store.postgresql import engine
from appliance.store.postgresql.engine import PostgresEngine, prepare
from appliance.store.postgresql.migrate import newest_known
from appliance.store.postgresql.nodes import NodeIdentity
from tests.postgresql_server import USER, PostgresServer
from tests.store.postgresql.proxy import Cut, proxy
from tests.store.postgresql.stepping import check_books
from tests.store.samples import CREDITS, HASH, Clock, Messages


async def joined(url: str, clock: Clock, name: str) -> Store:
    identity = NodeIdentity(name, name, f"home of {name}", "", "", newest_known())
    return Store(PostgresEngine(url, await prepare(url, 0, None, lambda: identity)), Environment(now=clock))


@pytest.fixture
async def stores(url: str, clock: Clock) -> AsyncIterator[list[Store]]:
    opened = [await joined(url, clock, name) for name in ("first", "second", "third")]
    yield opened
    with trio.CancelScope(shield=True):
        for store in opened:
            await store.engine.close()


@pytest.fixture
async def account(stores: list[Store]) -> Account:
    return await stores[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)


async def cancelled(store: Store, message_id: str, account_id: str | None = None) -> int:
    return await store.queue_control.cancel(message_id, "a test", account_id)


async def asked(store: Store) -> list[tuple[object, ...]]:
    return await store.engine.rows("SELECT id FROM cancellations", {})


async def test_the_owner_is_asked_and_its_count_comes_back(
    stores: list[Store], messages: Messages, nursery: trio.Nursery
) -> None:
    first, second, _ = stores
    nursery.start_soon(first.queue_control.answer_others)
    new = messages.new("a@example.net", "b@example.net", "c@example.net")
    await first.messages.accept(new)
    assert await cancelled(second, new.id, messages.account_id) == 3
    assert (await first.accounts.find(messages.account_id)).credits == CREDITS
    assert await asked(first) == []
    with pytest.raises(Refused, match="left to cancel") as caught:
        await cancelled(second, new.id)
    assert caught.value.code is Code.CONFLICT
    await check_books(first)


async def test_a_message_of_several_owners(stores: list[Store], messages: Messages, nursery: trio.Nursery) -> None:
    """As after a take-over in slices: each gives up its part."""
    for store in stores:
        nursery.start_soon(store.queue_control.answer_others)
    new = messages.new(*[f"{number}@example.net" for number in range(6)])
    await stores[0].messages.accept(new)
    for number, owner in ((0, "second"), (1, "second"), (2, "third")):
        sql = "UPDATE recipients SET owner = :owner WHERE id = :id"
        await stores[0].engine.change(sql, {"owner": owner, "id": new.recipients[number].id})
    assert await cancelled(stores[0], new.id) == 6
    assert (await stores[0].accounts.find(messages.account_id)).credits == CREDITS
    await check_books(stores[0])


async def test_the_owners_refusal_is_returned(stores: list[Store], messages: Messages, nursery: trio.Nursery) -> None:
    first, second, _ = stores
    nursery.start_soon(first.queue_control.answer_others)
    new = messages.new("a@example.net", "b@example.net")
    await first.messages.accept(new)
    with pytest.raises(Refused, match="there is no message") as caught:
        await cancelled(second, new.id, "acc_of_another")
    assert caught.value.code is Code.NOT_FOUND
    first.under_delivery.begin([each.id for each in new.recipients])
    with pytest.raises(Refused, match="is being handed to a server just now") as caught:
        await cancelled(second, new.id)
    assert caught.value.code is Code.CONFLICT
    first.under_delivery.end([new.recipients[0].id])
    assert await cancelled(second, new.id) == 1
    assert (await first.accounts.find(messages.account_id)).credits == CREDITS - 1
    first.under_delivery.end([new.recipients[1].id])
    await check_books(first)


async def test_mail_that_waits_for_a_node(stores: list[Store], messages: Messages) -> None:
    """Of a node that is gone, before another has it: that is said, and not that nothing waits."""
    new = messages.new("a@example.net")
    await stores[0].messages.accept(new)
    await stores[0].engine.change("UPDATE recipients SET owner = ''", {})
    with pytest.raises(Refused, match="Another node is taking it over") as caught:
        await cancelled(stores[0], new.id)
    assert (caught.value.code, caught.value.retry_after) == (Code.TEMPORARY_FAILURE, 10)
    await stores[0].engine.change("UPDATE recipients SET owner = 'first'", {})
    stores[0].under_delivery.begin([new.recipients[0].id])
    with pytest.raises(Refused, match="is being handed to a server just now"):
        await cancelled(stores[0], new.id)
    stores[0].under_delivery.end([new.recipients[0].id])
    assert await cancelled(stores[0], new.id) == 1


async def test_a_silent_owner(stores: list[Store], messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CANCEL_TIMEOUT", 0.5)
    first, second, _ = stores
    new = messages.new()
    await first.messages.accept(new)
    began = monotonic()
    with pytest.raises(Refused, match="does not answer") as caught:
        await cancelled(second, new.id)
    assert caught.value.code is Code.TEMPORARY_FAILURE
    assert monotonic() - began < 0.5 + 2
    assert await asked(second) == []
    assert (await second.accounts.find(messages.account_id)).credits == CREDITS - 1
    assert isinstance(first.engine, PostgresEngine)
    await first.engine.leave()
    member = second.engine._membership  # type: ignore[attr-defined]
    assert await second.engine._beats.run(member.adopt) == 1  # type: ignore[attr-defined]
    assert await cancelled(second, new.id) == 1
    await check_books(second)


async def test_all_that_is_older_is_cancelled_on_all_nodes(
    stores: list[Store], messages: Messages, nursery: trio.Nursery, clock: Clock
) -> None:
    for store in stores:
        nursery.start_soon(store.queue_control.answer_others)
        await store.messages.accept(messages.new("a@example.net", "b@example.net"))
    assert await stores[2].queue_control.cancel_older(clock(), "a test") == 6
    assert (await stores[0].accounts.find(messages.account_id)).credits == CREDITS
    await check_books(stores[0])


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_an_owner_that_loses_the_database_answers_truly(
    url: str, server: PostgresServer, stores: list[Store], messages: Messages, clock: Clock, cut: Cut
) -> None:
    """Its connection is lost at the commit: what was cancelled is told, and what was not is cancelled then."""
    database = url.partition("?")[0].rpartition("/")[2]
    with proxy(int(server.settings["port"])) as between:
        far = await joined(f"postgresql://{USER}@127.0.0.1:{between.port}/{database}?sslmode=disable", clock, "far")
        try:
            new = messages.new("a@example.net", "b@example.net")
            await far.messages.accept(new)
            between.cut = cut
            async with trio.open_nursery() as nursery:
                nursery.start_soon(far.queue_control.answer_others)
                assert await cancelled(stores[1], new.id, messages.account_id) == 2
                nursery.cancel_scope.cancel()
            assert between.cuts == 1
        finally:
            with trio.CancelScope(shield=True):
                await far.engine.close()
    assert (await stores[0].accounts.find(messages.account_id)).credits == CREDITS
    assert await asked(stores[0]) == []
    await check_books(stores[0])


async def test_a_request_that_was_withdrawn_cancels_nothing(
    stores: list[Store], messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = stores[0]
    new = messages.new()
    await owner.messages.accept(new)

    async def late(cancel: Callable[[CancelRequest, RecordAnswer], Awaitable[None]]) -> None:
        await cancel(CancelRequest("gone", new.id, None, "a test"), partial(engine._answer, "gone"))

    monkeypatch.setattr(owner.engine, "answer_cancellations", late)
    with pytest.raises(Refused, match="withdrawn"):
        await owner.queue_control.answer_others()
    assert (await owner.accounts.find(messages.account_id)).credits == CREDITS - 1
    await check_books(owner)
