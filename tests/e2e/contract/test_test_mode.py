"""Test keys: everything works, nothing costs, nothing leaves the machine."""

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, error, message


def on_trial(caller: Caller) -> Caller:
    """The account with its test key."""
    return caller.using(bearer(caller.account.test_key))


def test_a_test_key_is_known_by_its_prefix(caller: Caller) -> None:
    """Test keys begin with ma_test_, live keys with ma_live_."""
    assert caller.account.test_key.startswith("ma_test_")
    assert caller.account.full_key.startswith("ma_live_")
    assert caller.account.send_key.startswith("ma_live_")


def test_a_test_says_api_when_sent_and_test_when_read(caller: Caller) -> None:
    """The send response always says `api`; the message says `test`, to each reader of the account."""
    sent = on_trial(caller).send()
    assert (sent["source"], sent["status"], sent["billing_status"]) == ("api", "queued", "reserved")
    assert on_trial(caller).read(sent["id"])["source"] == "test"
    assert caller.read(sent["id"])["source"] == "test"


def test_a_test_costs_nothing(new_account: NewAccount) -> None:
    """credits_reserved is 0, the balance stays, and no ledger line is written, bounce or not."""
    caller = new_account(credit=3)
    sent = on_trial(caller).send(to=["a@example.net", "bounce@example.net"])
    assert (sent["recipient_count"], sent["credits_reserved"]) == (2, 0)
    assert caller.final(sent["id"])["credits_reserved"] == 0
    assert caller.credits() == 3
    assert len(caller.stored(lambda store: store.accounts.ledger(caller.account.account_id))) == 1


def test_a_test_needs_no_credits(new_account: NewAccount) -> None:
    """An account without credits can still test."""
    caller = new_account(credit=0)
    assert on_trial(caller).delivered()["status"] == "delivered"
    error(caller.post(message()), 402, "insufficient_credits")


@pytest.mark.parametrize(
    ("to", "status", "attempts", "code", "billing"),
    [
        ("ok@example.net", "delivered", 1, 250, "settled"),
        ("bounce@example.net", "bounced", 1, 550, "released"),
        ("fail@example.net", "failed", 12, 451, "settled"),
        ("defer@example.net", "delivered", 2, 250, "settled"),
    ],
)
def test_a_test_runs_the_real_state_machine(
    caller: Caller, to: str, status: str, attempts: int, code: int, billing: str
) -> None:
    """The recipient's local part decides, with the same results as in the sandbox."""
    (recipient,) = on_trial(caller).delivered(to=to)["recipients"]
    assert (recipient["status"], recipient["attempt_count"], recipient["last_smtp_code"]) == (status, attempts, code)
    assert recipient["billing_status"] == billing


def test_a_test_keeps_every_rule(caller: Caller) -> None:
    """What a live key may not send, a test key may not either."""
    key = on_trial(caller)
    key.refused(to=[])
    error(key.post(message(from_="a@example.org")), 403, "forbidden")
    error(key.request("POST", "/emails", json=message()), 400, "invalid_request")


def test_a_test_does_not_count_for_the_daily_cap(new_account: NewAccount) -> None:
    """Tests neither use up the cap nor are stopped by it."""
    caller = new_account()
    change(caller.running.data_dir, lambda store: store.accounts.set_daily_cap(caller.account.account_id, 1))
    for _ in range(3):
        on_trial(caller).send()
    caller.send()
    error(caller.post(message()), 429, "warmup_limited")
    on_trial(caller).send()
