"""Items in the engine: those that wait for the same work are written together, and each has its own result."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from appliance.store.engine import JOBS_PER_COMMIT, Tx, run
from appliance.store.sqlite.connection import open_writer
from appliance.store.sqlite.engine import GroupCommit, Inline, SqliteEngine
from tests.store.samples import at_once
from tests.store.sqlite.test_engine import Broken


class Numbers:
    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def write(self, tx: Tx, numbers: Sequence[int]) -> list[Exception | None]:
        self.calls.append(list(numbers))
        refusals: list[Exception | None] = []
        for number in numbers:
            refusals.append(ValueError(number) if number < 0 else None)
            if number >= 0:
                run(tx, "INSERT INTO numbers (number) VALUES (:number)", {"number": number})
            if number == 13:
                raise Broken
        return refusals


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "data" / "numbers.db"
    connection = open_writer(file)
    connection.execute("CREATE TABLE numbers (number INTEGER NOT NULL) STRICT")
    connection.close()
    return file


async def write_all(engine: SqliteEngine, numbers: Numbers, wanted: Sequence[int]) -> dict[int, str]:
    results: dict[int, str] = {}

    async def write(number: int) -> None:
        try:
            await engine.write_item(numbers.write, number)
            results[number] = "written"
        except (ValueError, Broken) as error:
            results[number] = type(error).__name__

    await at_once(write, ((number,) for number in wanted))
    return results


async def stored(engine: SqliteEngine) -> list[int]:
    return [int(number) for (number,) in await engine.rows("SELECT number FROM numbers ORDER BY number", {})]


async def test_items_that_wait_are_written_together(path: Path) -> None:
    engine, numbers = SqliteEngine(path, GroupCommit(path, lambda _: None)), Numbers()
    results = await write_all(engine, numbers, [-3, *range(20, 20 + JOBS_PER_COMMIT), -2])
    assert len(numbers.calls) <= 3
    assert {number for number, result in results.items() if result == "ValueError"} == {-3, -2}
    assert await stored(engine) == list(range(20, 20 + JOBS_PER_COMMIT))
    await engine.close()


async def test_one_that_breaks_breaks_alone(path: Path) -> None:
    engine, numbers = SqliteEngine(path, GroupCommit(path, lambda _: None)), Numbers()
    results = await write_all(engine, numbers, [1, 13, -1, 2])
    assert results == {1: "written", 13: "Broken", -1: "ValueError", 2: "written"}
    assert await stored(engine) == [1, 2]
    await engine.close()


async def test_items_meet_plain_functions_in_one_commit(path: Path) -> None:
    engine, numbers = SqliteEngine(path, GroupCommit(path, lambda _: None)), Numbers()
    counts: list[int] = []

    async def ask() -> None:
        ((count,),) = await engine.change("SELECT count(*) FROM numbers", {})
        counts.append(count)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await write_all(engine, numbers, range(5))
        nursery.start_soon(ask)
    assert len(counts) == 2
    assert counts[-1] == 5
    await engine.close()


async def test_items_are_written_one_by_one_inline(path: Path) -> None:
    engine, numbers = SqliteEngine(path, Inline(path)), Numbers()
    assert await write_all(engine, numbers, [1, -1, 13]) == {1: "written", -1: "ValueError", 13: "Broken"}
    assert await stored(engine) == [1]
    await engine.close()
