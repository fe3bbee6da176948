"""Sealed secrets: they open with the same key and context, and in no other way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.keys.keyfile import derive
from appliance.keys.sealing import UnsealError, seal, unseal

KEY = derive(bytes(32), "dkim")
CONTEXT = b"signing_key/7"


@given(st.binary(max_size=3000), st.binary(max_size=50))
def test_what_is_sealed_comes_back(plaintext: bytes, context: bytes) -> None:
    """Any secret comes back whole, and can not be read in its sealed form."""
    sealed = seal(KEY, plaintext, context)
    assert unseal(KEY, sealed, context) == plaintext
    assert len(sealed) == len(plaintext) + 29
    assert len(plaintext) < 8 or plaintext not in sealed


def test_layout() -> None:
    """Version 1 is readable for ever: a secret that was sealed with it opens."""
    sealed = bytes.fromhex("01092710bc8bfb3d821d3dae99cedef80219d0e0918ea2752704a14866ca247ce349a1")
    assert unseal(bytes(range(32)), sealed, b"context") == b"secret"


def test_no_two_are_alike() -> None:
    """Sealing the same secret again gives other bytes, so equal secrets do not show."""
    assert len({seal(KEY, b"secret", CONTEXT) for _ in range(50)}) == 50


@given(st.data())
def test_a_changed_octet_is_noticed(data: st.DataObject) -> None:
    """Whichever octet is changed, version included, the seal is broken."""
    sealed = bytearray(seal(KEY, b"secret", CONTEXT))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnsealError):
        unseal(KEY, bytes(sealed), CONTEXT)


@given(st.binary(max_size=64))
def test_noise_and_pieces(noise: bytes) -> None:
    """Random bytes, a shortened secret and a lengthened one do not open."""
    sealed = seal(KEY, b"secret", CONTEXT)
    for bad in (noise, b"\x01" + noise, sealed[: len(noise) % len(sealed)], sealed + b"\x00"):
        with pytest.raises(UnsealError):
            unseal(KEY, bad, CONTEXT)


def test_other_context_and_other_key() -> None:
    """A secret that was moved to another place, or sealed under another key, does not open."""
    sealed = seal(KEY, b"secret", CONTEXT)
    for key, context in ((KEY, b"signing_key/8"), (KEY, b""), (derive(bytes(32), "other"), CONTEXT)):
        with pytest.raises(UnsealError):
            unseal(key, sealed, context)


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33])
def test_only_keys_of_32_bytes(length: int) -> None:
    """A shorter key, which AES would take, is an error of the caller."""
    with pytest.raises(ValueError, match="32 bytes"):
        seal(bytes(length), b"secret", CONTEXT)
    with pytest.raises(ValueError, match="32 bytes"):
        unseal(bytes(length), bytes(60), CONTEXT)
