"""DKIM keys: what is made can be kept, published and named."""

import base64
import re

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
)
from hypothesis import given
from hypothesis import strategies as st

from appliance.keys.dkim_keys import KeyUnusable, from_der, generate, new_selector, record_value, to_der
from appliance.message.dkim import Algorithm, SigningKey, algorithm_of, sign

NOON = 1_794_700_800  # seconds; Sun, 15 Nov 2026 00:00:00 UTC


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_key_comes_back_from_its_bytes(algorithm: Algorithm) -> None:
    """A key that was written and read is the same key and signs the same."""
    key = generate(algorithm)
    back = from_der(to_der(key))
    assert algorithm_of(key) is algorithm_of(back) is algorithm
    assert record_value(back) == record_value(key)
    message = b"From: a@example.com\r\n\r\nx\r\n"
    made = [sign(message, [SigningKey("example.com", "s", algorithm, each)], now_seconds=NOON) for each in (key, back)]
    assert made[0] == made[1]


def test_new_keys_differ() -> None:
    """No key is made twice."""
    assert len({to_der(generate(Algorithm.ED25519)) for _ in range(20)}) == 20


def test_rsa_record() -> None:
    """The record of an RSA key holds its public half, of 2048 bits, and needs two strings."""
    key = generate(Algorithm.RSA)
    value = record_value(key)
    found = re.fullmatch(r"v=DKIM1; k=rsa; p=([A-Za-z0-9+/]+=*)", value)
    assert found
    public = load_der_public_key(base64.b64decode(found[1]))
    assert isinstance(public, rsa.RSAPublicKey)
    assert public == key.public_key()
    assert (public.key_size, public.public_numbers().e) == (2048, 65537)


def test_ed25519_record() -> None:
    """The record of the key of RFC 8463 A.2 is the one given there."""
    secret = base64.b64decode("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    value = record_value(Ed25519PrivateKey.from_private_bytes(secret))
    assert value == "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def test_selectors() -> None:
    """A selector tells kind and day, is a legal label, and never one that is taken."""
    assert new_selector(Algorithm.RSA, NOON) == "ma-rsa-20261115"
    assert new_selector(Algorithm.ED25519, NOON - 1) == "ma-ed25519-20261114"
    taken: list[str] = []
    for _ in range(12):
        taken.append(new_selector(Algorithm.RSA, NOON, taken))
    assert taken[:3] == ["ma-rsa-20261115", "ma-rsa-20261115-2", "ma-rsa-20261115-3"]
    assert len(set(taken)) == 12
    assert all(re.fullmatch(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])", each) for each in taken)


def test_unusable_keys() -> None:
    """A short RSA key, a key of another kind, a locked one and anything that is no key are refused."""
    pkcs8 = (Encoding.DER, PrivateFormat.PKCS8)
    short = rsa.generate_private_key(65537, 1024).private_bytes(*pkcs8, NoEncryption())
    curve = ec.generate_private_key(ec.SECP256R1()).private_bytes(*pkcs8, NoEncryption())
    good = generate(Algorithm.ED25519)
    locked = good.private_bytes(*pkcs8, BestAvailableEncryption(b"x"))
    for data in (short, curve, locked, b"", b"\x30\x00", to_der(good)[:-1]):
        with pytest.raises(KeyUnusable):
            from_der(data)


@given(st.binary(max_size=100))
def test_noise_is_no_key(data: bytes) -> None:
    """Random bytes are refused in the one way a caller knows."""
    with pytest.raises(KeyUnusable):
        from_der(data)
