"""Private files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from appliance.system.data_directory import write_private_file


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader that has the old one open still reads the old one; the new one is private under any umask."""
    file = tmp_path / "state.json"
    file.write_bytes(b"old")
    before = os.umask(0)
    try:
        with file.open("rb") as opened:
            write_private_file(file, b"new")
            assert opened.read() == b"old"
    finally:
        os.umask(before)
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk shows at the sync; what a crash left lying about is no obstacle afterwards."""
    file = tmp_path / "state.json"
    write_private_file(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_private_file(file, b"new")
    assert file.read_bytes() == b"old"
    write_private_file(file, b"newer")
    assert file.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [file]
