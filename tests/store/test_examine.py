"""In charge of a look at a database that may be in use: what it finds, and that it ends in time."""

from pathlib import Path

import pytest

from appliance.outside import Outside
from appliance.store import FILE_NAME, examine, open_store
from appliance.store.examine import LookedOver, look_over
from appliance.store.migrate import newest_known


async def test_a_sound_database_in_use(tmp_path: Path) -> None:
    """Looked at beside the server."""
    async with open_store(tmp_path, Outside()) as store:
        await store.accounts.create("demo", "demo@example.org", "hash")
        assert look_over(tmp_path / FILE_NAME, 10) == LookedOver(newest_known(), "", finished=True)


async def test_a_look_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not looked at by then is neither called sound nor damaged."""
    monkeypatch.setattr(examine, "LOOK_EVERY", 1)
    async with open_store(tmp_path, Outside(), inline=True):
        assert look_over(tmp_path / FILE_NAME, -1) == LookedOver(newest_known(), "", finished=False)


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    """And what is not there at all."""
    (tmp_path / FILE_NAME).write_bytes(b"nothing of the kind" * 100)
    assert look_over(tmp_path / FILE_NAME, 10).damage.startswith("cannot be read: ")
    assert look_over(tmp_path / "gone", 10).damage.startswith("cannot be read: ")
