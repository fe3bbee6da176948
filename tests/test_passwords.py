"""In charge of passwords: Argon2id, a salt each, and no answer but yes or no."""

import re
import time

import pytest

from appliance.passwords import MAX_BYTES, hash_password, password_matches


def test_a_password_matches_its_hash_only() -> None:
    """Neither another password, nor a longer or shorter one."""
    stored = hash_password("correct horse")
    assert password_matches("correct horse", stored)
    for wrong in ("correct hors", "correct horse ", "Correct horse", ""):
        assert not password_matches(wrong, stored)


def test_a_hash_says_how_it_was_made() -> None:
    """The parameters that OWASP recommends, in the form every library reads."""
    assert re.fullmatch(r"\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}", hash_password("x"))


def test_equal_passwords_have_different_hashes() -> None:
    """Each has a salt of its own."""
    assert hash_password("x") != hash_password("x")


@pytest.mark.parametrize("password", ["", "pässwörd", "密码", "a\0b", "x" * MAX_BYTES, "😀" * 256])
def test_any_text_can_be_a_password(password: str) -> None:
    """Whatever somebody types."""
    assert password_matches(password, hash_password(password))


def test_a_wrong_password_takes_as_long_as_a_right_one() -> None:
    """Time does not tell how close a guess was."""
    stored = hash_password("correct horse")

    def seconds(password: str) -> float:
        best = 1.0
        for _ in range(3):
            began = time.perf_counter()
            password_matches(password, stored)
            best = min(best, time.perf_counter() - began)
        return best

    right, wrong = seconds("correct horse"), seconds("wrong")
    assert wrong > right / 3
    assert right > wrong / 3
    assert right > 0.005
