"""What ACME keeps for all nodes: only the node that has the chore writes it, and every node reads it."""

from collections.abc import AsyncIterator

import pytest
import trio

from appliance.store import Store
from appliance.store.installation import ACME_CHORE, CHALLENGES_READ
from appliance.store.postgresql.engine import PostgresEngine
from tests.store.postgresql.test_nodes_cancellations import joined
from tests.store.samples import Clock


@pytest.fixture
async def stores(url: str, clock: Clock) -> AsyncIterator[list[Store]]:
    opened = [await joined(url, clock, name) for name in ("first", "second")]
    assert await opened[0].engine.has_chore(ACME_CHORE)
    yield opened
    with trio.CancelScope(shield=True):
        for store in opened:
            await store.engine.close()


async def test_every_node_finds_a_challenge_and_what_is_kept(stores: list[Store]) -> None:
    first, second = (store.shared_certificates for store in stores)
    assert await second.challenges() == {}
    for text in ("a.old", "a.new"):
        assert await first.publish("a", text)
    assert await first.publish("b", "b.new")
    assert await second.challenges() == {"a": "a.new", "b": "b.new"}
    assert await first.withdraw()
    assert await second.challenges() == {}
    assert await first.keep({"key": b"\x00old", "state": b"{}"})
    assert await first.keep({"key": b"\x00new"})
    assert (await second.look()).records == {"key": b"\x00new", "state": b"{}"}


async def test_a_read_of_challenges_has_an_end(stores: list[Store]) -> None:
    """However many there are: each is read with every request for a token that is not known."""
    sql = "INSERT INTO acme_challenges SELECT n, n FROM generate_series(1, 1000) AS n"
    await stores[0].engine.change(sql, {})
    assert len(await stores[1].shared_certificates.challenges()) == CHALLENGES_READ


async def test_a_node_without_the_chore_writes_nothing(stores: list[Store]) -> None:
    first, second = stores
    assert not await second.engine.has_chore(ACME_CHORE)
    assert await first.shared_certificates.keep({"key": b"first"})
    assert not await second.shared_certificates.keep({"key": b"second"})
    assert not await second.shared_certificates.publish("b", "b.text")
    await first.engine.change("UPDATE chores SET lease_until = 0", {})
    assert await first.shared_certificates.publish("a", "a.text")  # no other has it yet
    assert await second.engine.has_chore(ACME_CHORE)
    assert await second.shared_certificates.publish("b", "b.text")
    assert not await first.shared_certificates.publish("c", "c.text")
    assert not await first.shared_certificates.withdraw()
    assert not await first.shared_certificates.keep({"key": b"first again"})
    assert await first.shared_certificates.challenges() == {"a": "a.text", "b": "b.text"}
    assert (await first.shared_certificates.look()).records == {"key": b"first"}


async def test_what_live_nodes_want(stores: list[Store]) -> None:
    first, second = stores

    async def wanted() -> list[str]:
        return (await second.shared_certificates.look()).wanted

    assert await wanted() == []
    for store, text in zip(stores, ("of first", "of second"), strict=True):
        await store.shared_certificates.announce(text)
    assert await wanted() == ["of second", "of first"]
    sql = "UPDATE nodes SET lease_until = lease_until - 3600000000 WHERE owner = :owner"
    await second.engine.change(sql, {"owner": "second"})
    assert await wanted() == ["of first"]
    assert isinstance(first.engine, PostgresEngine)
    await first.engine.leave()
    assert await wanted() == []
