"""In charge of the key file: made once, whole, for its owner's eyes, and never replaced."""

import os
import stat
from pathlib import Path

import pytest

from appliance.keys.keyfile import KEY_BYTES, KEY_FILE, KeyFileError, derive, load_or_create


def test_the_key_is_made_at_the_first_start_and_stays(tmp_path: Path) -> None:
    """Every later start finds the same one; another installation has another."""
    key = load_or_create(tmp_path / "data")
    assert len(key) == KEY_BYTES
    assert load_or_create(tmp_path / "data") == key
    assert load_or_create(tmp_path / "other") != key


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Whatever the umask says; and there is nothing left of making it."""
    before = os.umask(0)
    try:
        load_or_create(tmp_path / "data")
    finally:
        os.umask(before)
    (file,) = (tmp_path / "data").iterdir()
    assert file.name == KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"x" * (KEY_BYTES - 1), b"x" * (KEY_BYTES + 1)])
def test_a_damaged_key_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    """A file of the wrong length stops the start: a new key would lose every secret sealed with the old one."""
    (tmp_path / KEY_FILE).write_bytes(content)
    with pytest.raises(KeyFileError, match="restore it from the backup"):
        load_or_create(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == content


def test_a_start_that_was_killed_half_way_is_made_good(tmp_path: Path) -> None:
    """A half-written key under its working name is not taken for one."""
    (tmp_path / KEY_FILE).with_suffix(".new").write_bytes(b"half")
    assert len(load_or_create(tmp_path)) == KEY_BYTES


def test_two_that_start_together_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that makes the key while another is making it ends up with the same."""
    others: list[bytes] = []
    fsync = os.fsync

    def fsync_while_another_starts(descriptor: int) -> None:
        fsync(descriptor)
        monkeypatch.setattr(os, "fsync", fsync)
        others.append(load_or_create(tmp_path))

    monkeypatch.setattr(os, "fsync", fsync_while_another_starts)
    key = load_or_create(tmp_path)
    assert others == [key]
    assert load_or_create(tmp_path) == key


def test_keys_for_different_purposes_have_nothing_in_common() -> None:
    """The same purpose gives the same key, another purpose or installation another."""
    key = bytes(range(KEY_BYTES))
    assert derive(key, "tokens") == derive(key, "tokens")
    assert len({derive(key, "tokens"), derive(key, "secrets"), derive(key[::-1], "tokens"), key}) == 4
    assert len(derive(key, "tokens")) == KEY_BYTES
