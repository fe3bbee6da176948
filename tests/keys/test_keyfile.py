"""The key file is made once, whole, and never replaced; sealed secrets open with the same key and context only."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.keys.keyfile import KEY_BYTES, KEY_FILE, KeyFileError, UnsealError, derive, load_or_create, seal, unseal

KEY = derive(bytes(32), "dkim")
CONTEXT = b"signing_key/7"


def test_the_key_is_made_at_the_first_start_and_stays(tmp_path: Path) -> None:
    key = load_or_create(tmp_path / "data")
    assert len(key) == KEY_BYTES
    assert load_or_create(tmp_path / "data") == key
    assert load_or_create(tmp_path / "other") != key


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
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
    with pytest.raises(KeyFileError, match="Restore the file from the backup"):
        load_or_create(tmp_path)
    assert (tmp_path / KEY_FILE).read_bytes() == content


def test_a_start_that_was_killed_half_way_is_made_good(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).with_suffix(".new").write_bytes(b"half")
    assert len(load_or_create(tmp_path)) == KEY_BYTES


def test_two_that_start_together_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    key = bytes(range(KEY_BYTES))
    assert derive(key, "tokens") == derive(key, "tokens")
    assert len({derive(key, "tokens"), derive(key, "secrets"), derive(key[::-1], "tokens"), key}) == 4
    assert len(derive(key, "tokens")) == KEY_BYTES


# ---- sealed secrets


@given(st.binary(max_size=3000), st.binary(max_size=50))
def test_what_is_sealed_comes_back(plaintext: bytes, context: bytes) -> None:
    sealed = seal(KEY, plaintext, context)
    assert unseal(KEY, sealed, context) == plaintext
    assert len(sealed) == len(plaintext) + 29
    assert len(plaintext) < 8 or plaintext not in sealed


def test_layout() -> None:
    """Version 1 is always readable: a secret that was sealed with it opens."""
    sealed = bytes.fromhex("01092710bc8bfb3d821d3dae99cedef80219d0e0918ea2752704a14866ca247ce349a1")
    assert unseal(bytes(range(32)), sealed, b"context") == b"secret"


def test_no_two_are_alike() -> None:
    assert len({seal(KEY, b"secret", CONTEXT) for _ in range(50)}) == 50


@given(st.data())
def test_a_changed_octet_is_noticed(data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, b"secret", CONTEXT))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnsealError):
        unseal(KEY, bytes(sealed), CONTEXT)


@given(st.binary(max_size=64))
def test_noise_and_pieces(noise: bytes) -> None:
    sealed = seal(KEY, b"secret", CONTEXT)
    for bad in (noise, b"\x01" + noise, sealed[: len(noise) % len(sealed)], sealed + b"\x00"):
        with pytest.raises(UnsealError):
            unseal(KEY, bad, CONTEXT)


def test_other_context_and_other_key() -> None:
    sealed = seal(KEY, b"secret", CONTEXT)
    for key, context in ((KEY, b"signing_key/8"), (KEY, b""), (derive(bytes(32), "other"), CONTEXT)):
        with pytest.raises(UnsealError):
            unseal(key, sealed, context)


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33])
def test_only_keys_of_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        seal(bytes(length), b"secret", CONTEXT)
    with pytest.raises(ValueError, match="32 bytes"):
        unseal(bytes(length), bytes(60), CONTEXT)
