"""Passwords: what may be one, Argon2id with a salt each, and threads that clients share fairly."""

import re
import threading
import time

import pytest
import trio
import trio.testing

from appliance.errors import Code, Refused
from appliance.keys import passwords
from appliance.keys.passwords import (
    HASH_THREADS,
    HASHES_WAITING,
    HASHES_WAITING_PER_CLIENT,
    MAX_PASSWORD_BYTES,
    PasswordHasher,
    check_new,
    hash_password,
    password_matches,
)


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


@pytest.mark.parametrize("password", ["", "pässwörd", "密码", "a\0b", "x" * MAX_PASSWORD_BYTES, "😀" * 256])
def test_any_text_can_be_a_password(password: str) -> None:
    """Any text."""
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


@pytest.mark.parametrize("password", ["x" * 8, "密" * 8, "x" * MAX_PASSWORD_BYTES, " " * 8])
def test_a_new_password_has_8_characters_to_1024_bytes(password: str) -> None:
    """Within these bounds it is taken as it is."""
    assert check_new(password) == password


@pytest.mark.parametrize(
    "password", ["", "pw", "x" * 7, "x" * (MAX_PASSWORD_BYTES + 1), "ß" * (MAX_PASSWORD_BYTES // 2 + 1)]
)
def test_a_new_password_beyond_that_is_refused(password: str) -> None:
    """The refusal names the field."""
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

    monkeypatch.setattr(passwords, "password_matches", check_when_told)
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
    """Beyond ten of one client that wait, and a hundred of all, logins are refused for now."""
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
