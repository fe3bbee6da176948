"""TOTP: the vectors of the RFC, another implementation, and what makes a code good."""

import base64
import dataclasses
import re
import subprocess
import threading
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import trio
import trio.testing

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import (
    HASH_THREADS,
    HASHES_WAITING,
    HASHES_WAITING_PER_CLIENT,
    MAX_PASSWORD_BYTES,
    RECOVERY_CODES,
    STEP,
    PasswordHasher,
    TotpSecrets,
    WebhookSecrets,
    check_new,
    code_of,
    hash_password,
    is_totp_code,
    key_uri,
    password_matches,
    plain_code,
    step_of,
    unmatched_hash,
)
from appliance.model.webhooks import EventType, Webhook
from appliance.times import SECOND
from tests.cpu_time import cpu_seconds
from tests.programs import needs, require

SECRET = b"12345678901234567890"  # of RFC 4226 Appendix D and RFC 6238 Appendix B
KEY = bytes(range(32))
NOW = 1_234_567_890 * SECOND


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (59, "94287082"), (1_111_111_109, "07081804"), (1_111_111_111, "14050471"), (1_234_567_890, "89005924"),
        (2_000_000_000, "69279037"), (20_000_000_000, "65353130"),
    ],
)  # fmt: skip
def test_the_vectors_of_rfc_6238(at: int, code: str) -> None:
    """Appendix B, SHA-1: eight digits there, of which ours are the last six."""
    assert code_of(SECRET, at // 30, digits=8) == code
    assert code_of(SECRET, at // 30) == code[2:]


@pytest.mark.parametrize(
    ("counter", "code"), [(0, "755224"), (1, "287082"), (2, "359152"), (3, "969429"), (4, "338314"), (9, "520489")]
)
def test_the_vectors_of_rfc_4226(counter: int, code: str) -> None:
    assert code_of(SECRET, counter) == code


@needs("oathtool")
def test_oathtool_makes_the_same_codes() -> None:
    secrets = TotpSecrets(KEY, Environment())
    for number in range(5):
        shown, _ = secrets.fresh("usr_1")
        at = 1_700_000_000 + 977 * number
        command = [require("oathtool"), "--totp", "--base32", f"--now=@{at}", shown]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert code_of(base64.b32decode(shown), at // 30) == told


def test_a_code_is_good_one_step_around() -> None:
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
    codes = TotpSecrets(KEY, Environment()).recovery_codes()
    assert len(set(codes)) == RECOVERY_CODES
    for code in codes:
        assert len(plain_code(code)) == 16
        assert plain_code(f" {code.upper().replace('-', ' ')}\n") == plain_code(code)
        assert not is_totp_code(plain_code(code))
    assert is_totp_code(plain_code("123 456"))
    assert not is_totp_code("١٢٣٤٥٦")  # digits, of another script


def test_the_uri_names_everything_once() -> None:
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


def test_a_password_matches_its_hash_only() -> None:
    stored = hash_password("correct horse")
    assert password_matches("correct horse", stored)
    for wrong in ("correct hors", "correct horse ", "Correct horse", ""):
        assert not password_matches(wrong, stored)


def test_a_hash_says_how_it_was_made() -> None:
    for made in (hash_password("x"), unmatched_hash()):
        assert re.fullmatch(r"\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}", made)


def test_a_hash_of_no_password_matches_none() -> None:
    """With the settings of a real one, so that the comparison takes as long."""
    assert not password_matches("unknown user", unmatched_hash())
    assert unmatched_hash() != unmatched_hash()


def test_equal_passwords_have_different_hashes() -> None:
    assert hash_password("x") != hash_password("x")


@pytest.mark.parametrize("password", ["", "pässwörd", "密码", "a\0b", "x" * MAX_PASSWORD_BYTES, "😀" * 256])
def test_any_text_can_be_a_password(password: str) -> None:
    assert password_matches(password, hash_password(password))


def test_a_wrong_password_takes_as_long_as_a_right_one() -> None:
    stored = hash_password("correct horse")

    right = cpu_seconds(lambda: password_matches("correct horse", stored), tries=3)
    wrong = cpu_seconds(lambda: password_matches("wrong", stored), tries=3)
    assert wrong > right / 3
    assert right > wrong / 3
    assert right > 0.005


@pytest.mark.parametrize("password", ["x" * 8, "密" * 8, "x" * MAX_PASSWORD_BYTES, " " * 8])
def test_a_new_password_has_8_characters_to_1024_bytes(password: str) -> None:
    assert check_new(password) == password


@pytest.mark.parametrize(
    "password", ["", "pw", "x" * 7, "x" * (MAX_PASSWORD_BYTES + 1), "ß" * (MAX_PASSWORD_BYTES // 2 + 1)]
)
def test_a_new_password_beyond_that_is_refused(password: str) -> None:
    with pytest.raises(Refused, match=r"^new_password: must have at ") as refused:
        check_new(password, "new_password")
    assert refused.value.code is Code.INVALID_REQUEST


# ---- shared threads


async def test_a_client_with_many_logins_delays_another_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take turns for the threads: one more login is checked next, however many of a flood wait."""
    hashing, begun, may_end = PasswordHasher(), list[str](), threading.Semaphore(0)

    def check_when_told(password: str, stored: str) -> bool:
        begun.append(password)
        return may_end.acquire(timeout=60)

    async def check(share: str) -> None:
        assert await hashing.matches(share, "", share)

    async def are_begun(count: int) -> None:
        with trio.fail_after(60):
            while len(begun) < count:  # noqa: ASYNC110 - they are in threads
                await trio.sleep(0.01)

    monkeypatch.setattr("appliance.keys.secrets.password_matches", check_when_told)
    async with trio.open_nursery() as nursery:
        for _ in range(HASHES_WAITING_PER_CLIENT):
            nursery.start_soon(check, "flood")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(check, "one")
        await are_begun(HASH_THREADS)
        await trio.testing.wait_all_tasks_blocked()
        may_end.release()
        await are_begun(HASH_THREADS + 1)
        may_end.release(HASHES_WAITING_PER_CLIENT)
    assert begun[: HASH_THREADS + 1] == ["flood"] * HASH_THREADS + ["one"]
    assert begun.count("flood") == HASHES_WAITING_PER_CLIENT


async def test_only_so_many_logins_wait() -> None:
    hashing, refused = PasswordHasher(), list[tuple[str, Code]]()

    async def check(share: str) -> None:
        try:
            assert await hashing.hashed("password", share)
        except Refused as refusal:
            refused.append((share, refusal.code))

    async with trio.open_nursery() as nursery:
        for _ in range(HASHES_WAITING_PER_CLIENT + HASH_THREADS + 1):
            nursery.start_soon(check, "flood")
        await trio.testing.wait_all_tasks_blocked()
        assert refused == [("flood", Code.TEMPORARY_FAILURE)]
        for number in range(HASHES_WAITING):
            nursery.start_soon(check, str(number))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(check, "late")
        await trio.testing.wait_all_tasks_blocked()
        assert refused[-1] == ("late", Code.TEMPORARY_FAILURE)
        assert hashing._waiting <= HASHES_WAITING
        nursery.cancel_scope.cancel()
    assert hashing._waiting == 0


SECRETS = WebhookSecrets(bytes(32), Environment())


def webhook(webhook_id: str, sealed: bytes) -> Webhook:
    return Webhook(webhook_id, "acc_1", "https://x.example/", tuple(EventType), True, sealed, "abcd", 1, 1, None, None)


def test_a_secret_opens_where_it_belongs() -> None:
    shown, stored = SECRETS.fresh("whk_1")
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", shown)
    assert stored.hint == shown[-4:]
    assert shown.encode() not in stored.sealed
    for _ in range(2):
        assert SECRETS.open(webhook("whk_1", stored.sealed)) == shown.encode()
    assert SECRETS.fresh("whk_1")[0] != shown


def test_a_secret_opens_nowhere_else() -> None:
    _, stored = SECRETS.fresh("whk_1")
    with pytest.raises(UnsealError):
        SECRETS.open(webhook("whk_2", stored.sealed))
    with pytest.raises(UnsealError):
        WebhookSecrets(bytes([1] * 32), Environment()).open(webhook("whk_1", stored.sealed))


def test_nothing_secret_is_printed() -> None:
    shown, stored = SECRETS.fresh("whk_1")
    held = webhook("whk_1", stored.sealed)
    SECRETS.open(held)
    for each in (SECRETS, stored, held, dataclasses.replace(held)):
        assert shown not in repr(each)
        assert repr(stored.sealed) not in repr(each)
        assert repr(bytes(32)) not in repr(each)
