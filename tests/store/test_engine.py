"""Statements over many rows: however many there are, all of them are written and all answered."""

import pytest

from appliance.store import Store
from appliance.store.engine import Bulk, Row, Tx, changed, gathered

INSERT = Bulk("INSERT INTO pool_holds (pool, reason, held_at) VALUES {(?, 'the ' || ?, ?i)} RETURNING held_at")
DELETE = Bulk("DELETE FROM pool_holds WHERE held_at IN ({?i})")
DELETE_FIRST = "DELETE FROM pool_holds WHERE held_at < :most"


async def insert(store: Store, values: list[Row]) -> list[Row]:
    return await store.engine.write(lambda tx: INSERT.run(tx, values))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 15, 16, 17, 79])
async def test_every_row_is_written_once(store: Store, count: int) -> None:
    found = await insert(store, [(f"pool {number}", f"{number}th", number) for number in range(count)])
    assert found == [(number,) for number in range(count)]
    stored = await store.engine.rows("SELECT pool, reason, held_at FROM pool_holds ORDER BY held_at", {})
    assert stored == [(f"pool {number}", f"the {number}th", number) for number in range(count)]


async def test_what_was_changed_is_counted(store: Store) -> None:
    await insert(store, [(f"pool {number}", "", number) for number in range(40)])

    def work(tx: Tx) -> list[int]:
        several = [DELETE.count(tx, [(number,) for number in range(10, 60)]), DELETE.count(tx, [])]
        return [*several, changed(tx, DELETE_FIRST, {"most": 4}), changed(tx, DELETE_FIRST, {"most": 4})]

    assert await store.engine.write(work) == [30, 0, 4, 0]


async def test_rows_are_gathered_in_order(store: Store) -> None:
    await insert(store, [(f"pool {number}", 'a "word"', number) for number in (3, 1, 2**62)])
    query = "SELECT held_at, reason, NULL AS gap FROM pool_holds WHERE held_at > :least"

    async def found(least: int) -> list[Row]:
        return await store.engine.read(lambda tx: gathered(tx, query, "held_at, reason, gap", {"least": least}))

    assert await found(0) == [(number, 'the a "word"', None) for number in (1, 3, 2**62)]
    assert await found(2**62) == []
