"""What the operator may do to an account: suspend it, cap its day, and undo both."""

from datetime import UTC, datetime

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, error, message, new_key


def set_suspended(caller: Caller, suspended: bool) -> None:
    account_id = caller.account.account_id
    change(caller.running.data_dir, lambda store: store.accounts.set_suspended(account_id, suspended))


def set_cap(caller: Caller, recipients: int | None) -> None:
    account_id = caller.account.account_id
    change(caller.running.data_dir, lambda store: store.accounts.set_daily_cap(account_id, recipients))


def test_a_suspended_account_may_still_read(new_account: NewAccount) -> None:
    """What was accepted before can be read, and is delivered; the dashboard stays open."""
    caller = new_account()
    sent = caller.send(to="defer@example.net")
    token = bearer(caller.token())
    set_suspended(caller, True)
    assert caller.final(sent["id"])["status"] == "delivered"
    assert caller.using(token).get("/v1/templates").status_code == 200
    assert caller.login().status_code == 200


def test_a_cap_limits_the_recipients_of_a_day(new_account: NewAccount) -> None:
    """Up to the cap messages are accepted; beyond it 429 warmup_limited, Retry-After until midnight, at no cost."""
    caller = new_account(credit=100)
    caller.send(to=["a@example.net", "b@example.net"])
    set_cap(caller, 5)
    caller.send(to=["a@example.net", "b@example.net"])
    key = new_key()
    response = caller.post(message(to=["a@example.net", "b@example.net"]), key=key)
    error(response, 429, "warmup_limited")
    now = datetime.now(UTC)
    left = 86_400 - (now.hour * 3600 + now.minute * 60 + now.second)
    assert abs(int(response.headers["retry-after"]) - left) <= 5
    assert caller.credits() == 96
    caller.send(to="c@example.net")
    error(caller.post(message()), 429, "warmup_limited")
    set_cap(caller, None)
    assert caller.post(message(to=["a@example.net", "b@example.net"]), key=key).status_code == 202
