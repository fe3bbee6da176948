"""Signed requests: another library verifies them, and numbers are written in full."""

import hashlib
import json

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from appliance.acme.messages import base64url, new_key, public_jwk, read_key, signed, thumbprint
from appliance.tls.certificate import private_pem
from tests.acme.authority import decoded


@pytest.mark.parametrize("secret", range(1, 600, 7))
def test_any_key_and_signature_verifies(secret: int) -> None:
    """Small coordinates and small halves of a signature keep their zeros: PyJWT accepts every one."""
    key = ec.derive_private_key(secret, ec.SECP256R1())
    parts = json.loads(signed(key, "https://ca.test/x", "n", {"a": 1}, None))
    compact = ".".join((parts["protected"], parts["payload"], parts["signature"]))
    assert json.loads(jwt.PyJWS().decode(compact, key.public_key(), algorithms=["ES256"])) == {"a": 1}
    assert {len(decoded(public_jwk(key)[half])) for half in "xy"} == {32}


def test_who_asks_is_the_key_or_the_account_never_both() -> None:
    """RFC 8555 6.2: jwk before there is an account, kid after it."""
    key = new_key()
    first, later = (
        json.loads(decoded(json.loads(signed(key, "u", "n", None, account))["protected"])) for account in (None, "acc")
    )
    assert first == {"alg": "ES256", "nonce": "n", "url": "u", "jwk": public_jwk(key)}
    assert later == {"alg": "ES256", "nonce": "n", "url": "u", "kid": "acc"}


def test_reading_has_an_empty_payload_and_answering_an_empty_object() -> None:
    """POST-as-GET is no `{}` (RFC 8555 6.3), and an answered challenge is no empty payload (7.5.1)."""
    said: list[dict[str, object] | None] = [None, {}]
    payloads = [json.loads(signed(new_key(), "u", "n", each, "acc"))["payload"] for each in said]
    assert payloads == ["", base64url(b"{}")]


def test_the_thumbprint_is_the_one_of_rfc_7638() -> None:
    """By its rules: required members in order, no spaces, SHA-256; here for the curve's own base point."""
    key = ec.derive_private_key(1, ec.SECP256R1())
    x, y = "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY", "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"
    text = f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'
    assert decoded(thumbprint(key)) == hashlib.sha256(text.encode()).digest()


def test_only_a_key_of_ours_is_read() -> None:
    """Another kind of key, an encrypted one and rubbish are refused as one kind of error."""
    key = new_key()
    assert read_key(private_pem(key)).private_numbers() == key.private_numbers()
    others: list[rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP384R1()),
    ]
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    wrong = [each.private_bytes(encoding, form, serialization.NoEncryption()) for each in others]
    wrong += [key.private_bytes(encoding, form, serialization.BestAvailableEncryption(b"x")), b"", b"rubbish"]
    for pem in wrong:
        with pytest.raises(ValueError, match=r"."):
            read_key(pem)
