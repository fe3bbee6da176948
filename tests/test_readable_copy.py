"""The copy of the program that another user can read, where that user cannot read the checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import __version__
from tests import readable_copy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def forget_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test announce a copy itself; what the run had announced is back after the test."""
    monkeypatch.setenv(readable_copy.VARIABLE, "")
    monkeypatch.delenv(readable_copy.VARIABLE)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Announce the copy for a checkout in a directory of mode 0700, which is that of pytest's own files."""
    forget_the_copy(monkeypatch)
    directory = readable_copy.announce([tmp_path])
    assert directory is not None
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def test_another_user_runs_the_program_from_the_copy(copy: Path) -> None:
    """The copy holds the program and every package that it needs, readable whatever the modes of the checkout are."""
    python = Path(sys._base_executable)  # type: ignore[attr-defined]
    if not readable_copy.others_can_read(Path(os.__file__).parent):
        pytest.skip("only root can read this Python")
    ran = subprocess.run(
        [python, "-S", "-P", "-m", "appliance", "--version"],
        env={"PYTHONPATH": os.pathsep.join(readable_copy.code_paths())},
        cwd="/",
        user="nobody",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"appliance {__version__}\n", "")


def test_one_copy_serves_all_processes_of_a_run(copy: Path) -> None:
    """A second process announces no other copy, and does not make the first one again."""
    code, packages = map(Path, readable_copy.code_paths())
    assert (code.parent, packages.parent) == (copy, copy)
    (code / "appliance" / "mark").touch()
    assert readable_copy.announce([Path("/root")]) is None
    assert readable_copy.code_paths() == [str(code), str(packages)]
    assert (code / "appliance" / "mark").exists()


def test_no_copy_is_announced_if_every_user_can_read_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout below readable directories is used as it is."""
    forget_the_copy(monkeypatch)
    assert readable_copy.announce([Path("/usr/bin")]) is None
    assert readable_copy.code_paths() == []
