"""Credits: one a unique recipient, reserved on accept, returned on a bounce, never below zero."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from appliance.model.accounts import LedgerEntry
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, accepted, bearer, change, error, eventually, message

pytestmark = pytest.mark.both_engines

PARALLEL = 40


def ledger(caller: Caller) -> list[LedgerEntry]:
    """Every change of the balance, the oldest first."""
    return caller.stored(lambda store: store.accounts.ledger(caller.account.account_id, 1000))[::-1]


def test_a_message_reserves_one_credit_a_recipient(new_account: NewAccount) -> None:
    """Unique recipients across to, cc and bcc are paid for, once each, at the moment of the 202."""
    caller = new_account(credit=10)
    sent = caller.send(
        to=["a@example.net", "A@example.net"], cc="b@example.net", bcc=["c@example.net", "b@example.net"]
    )
    assert (sent["recipient_count"], sent["credits_reserved"]) == (3, 3)
    assert caller.credits() == 7


@pytest.mark.parametrize(
    ("to", "left"),
    [
        (["a@example.net"], 9),
        (["fail@example.net"], 9),
        (["bounce@example.net"], 10),
        (["a@example.net", "bounce1@example.net", "bounce2@example.net", "fail@example.net"], 8),
    ],
)
def test_a_bounce_returns_its_credit(new_account: NewAccount, to: list[str], left: int) -> None:
    """A permanent bounce gives the recipient's credit back; delivery and failure keep it."""
    caller = new_account(credit=10)
    found = caller.delivered(to=to)
    assert caller.credits() == left
    assert found["credits_reserved"] == len(to)


def test_the_ledger_tells_every_change(new_account: NewAccount) -> None:
    """Grant, reservation and return stand in the ledger, in order, with the balance after each."""
    caller = new_account(credit=5)
    found = caller.delivered(to=["a@example.net", "bounce@example.net"])
    bounced = found["recipients"][1]["id"]
    assert [
        (each.kind.value, each.amount, each.balance, each.message_id, each.recipient_id) for each in ledger(caller)
    ] == [
        ("grant", 5, 5, None, None),
        ("reserve", -2, 3, found["id"], None),
        ("release", 1, 4, found["id"], bounced),
    ]


def test_too_few_credits_refuse_the_whole_message(new_account: NewAccount) -> None:
    """A message that costs more than there is gives 402, takes nothing and sends nothing."""
    caller = new_account(credit=2)
    to = ["a@example.net", "b@example.net", "c@example.net"]
    error(caller.post(message(to=to)), 402, "insufficient_credits")
    assert caller.credits() == 2
    assert [each.kind.value for each in ledger(caller)] == ["grant"]
    caller.send(to=to[:2])
    assert caller.credits() == 0
    error(caller.post(message()), 402, "insufficient_credits")


def test_a_returned_credit_can_be_spent_again(new_account: NewAccount) -> None:
    """What a bounce gave back pays for the next message."""
    caller = new_account(credit=1)
    for _ in range(3):
        caller.delivered(to="bounce@example.net")
    caller.delivered()
    error(caller.post(message()), 402, "insufficient_credits")


def test_added_credits_count_at_once(new_account: NewAccount) -> None:
    """The operator's grant is seen by the next request."""
    caller = new_account(credit=0)
    error(caller.post(message()), 402, "insufficient_credits")
    change(caller.running.data_dir, lambda store: store.accounts.change_credits(caller.account.account_id, 1))
    caller.send()


def test_an_unlimited_account_reserves_without_end(new_account: NewAccount) -> None:
    """Without a balance every message is accepted; credits_reserved still tells its size."""
    caller = new_account(credit=None)
    found = caller.delivered(to=["a@example.net", "bounce@example.net"])
    assert (found["credits_reserved"], caller.credits()) == (2, None)
    assert ledger(caller) == []


def test_parallel_sends_on_the_last_credits(new_account: NewAccount) -> None:
    """Of forty messages at once on seven credits exactly seven are accepted, and the balance ends at zero."""
    caller = new_account(credit=7)
    with ThreadPoolExecutor(PARALLEL) as threads:
        responses = list(threads.map(lambda _: caller.post(message()), range(PARALLEL)))
    taken = [response for response in responses if response.status_code == 202]
    assert len(taken) == 7
    for response in responses:
        if response not in taken:
            error(response, 402, "insufficient_credits")
    assert caller.credits() == 0
    assert min(each.balance for each in ledger(caller)) == 0


def test_parallel_bounces_return_each_credit_once(new_account: NewAccount) -> None:
    """However many bounce at once, the balance is what it was, and each recipient has one line for it."""
    caller = new_account(credit=60)
    to = [f"bounce{number}@example.net" for number in range(5)]
    with ThreadPoolExecutor(12) as threads:
        sent: list[Any] = list(threads.map(lambda _: accepted(caller.post(message(to=to))), range(12)))
    for each in sent:
        caller.final(each["id"])
    assert eventually(caller.credits, lambda left: left == 60) == 60
    returned = [each.recipient_id for each in ledger(caller) if each.kind.value == "release"]
    assert len(returned) == len(set(returned)) == 60


@pytest.mark.parametrize("kind", ["basic", "send", "token"])
def test_every_credential_spends_the_account_s_credits(new_account: NewAccount, kind: str) -> None:
    """It is the account that pays, whichever credential sends."""
    caller = new_account(credit=1)
    headers = {
        "basic": lambda: caller.account.basic,
        "send": lambda: bearer(caller.account.send_key),
        "token": lambda: bearer(caller.token()),
    }[kind]()
    other = caller.using(headers)
    other.send()
    error(other.post(message()), 402, "insufficient_credits")
