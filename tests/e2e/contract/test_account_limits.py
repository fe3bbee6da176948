"""What the operator may do to an account: suspend it, cap its day, and undo both."""

from datetime import UTC, datetime

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, error, eventually, message, new_key


def set_suspended(caller: Caller, suspended: bool) -> None:
    """Suspend or resume, as the operator's shell does."""
    account_id = caller.account.account_id
    change(caller.running.data_dir, lambda store: store.accounts.set_suspended(account_id, suspended))


def set_cap(caller: Caller, recipients: int | None) -> None:
    """Set or lift the daily cap."""
    account_id = caller.account.account_id
    change(caller.running.data_dir, lambda store: store.accounts.set_daily_cap(account_id, recipients))


def test_a_suspended_account_may_not_send(new_account: NewAccount) -> None:
    """Every credential of a suspended account gets 403 account_suspended, at no cost, and works again when resumed."""
    caller = new_account(credit=5)
    token = bearer(caller.token())
    set_suspended(caller, True)
    account = caller.account
    for headers in (account.basic, bearer(account.send_key), account.bearer, bearer(account.test_key), token):
        error(caller.using(headers).post(message()), 403, "account_suspended")
    assert caller.credits() == 5
    set_suspended(caller, False)
    eventually(lambda: caller.post(message()).status_code, lambda status: status == 202, patience=2)


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


def test_a_bounce_still_counts_for_the_cap(new_account: NewAccount) -> None:
    """The cap counts what was accepted, whatever became of it."""
    caller = new_account()
    set_cap(caller, 1)
    caller.delivered(to="bounce@example.net")
    error(caller.post(message()), 429, "warmup_limited")


def test_a_refused_message_does_not_count_for_the_cap(new_account: NewAccount) -> None:
    """Only what was accepted uses up the day."""
    caller = new_account(credit=1)
    set_cap(caller, 2)
    error(caller.post(message(to=["a@example.net", "b@example.net"])), 402, "insufficient_credits")
    caller.refused(to=[])
    caller.send()
