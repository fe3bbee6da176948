"""Credits: one a unique recipient, reserved on accept, returned on a bounce, never below zero."""

import pytest

from appliance.model.accounts import LedgerEntry
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, error, message


def ledger(caller: Caller) -> list[LedgerEntry]:
    return caller.stored(lambda store: store.accounts.ledger(caller.account.account_id, 1000))[::-1]


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
