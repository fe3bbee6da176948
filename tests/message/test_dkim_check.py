"""DKIM signatures of received mail: those that dkimpy makes pass, and nothing that was changed; keys are bounded."""

import binascii
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from appliance.keys.dkim_keys import generate, record_value
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.message.dkim_check import CHECKED_SIGNATURES, signatures_of, verdict
from tests.message.dkimpy import dkim as oracle

HEADER = b"From: Ada <ada@example.net>\r\nTo:  bob@example.com \r\nSubject: Hello\r\n\t there\r\n"
MAIL = HEADER + b"\r\nHow  are you? \r\n\r\n\r\n"
RSA = rsa.generate_private_key(65_537, 1_024)
PEM = RSA.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def record_of(key: rsa.RSAPrivateKey, **tags: str) -> str:
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "; ".join(
        f"{name}={value}"
        for name, value in {"v": "DKIM1", "p": binascii.b2a_base64(der).decode().strip(), **tags}.items()
    )


RECORD = record_of(RSA)


def signed(mime: bytes = MAIL, **options: Any) -> bytes:
    return bytes(oracle.sign(mime, b"s", b"example.net", PEM, **options)) + mime


def result(mime: bytes, *records: str, now: int = 1_800_000_000) -> tuple[str, str]:
    (signature,) = signatures_of(mime)
    found, reason = verdict(signature, records, now)
    return found.value, reason


@pytest.mark.parametrize("header", [b"simple", b"relaxed"])
@pytest.mark.parametrize("body", [b"simple", b"relaxed"])
@pytest.mark.parametrize(
    "mime", [MAIL, MAIL + b"x" * 200_000 + b"\r\n", b"From: a@b.c\r\n\r\n", b"From: a@b.c\r\n\r\n\r\n\r\n"]
)
def test_what_dkimpy_signs(header: bytes, body: bytes, mime: bytes) -> None:
    assert result(signed(mime, canonicalize=(header, body)), RECORD) == ("pass", "")


def test_our_own_signatures() -> None:
    keys = [SigningKey("example.net", f"s-{kind}", kind, generate(kind)) for kind in Algorithm]
    for key, signature in zip(keys, signatures_of(sign(MAIL, keys, now_seconds=1) + MAIL), strict=True):
        assert signature.key_name == f"{key.selector}._domainkey.example.net"
        assert verdict(signature, [record_value(key.key)], 2) == ("pass", "")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda mime: mime.replace(b"Ada", b"Eve"), "fail"),
        (lambda mime: mime.replace(b"How", b"Who"), "fail"),
        (lambda mime: mime.replace(b"bh=", b"bh=AAAA"), "fail"),
        (lambda mime: mime.replace(b"v=1;", b"v=2;"), "permerror"),
        (lambda mime: mime.replace(b"rsa-sha256", b"rsa-sha1"), "permerror"),
        (lambda mime: mime.replace(b"d=example.net;", b""), "permerror"),
        (lambda mime: mime.replace(b"s=s;", b"s=s; s=t;"), "permerror"),
        (lambda mime: mime.replace(b"s=s;", b"s=s; l=9999;"), "permerror"),
        (lambda mime: mime.replace(b"s=s;", b"s=s; i=@other.example;"), "permerror"),
        (lambda mime: mime.replace(b"s=s;", b"s=s; q=http;"), "permerror"),
        (lambda mime: mime.replace(b"h=", b"h=x:" * 1).replace(b"from", b"xrom"), "permerror"),
        (lambda mime: mime.replace(b"v=1;", b"v=1; \xff=1;"), "permerror"),
        (lambda mime: mime.replace(b"v=1;", b"v=1; z=" + b"x" * 20_000 + b";"), "permerror"),
    ],
)
def test_what_was_changed(change: Any, found: str) -> None:
    mime = change(signed())
    assert mime != signed()
    assert result(mime, RECORD)[0] == found


@pytest.mark.parametrize(
    "record",
    [
        "", "v=DKIM1; p=", "v=DKIM2; p=x", "v=DKIM1; p=!!!", "v=DKIM1; k=ed25519; p=AAAA", "nonsense", "p" * 5_000,
        record_of(RSA, h="sha1"), record_of(RSA, s="tlsrpt"),
        record_of(rsa.generate_private_key(65_537, 1_024)).replace("p=", "p=A"),
    ],
)  # fmt: skip
def test_keys_that_are_not_accepted(record: str) -> None:
    assert result(signed(), record)[0] == "permerror"
    assert result(signed())[0] == "permerror"


def test_the_size_of_a_key_is_bounded() -> None:
    """A small key proves nothing, and a large one or a large exponent only costs time."""
    numbers = rsa.RSAPublicNumbers(2**64 + 13, (1 << 8_191) + 1).public_key()
    der = numbers.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert result(signed(), f"p={binascii.b2a_base64(der).decode().strip()}")[0] == "permerror"


def test_an_expired_signature() -> None:
    mime = signed().replace(b"s=s;", b"s=s; x=1900000000;")
    assert result(mime, RECORD, now=1_900_000_001) == ("fail", "the signature has expired")


def test_few_signatures_are_checked() -> None:
    field = signed()[: -len(MAIL)]
    assert len(signatures_of(field * (CHECKED_SIGNATURES + 3) + MAIL)) == CHECKED_SIGNATURES


def test_a_key_that_must_not_sign_for_subdomains() -> None:
    mime = signed(identity=b"@sub.example.net")
    assert result(mime, RECORD)[0] == "pass"
    assert result(mime, record_of(RSA, t="s"))[0] == "permerror"
