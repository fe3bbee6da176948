"""A database whose bytes are not what was written (threats.md 25): one line that says what to do, and no guesses."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.store import FILE_NAME
from tests.e2e.storms.senders import Senders
from tests.e2e.storms.small_disk import MIB
from tests.restarted_appliance import often_started
from tests.running_appliance import Running, appliance

pytestmark = pytest.mark.sqlite_only

PAGE = 4096
MENDED_BY = "then restore the last good backup: appliance restore FILE --force"


def overwrite(file: Path, first: int) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(first * PAGE)
        opened.write(os.urandom(size - first * PAGE))


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 // PAGE * PAGE)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "its first page": lambda file: overwrite(file, 0),
    "all other pages": lambda file: overwrite(file, 1),
    "the last pages": lambda file: overwrite(file, file.stat().st_size // PAGE - 8),
    "half of it": cut_off,
}


@pytest.fixture
def used(tmp_path: Path) -> Running:
    with appliance(tmp_path) as running:
        senders = Senders(size=1_000)
        for _ in range(30):
            assert senders.post(running).status == 202
        assert running.terminate() == 0
    return running


def said(running: Running) -> list[str]:
    return running.log_file.read_text().splitlines()


def test_a_start_on_a_damaged_file_is_one_line(used: Running) -> None:
    file = used.data_dir / FILE_NAME
    whole = file.read_bytes()
    with often_started(used) as again:
        for name, damage in DAMAGES.items():
            file.write_bytes(whole)
            damage(file)
            damaged = file.read_bytes()
            before = len(said(used))
            with used.log_file.open("ab") as log:
                again.spawn(log)
            assert again.wait() == 1, name
            (line,) = said(used)[before:]
            reason = json.loads(line)["reason"]
            assert reason.startswith(f"{file}: the database is damaged ("), name
            assert reason.endswith(MENDED_BY)
            assert file.read_bytes() == damaged, name


def test_damage_that_is_met_while_it_runs_ends_it(used: Running) -> None:
    """Nothing is acknowledged on damaged pages: it ends with 1, says what to do, and does not start again."""
    used.start()
    overwrite(used.data_dir / FILE_NAME, 1)
    senders = Senders(size=MIB)  # too large to be written without a look at the file
    try:
        senders.send_until_gone(used)
        assert used.wait() == 1
    finally:
        used.kill()
    assert senders.acknowledged == []
    assert set(senders.refused) <= {"503 temporary_failure to be retried", "503 service_unavailable to be retried"}
    assert json.loads(said(used)[-1])["event"].endswith(MENDED_BY)
    assert "Traceback" not in used.log_file.read_text()
