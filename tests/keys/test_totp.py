"""TOTP: the vectors of the RFC, another implementation, and what makes a code good."""

import base64
import subprocess
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from appliance.environment import Environment
from appliance.keys.keyfile import UnsealError
from appliance.keys.totp import RECOVERY_CODES, STEP, TotpSecrets, code_of, is_totp_code, key_uri, plain_code, step_of
from appliance.times import SECOND
from tests.programs import needs, require

SECRET = b"12345678901234567890"  # of RFC 4226 Appendix D and RFC 6238 Appendix B
KEY = bytes(range(32))
NOW = 1_234_567_890 * SECOND


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (59, "94287082"),
        (1_111_111_109, "07081804"),
        (1_111_111_111, "14050471"),
        (1_234_567_890, "89005924"),
        (2_000_000_000, "69279037"),
        (20_000_000_000, "65353130"),
    ],
)
def test_the_vectors_of_rfc_6238(at: int, code: str) -> None:
    """Appendix B, SHA-1: eight digits there, of which ours are the last six."""
    assert code_of(SECRET, at // 30, digits=8) == code
    assert code_of(SECRET, at // 30) == code[2:]


@pytest.mark.parametrize(
    ("counter", "code"), [(0, "755224"), (1, "287082"), (2, "359152"), (3, "969429"), (4, "338314"), (9, "520489")]
)
def test_the_vectors_of_rfc_4226(counter: int, code: str) -> None:
    """Appendix D."""
    assert code_of(SECRET, counter) == code


@needs("oathtool")
def test_oathtool_makes_the_same_codes() -> None:
    """A program that others wrote agrees, for new secrets as we show them."""
    secrets = TotpSecrets(KEY, Environment())
    for number in range(5):
        shown, _ = secrets.fresh("usr_1")
        at = 1_700_000_000 + 977 * number
        command = [require("oathtool"), "--totp", "--base32", f"--now=@{at}", shown]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert code_of(base64.b32decode(shown), at // 30) == told


def test_a_code_is_good_one_step_around() -> None:
    """Of the step before, now, and after; none that is further away, and nothing that is no code."""
    current = NOW // STEP
    for away in range(-3, 4):
        expected = current + away if abs(away) <= 1 else None
        assert step_of(SECRET, code_of(SECRET, current + away), NOW) == expected
    assert step_of(SECRET, "", NOW) is None
    assert step_of(SECRET, "é" * 6, NOW) is None


def test_a_sealed_secret_belongs_to_its_user() -> None:
    """It is read for its own user under the same key, and else not at all; what is stored does not show it."""
    secrets = TotpSecrets(KEY, Environment(now=lambda: NOW))
    shown, sealed = secrets.fresh("usr_1")
    raw = base64.b32decode(shown)
    assert len(raw) == 20
    assert raw not in sealed
    code = code_of(raw, NOW // STEP)
    assert secrets.step_of("usr_1", sealed, code) == NOW // STEP
    with pytest.raises(UnsealError):
        secrets.step_of("usr_2", sealed, code)
    with pytest.raises(UnsealError):
        TotpSecrets(bytes(32), Environment()).step_of("usr_1", sealed, code)
    assert KEY.hex() not in repr(secrets)


def test_recovery_codes_are_long_and_read_in_any_form() -> None:
    """Ten different ones of 80 bits, never taken for a code of the app."""
    codes = TotpSecrets(KEY, Environment()).recovery_codes()
    assert len(set(codes)) == RECOVERY_CODES
    for code in codes:
        assert len(plain_code(code)) == 16
        assert plain_code(f" {code.upper().replace('-', ' ')}\n") == plain_code(code)
        assert not is_totp_code(plain_code(code))
    assert is_totp_code(plain_code("123 456"))
    assert not is_totp_code("١٢٣٤٥٦")  # digits, of another script


def test_the_uri_names_everything_once() -> None:
    """Issuer and user are in the label, and what the app must know in the query."""
    uri = key_uri("ABC", "mail & more.example", "ann+b@example.org")
    parts = urlsplit(uri)
    assert (parts.scheme, parts.netloc) == ("otpauth", "totp")
    assert unquote(parts.path) == "/mail & more.example:ann+b@example.org"
    assert dict(parse_qsl(parts.query)) == {
        "secret": "ABC",
        "issuer": "mail & more.example",
        "algorithm": "SHA1",
        "digits": "6",
        "period": "30",
    }
    assert "+" not in parts.query  # which some apps show as it is
