"""Checks of a database that may be in use: what they find, and that they end in time."""

from pathlib import Path

import apsw
import pytest

from appliance.environment import Environment
from appliance.store import FILE_NAME, open_store
from appliance.store.sqlite.connection import open_writer
from appliance.store.sqlite.faults import Damaged
from appliance.store.sqlite.integrity import QuickCheck, quick_check, refuse_damaged
from appliance.store.sqlite.migrate import newest_known
from appliance.store.sqlite.upgrade import bring_up_to_date


async def test_a_sound_database_in_use(tmp_path: Path) -> None:
    async with open_store(tmp_path, Environment()) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
        assert quick_check(tmp_path / FILE_NAME, 10) == QuickCheck(newest_known(), "", finished=True)


async def test_a_look_ends_in_time(tmp_path: Path) -> None:
    async with open_store(tmp_path, Environment(), inline=True):
        assert quick_check(tmp_path / FILE_NAME, -1, steps=1) == QuickCheck(newest_known(), "", finished=False)


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"nothing of the kind" * 100)
    assert quick_check(tmp_path / FILE_NAME, 10).damage.startswith("cannot be read: ")
    assert quick_check(tmp_path / "gone", 10).damage.startswith("cannot be read: ")


async def damaged(tmp_path: Path) -> Path:
    async with open_store(tmp_path, Environment(), inline=True) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
    path = tmp_path / FILE_NAME
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    return path


async def test_a_start_refuses_what_is_damaged(tmp_path: Path) -> None:
    """A server does; the shell's commands do not look, for they are to be quick."""
    path = await damaged(tmp_path)
    with pytest.raises((Damaged, apsw.CorruptError)):
        bring_up_to_date(path, 0, is_server=True)
    bring_up_to_date(path, 0, is_server=False)


async def test_a_look_at_the_start_ends_in_time(tmp_path: Path) -> None:
    path = await damaged(tmp_path)
    connection = open_writer(path)
    try:
        with pytest.raises(Damaged, match="the database is damaged: "):
            refuse_damaged(connection, 10)
        refuse_damaged(connection, -1, steps=1)
        count = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT count(*) FROM n"
        assert connection.execute(count).fetchall() == [(1000,)]
    finally:
        connection.close()
