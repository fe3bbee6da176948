"""Test keys: everything works, nothing costs, nothing leaves the machine."""

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, error, message


def on_trial(caller: Caller) -> Caller:
    return caller.using(bearer(caller.account.test_key))


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


def test_a_test_keeps_every_rule(caller: Caller) -> None:
    key = on_trial(caller)
    key.refused(to=[])
    error(key.post(message(from_="a@example.org")), 403, "forbidden")
    error(key.request("POST", "/emails", json=message()), 400, "invalid_request")
