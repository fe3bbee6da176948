"""How many bytes an account may keep: a size, or a share of all that mail may fill."""

import os
from pathlib import Path

import pytest

from appliance.config.values import MIB, Share
from appliance.intake.quota import LEAST, LOOK_EVERY, Quota, share_of
from appliance.outside import Outside
from appliance.system.free_space import FreeSpace

GIB = 1024 * MIB


def quota(directory: Path, setting: Share, *, min_bytes: int = 0, min_percent: int = 0, now: list[int]) -> Quota:
    """A quota for a database in this directory."""
    return Quota(setting, FreeSpace(directory, min_bytes, min_percent, Outside(now=lambda: now[0])))


def test_a_size_is_that_size_and_0_none(tmp_path: Path) -> None:
    """Neither asks the file system."""
    nowhere = tmp_path / "nowhere"
    assert quota(nowhere, Share(bytes=5 * GIB), now=[0]).bytes() == 5 * GIB
    assert quota(nowhere, Share(), now=[0]).bytes() is None


@pytest.mark.parametrize(("fillable", "expected"), [(100 * GIB, 25 * GIB), (1, LEAST), (-5 * GIB, LEAST)])
def test_a_share_is_of_what_mail_may_fill(fillable: int, expected: int) -> None:
    """On a disk that is nearly full already an account still has the least there is."""
    assert share_of(25, fillable) == expected


def test_what_the_database_takes_counts_as_free(tmp_path: Path) -> None:
    """An account's own mail does not make its quota smaller, and the watermark is not for it."""
    facts = os.statvfs(tmp_path)
    free = facts.f_bavail * facts.f_frsize
    empty = quota(tmp_path, Share(percent=50), now=[0]).bytes()
    assert empty == pytest.approx(free // 2, rel=0.05)
    with (tmp_path / "appliance.db").open("wb") as database:
        database.truncate(100 * GIB)  # a hole: nothing is written
    full = quota(tmp_path, Share(percent=50), now=[0]).bytes()
    assert full == pytest.approx(free // 2 + 50 * GIB, rel=0.05)
    below = quota(tmp_path, Share(percent=50), min_bytes=60 * GIB, now=[0]).bytes()
    assert below == pytest.approx(free // 2 + 20 * GIB, rel=0.05)


def test_it_looks_now_and_then_and_after_a_reload(tmp_path: Path) -> None:
    """Most messages cost no system call; another setting counts at once."""
    now = [1_000_000_000]
    limit = quota(tmp_path, Share(percent=50), now=now)
    first = limit.bytes()
    with (tmp_path / "appliance.db").open("wb") as database:
        database.truncate(100 * GIB)
    assert limit.bytes() == first
    now[0] += LOOK_EVERY
    assert limit.bytes() != first
    limit.adopt(Share(bytes=7))
    assert limit.bytes() == 7
