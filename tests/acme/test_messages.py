"""The messages of ACME: waits, texts that are safe to show, and signatures that another library verifies."""

import hashlib
import json

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from appliance.acme.messages import (
    DETAIL_LIMIT,
    MAX_RETRY_AFTER,
    Problem,
    base64url,
    explain,
    new_key,
    public_jwk,
    read_key,
    retry_after_seconds,
    signed,
    thumbprint,
)
from appliance.tls.certificate import private_pem
from tests.acme.authority import decoded

NOW = 1_794_700_000.0  # 2026-11-14 23:46:40


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("99999999999999999999", MAX_RETRY_AFTER),
        ("Sat, 14 Nov 2026 23:47:40 GMT", 60.0),
        ("Sat, 14 Nov 2026 23:00:00 GMT", 0.0),
        ("Sat, 14 Nov 2026 23:47:40 -0000", 60.0),
        ("-5", None),
        ("²", None),
        ("soon", None),
        ("", None),
    ],
)
def test_how_long_to_wait(value: str, seconds: float | None) -> None:
    assert retry_after_seconds(value, NOW) == seconds


def test_a_detail_cannot_drive_a_terminal() -> None:
    failed = explain(Problem("urn:ietf:params:acme:error:caa", "a\x1b[31m\r\nb\u202e " + "x" * 9999), ["a.test"])
    assert str(failed).isprintable()
    assert str(failed).endswith("…")
    assert len(str(failed)) < DETAIL_LIMIT + 100


def test_braces_in_a_name_or_detail_stay_as_they_are() -> None:
    failed = explain(Problem("urn:ietf:params:acme:error:dns", "{0} {x}"), ["{0}.test"])
    assert "{0}.test" in str(failed)
    assert str(failed).endswith("{0} {x}")


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
    key = ec.derive_private_key(1, ec.SECP256R1())
    x, y = "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY", "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"
    text = f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'
    assert decoded(thumbprint(key)) == hashlib.sha256(text.encode()).digest()


def test_only_a_key_of_ours_is_read() -> None:
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
