"""A disk without room at single writes and syncs (threats.md 25); `sh packaging/torture` has the errors of a disk."""

import json
import resource
from pathlib import Path

import pytest

from appliance.store import FILE_NAME
from tests.e2e.storms.failing_disk import SYNCS, WRITES, failing
from tests.e2e.storms.senders import Senders
from tests.running_appliance import Running, appliance

pytestmark = pytest.mark.sqlite_only

CREDIT = 1_000_000
AT_ONCE = 4  # senders, so that no more of them share a sync
FOR_NOW = {"503 temporary_failure to be retried", "503 service_unavailable to be retried"}

UNSYNCED = "the database could not be synced"


def log_of(running: Running) -> Path:
    return running.data_dir / f"{FILE_NAME}-wal"


def last_line(running: Running) -> dict[str, str]:
    return dict(json.loads(running.log_file.read_text().splitlines()[-1]))


def check_the_end(running: Running, senders: Senders, reason: str) -> None:
    """It ended by itself, saying why, and what it acknowledged is on disk."""
    assert running.wait() == 1
    line = last_line(running)
    assert line["event"] == "storage failed; a restart continues from the data on disk"
    assert reason in line["reason"]
    assert "Traceback" not in running.log_file.read_text()
    assert set(senders.refused) <= FOR_NOW
    senders.check_all_are_there(running)


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_no_room_for_some_writes(tmp_path: Path, error: str) -> None:
    """Room that is missing for a while, on the disk or within a quota, at whatever place in a commit, ends nothing."""
    with appliance(tmp_path, credit=CREDIT) as running:
        senders = Senders(size=1_000)
        for first in (1, 40):
            with failing(running, WRITES, error, f"{first}..{first + 30}", only=log_of(running)):
                senders.send_until_refused(running, web=2, smtp=1)
                senders.accepted_again_within(running)
            assert set(senders.refused) == {"503 temporary_failure to be retried", "451 4.3.0"}
            senders.refused.clear()
        senders.check_all_are_delivered(running, CREDIT)
        assert running.terminate() == 0


def test_a_sync_that_finds_no_quota(tmp_path: Path) -> None:
    """A file system that counts only when it writes back tells it at the sync: then it is unknown what is on disk."""
    senders = Senders(size=1_000)
    with appliance(tmp_path, credit=CREDIT) as running:
        with failing(running, SYNCS, "EDQUOT", "5+", only=log_of(running)):
            senders.send_until_gone(running, web=AT_ONCE)
        check_the_end(running, senders, UNSYNCED)


def test_a_limit_of_the_size_of_files(tmp_path: Path) -> None:
    """The system itself refuses to let the log grow: mail is refused, and accepted again once the limit is lifted."""
    with appliance(tmp_path, credit=CREDIT) as running:
        senders = Senders(size=20_000)
        senders.accepted_again_within(running)
        unlimited = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (log_of(running).stat().st_size + 100_000, unlimited[1]))
        senders.send_until_refused(running)
        assert set(senders.refused) == {"503 temporary_failure to be retried", "451 4.3.0"}
        assert running.is_alive()
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, unlimited)
        senders.accepted_again_within(running)
        senders.check_all_are_delivered(running, CREDIT)
        assert running.terminate() == 0
