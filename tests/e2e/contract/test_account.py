"""The account as its owner sees it: what it is, what needs attention, and what became of its credits."""

from typing import Any

import pytest

from appliance.store.pools import EVERY
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, change, error, owner, waiting

FIELDS = {
    "id",
    "name",
    "email",
    "role",
    "account_role",
    "credits",
    "daily_cap",
    "suspended",
    "created_at",
    "stored_bytes",
    "stored_bytes_limit",
    "service",
    "warnings",
    "request_id",
}


def warnings(customer: Caller) -> list[tuple[str, str | None]]:
    return [(each["code"], each["subject"]) for each in customer.get("/v1/account").json()["warnings"]]


def entries(customer: Caller, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = customer.get("/v1/credits", params=query).json()["entries"]
    return found


def test_the_account_is_told(new_account: NewAccount) -> None:
    """All fields, with how to reach the service, and nothing to worry about."""
    customer = owner(new_account(credit=5))
    response = customer.get("/v1/account")
    told = response.json()
    assert set(told) == FIELDS
    assert told["request_id"] == response.headers["x-request-id"]
    assert (told["id"], told["name"], told["email"]) == (
        customer.account.account_id,
        customer.account.name,
        customer.account.email,
    )
    assert (told["role"], told["credits"], told["daily_cap"], told["suspended"]) == ("customer", 5, None, False)
    assert told["service"]["smtp_host"] == "mail.example.com"
    assert told["service"]["delivery_mode"] == "sandbox"
    assert told["warnings"] == []


def test_what_needs_attention_is_told(new_account: NewAccount) -> None:
    """No credits, a suspension, a domain that is not proven: each is a warning with a sentence."""
    customer = owner(new_account(credit=0))
    account_id, data_dir = customer.account.account_id, customer.running.data_dir
    assert warnings(customer) == [("no_credits", None)]
    change(data_dir, lambda store: store.access.add_domain(account_id, "pending.example", usable=False))
    change(data_dir, lambda store: store.accounts.set_suspended(account_id, True))
    assert warnings(customer) == [
        ("account_suspended", None),
        ("no_credits", None),
        ("domain_pending", "pending.example"),
    ]


def test_a_held_pool_warns_who_waits_for_it(new_account: NewAccount) -> None:
    customer, other = owner(new_account()), owner(new_account())
    waiting(customer, "a@held.example", pools={"held.example": "held-pool"})
    change(customer.running.data_dir, lambda store: store.pools.hold("held-pool", "they moved"))
    assert warnings(customer) == [("pool_held", "held-pool")]
    assert "they moved" in customer.get("/v1/account").json()["warnings"][0]["text"]
    assert warnings(other) == []
    change(customer.running.data_dir, lambda store: store.pools.release("held-pool"))
    assert warnings(customer) == []


def test_a_pause_of_all_mail_warns_who_has_mail(new_account: NewAccount) -> None:
    customer, other = owner(new_account()), owner(new_account())
    message_id = waiting(customer, "a@paused.example", pools={"paused.example": "some-pool"})
    data_dir = customer.running.data_dir
    change(data_dir, lambda store: store.pools.hold(EVERY, "a restored backup"))
    try:
        assert warnings(customer) == [("mail_paused", None)]
        assert "a restored backup" in customer.get("/v1/account").json()["warnings"][0]["text"]
        assert warnings(other) == []
        (told,) = customer.get(f"/v1/emails/{message_id}").json()["recipients"]
        assert "all mail is paused: a restored backup" in told["explanation"]
    finally:
        change(data_dir, lambda store: store.pools.release(EVERY))
    assert warnings(customer) == []


def test_every_change_of_credits_has_its_entry(new_account: NewAccount) -> None:
    """Granted, reserved for a message, released by a bounce, taken away: newest first, each with the balance after."""
    caller = new_account(credit=10)
    customer, account_id = owner(caller), caller.account.account_id
    sent = caller.delivered(to=["ok@example.net", "bounce@example.net"])
    change(caller.running.data_dir, lambda store: store.accounts.change_credits(account_id, -4))
    change(caller.running.data_dir, lambda store: store.accounts.change_credits(account_id, 100))
    found = entries(customer)
    assert [(each["kind"], each["amount"], each["balance"]) for each in found] == [
        ("grant", 100, 105),
        ("adjust", -4, 5),
        ("release", 1, 9),
        ("reserve", -2, 8),
        ("grant", 10, 10),
    ]
    assert [each["message_id"] for each in found] == [None, None, sent["id"], sent["id"], None]
    assert found[2]["recipient_id"] == sent["recipients"][1]["id"]
    assert customer.get("/v1/credits").json()["credits"] == 105


LISTS = ("credits", "emails", "domains", "api-keys", "smtp-credentials", "templates", "suppressions")
NO_NUMBERS = ("0", "101", "-1", "x", "", "1.0", "1e1", "٣", "99999999999999999999", "+1", " 1")


@pytest.mark.parametrize(
    ("name", "paths"),
    [("limit", (*LISTS, "webhook/deliveries")), ("days", ("stats", "feedback"))],
    ids=["limit", "days"],
)
def test_a_wrong_number_is_400(customer: Caller, name: str, paths: tuple[str, ...]) -> None:
    """A page has 1 to 100 entries, statistics 1 to 90 days; the error names the parameter."""
    assert error(customer.get("/v1/problems", params={"limit": "501"}), 400, "invalid_request").startswith("limit:")
    for path in paths:
        for value in NO_NUMBERS:
            response = customer.get(f"/v1/{path}", params={name: value})
            assert error(response, 400, "invalid_request").startswith(f"{name}:"), (path, value)
