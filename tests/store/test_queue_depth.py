"""In charge of counting the queue for whoever watches: right, and within its time."""

import time
from pathlib import Path

import pytest

from appliance.outside import Outside
from appliance.store import FILE_NAME, open_store, queue_depth
from appliance.store.queue_depth import Depth, read_depth
from tests import stored_mail

OUTSIDE = Outside()


async def test_an_empty_queue(tmp_path: Path) -> None:
    """Nothing waits, nothing is overdue, nothing is held."""
    async with open_store(tmp_path, OUTSIDE, inline=True):
        assert read_depth(tmp_path / FILE_NAME, OUTSIDE.now()) == Depth(0, 0, 0, ())


async def test_what_waits_is_counted_simulated_or_not(tmp_path: Path) -> None:
    """Due and deferred apart, and the wait of the first that is due."""
    async with open_store(tmp_path, OUTSIDE, inline=True) as store:
        account = await stored_mail.account(store)
        await stored_mail.defer(
            store, OUTSIDE, await stored_mail.accept(store, OUTSIDE, account, "a@example.net"), seconds=1_000
        )
        first = await stored_mail.accept(store, OUTSIDE, account, "b@example.net", "c@example.net")
        await stored_mail.accept(store, OUTSIDE, account, "d@example.net", simulated=True)
        found = read_depth(tmp_path / FILE_NAME, first.created_at + 60_000_000)
    assert found is not None
    assert (found.due, found.deferred) == (3, 1)
    assert found.overdue == pytest.approx(60, abs=1)


async def test_time_that_runs_out_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that takes longer than its limit is given up."""
    async with open_store(tmp_path, OUTSIDE, inline=True) as store:
        account = await stored_mail.account(store)
        await stored_mail.accept(store, OUTSIDE, account, *(f"a{number}@example.net" for number in range(50)))
        monkeypatch.setattr(queue_depth, "LIMIT", -1.0)
        monkeypatch.setattr(queue_depth, "LOOK_EVERY", 10)
        began = time.monotonic()
        assert read_depth(tmp_path / FILE_NAME, OUTSIDE.now()) is None
        assert time.monotonic() - began < 1


def test_no_database_gives_nothing(tmp_path: Path) -> None:
    """Nor does it create one."""
    assert read_depth(tmp_path / FILE_NAME, 0) is None
    assert not (tmp_path / FILE_NAME).exists()
