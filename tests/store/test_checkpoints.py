"""The write-ahead log is copied beside the writer, and does not grow without end."""

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
import trio

from appliance.store.checkpoints import EARLY, LONGEST
from appliance.store.connection import open_writer
from appliance.store.engine import Engine, GroupCommit

PAGE = 4_096
WITHIN = 10.0  # seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with one table."""
    file = tmp_path / "data" / "blobs.db"
    connection = open_writer(file)
    connection.execute("CREATE TABLE blobs (content BLOB NOT NULL) STRICT")
    connection.close()
    return file


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[Engine]:
    """The engine of the real server."""
    opened = Engine(path, GroupCommit(path, lambda fault: pytest.fail(str(fault))))
    yield opened
    await opened.close()


def size(file: Path) -> int:
    """Bytes of a file."""
    return file.stat().st_size


async def fill(engine: Engine, pages: int) -> None:
    """Write about so many pages, in one commit for each hundred."""
    for _ in range(pages // 100):
        await engine.write(_add, bulk=True)


def _add(c: apsw.Connection) -> None:
    c.execute("INSERT INTO blobs (content) VALUES (zeroblob(?))", (100 * PAGE - 100,))


async def test_a_short_log_is_left_alone(engine: Engine, path: Path) -> None:
    """Few pages are not worth a sync of the database."""
    before = size(path)
    await fill(engine, EARLY // 2)
    await trio.sleep(0.2)
    assert size(path) == before


async def test_a_long_one_is_copied_before_the_writer_has_to(engine: Engine, path: Path) -> None:
    """Though it is not as long as would make the writer copy it, its pages come into the database."""
    await fill(engine, EARLY + 200)
    with trio.fail_after(WITHIN):
        while size(path) < EARLY * PAGE:  # noqa: ASYNC110 - a file tells nobody when it grows
            await trio.sleep(0.01)


async def test_the_log_begins_anew(engine: Engine, path: Path) -> None:
    """However much is written without a pause, the log takes little more than is allowed."""
    await fill(engine, 3 * LONGEST)
    log = path.with_name(f"{path.name}-wal")
    assert size(log) < 1.5 * LONGEST * PAGE
    assert size(path) > 1.5 * LONGEST * PAGE
