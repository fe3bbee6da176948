"""Identifiers: a prefix, 128 bits or more, and sorting by time."""

import math
import re
import time

import pytest

from tests.e2e.contract.service import Caller

RANDOM_BITS = 74  # at least


@pytest.fixture(scope="module")
def ids(caller: Caller) -> dict[str, list[str]]:
    """A hundred ids of each kind, in the order in which they were made."""
    found: dict[str, list[str]] = {"msg": [], "req": [], "rcp": []}
    for _ in range(100):
        sent = caller.send()
        found["msg"].append(sent["id"])
        found["req"].append(sent["request_id"])
    found["rcp"] = [each["id"] for message_id in found["msg"] for each in caller.read(message_id)["recipients"]]
    return found


@pytest.mark.parametrize("prefix", ["msg", "req", "rcp"])
def test_an_id_has_its_prefix_and_128_bits(ids: dict[str, list[str]], prefix: str) -> None:
    """Ids are lower-case letters and digits behind their prefix, enough of them for 128 bits, and never twice."""
    for each in ids[prefix]:
        assert re.fullmatch(rf"{prefix}_[0-9a-z]+", each)
    texts = [each.removeprefix(f"{prefix}_") for each in ids[prefix]]
    assert len({len(text) for text in texts}) == 1
    bits_a_character = math.log2(len(set("".join(texts))))
    assert len(texts[0]) * bits_a_character >= 127.9
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("prefix", ["msg", "req", "rcp"])
def test_the_end_of_an_id_is_random(ids: dict[str, list[str]], prefix: str) -> None:
    """At least 74 bits vary from id to id: each of the last characters takes many values."""
    texts = [each.removeprefix(f"{prefix}_") for each in ids[prefix]]
    bits_a_character = math.log2(len(set("".join(texts))))
    for place in range(1, math.floor(RANDOM_BITS / bits_a_character) + 1):
        assert len({text[-place] for text in texts}) > 10


@pytest.mark.parametrize("prefix", ["msg", "req", "rcp"])
def test_ids_sort_by_time(ids: dict[str, list[str]], prefix: str) -> None:
    """In the order of the alphabet is in the order of creation."""
    assert ids[prefix] == sorted(ids[prefix])


def test_ids_sort_from_one_second_to_the_next(caller: Caller) -> None:
    """A later id is greater, however the random parts fall."""
    first = caller.send()["id"]
    time.sleep(1.1)
    assert caller.send()["id"] > first


def test_accounts_have_ids_too(caller: Caller) -> None:
    """An account's id has its prefix."""
    assert re.fullmatch(r"acc_[0-9a-z]{26,}", caller.account.account_id)
    assert caller.login().json()["account"]["id"] == caller.account.account_id


def test_secrets_have_256_bits(caller: Caller) -> None:
    """Keys and SMTP passwords are 256 random bits behind their prefix."""
    account = caller.account
    for secret in (
        account.full_key.removeprefix("ma_live_"),
        account.test_key.removeprefix("ma_test_"),
        account.password,
    ):
        assert re.fullmatch(r"[A-Za-z0-9_-]{43,}", secret)
