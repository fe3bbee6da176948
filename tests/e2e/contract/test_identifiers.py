"""Identifiers: a prefix, 128 bits or more, and sorting by time."""

import math
import re

import pytest

from tests.e2e.contract.service import Caller


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
