"""Below the larger of two watermarks new mail is refused."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.environment import Environment
from appliance.intake.limits import SPACE_CHECK_INTERVAL, FreeSpace

GIB = 1024**3


@dataclass
class Disk:
    """A disk of a size and with room as tests say, and a clock."""

    total: int = 100 * GIB
    free: int = 50 * GIB
    now: int = 1_700_000_000_000_000
    looks: int = 0

    def statvfs(self, _: object) -> os.statvfs_result:
        """What the system would tell."""
        self.looks += 1
        block = 4096
        return os.statvfs_result((block, block, self.total // block, 0, self.free // block, 0, 0, 0, 0, 255))

    def pass_time(self) -> None:
        """Let the last look grow old."""
        self.now += SPACE_CHECK_INTERVAL


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk that everything lies on: no real one can be filled by a test."""
    made = Disk()
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    return made


def space(disk: Disk, min_bytes: int = GIB, min_percent: float = 10) -> FreeSpace:
    """The watcher."""
    return FreeSpace(Path("data"), min_bytes, min_percent, Environment(now=lambda: disk.now))


@pytest.mark.parametrize(
    ("total", "free", "low"),
    [
        (100 * GIB, 11 * GIB, False),
        (100 * GIB, 9 * GIB, True),  # under ten percent
        (5 * GIB, 2 * GIB, False),
        (5 * GIB, GIB - 4096, True),  # under a gibibyte, though it is a fifth
    ],
)
def test_the_larger_mark_counts(disk: Disk, total: int, free: int, low: bool) -> None:
    """Both a size and a share must be free."""
    disk.total, disk.free = total, free
    assert space(disk).low() is low


def test_the_marks_can_be_turned_off(disk: Disk) -> None:
    """Without a size nothing is looked at; without a share only the size counts."""
    disk.free = 0
    assert space(disk, min_bytes=0).low() is False
    assert disk.looks == 0
    disk.free = 2 * GIB
    assert space(disk, min_percent=0).low() is False


def test_a_look_is_good_for_a_second(disk: Disk) -> None:
    """Requests share a look, and a disk that fills up or empties is seen with the next."""
    watched = space(disk)
    for _ in range(1000):
        assert watched.low() is False
    assert disk.looks == 1
    disk.free = 0
    assert watched.low() is False
    disk.pass_time()
    assert watched.low() is True
    disk.free = 50 * GIB
    disk.pass_time()
    assert watched.low() is False


def test_the_log_tells_when_it_begins_and_when_it_ends(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """One line each, with the figures and at the end how long it was; a watermark turned off ends it, too."""
    watched = space(disk)

    def told(free: int, looks: int = 3) -> list[tuple[str, str, int, int]]:
        disk.free = free
        caplog.clear()
        for _ in range(looks):
            disk.pass_time()
            watched.low()
        found = [(record, getattr(record, "fields", {})) for record in caplog.records]
        return [
            (each.levelname, each.message.split(":")[0], of["free_bytes"], of["needed_bytes"]) for each, of in found
        ]

    caplog.set_level("INFO", "appliance")
    assert told(50 * GIB) == []
    assert told(9 * GIB) == [("WARNING", "low on disk space", 9 * GIB, 10 * GIB)]
    assert told(8 * GIB) == []
    assert told(11 * GIB) == [("INFO", "enough disk space again", 11 * GIB, 10 * GIB)]
    assert getattr(caplog.records[0], "fields", {})["seconds"] == 6
    assert len(told(0)) == 1
    watched.min_bytes = 0
    assert told(0) == [("INFO", "enough disk space again", 0, 0)]
    assert told(0) == []


def test_a_clock_that_jumps_back_is_no_excuse(disk: Disk) -> None:
    """A look from the future is as old as one from long ago."""
    watched = space(disk)
    assert watched.low() is False
    disk.free = 0
    disk.now -= 2 * 86_400_000_000
    assert watched.low() is True


def test_a_real_disk_can_be_looked_at(tmp_path: Path) -> None:
    """The numbers come from the file system the database lies on."""
    env = Environment()
    assert FreeSpace(tmp_path, 1, 0, env).low() is False
    assert FreeSpace(tmp_path, 2**62, 0, env).low() is True
