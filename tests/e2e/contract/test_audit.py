"""The audit log of an account: who changed what, from where, a page at a time and as CSV."""

import csv
import io

from appliance.model.accounts import Role
from appliance.web.app import route_classes
from appliance.web.operations import operations_of
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import bearer, error, owner

# Which change nothing that is in force: they send, or ask again. Or they tell of it themselves.
NO_CHANGE = {
    "POST /v1/auth/login",
    "POST /v1/auth/invitation",
    "DELETE /v1/account/totp",
    "POST /v1/account/totp",
    "POST /v1/emails/{id:not_test}/resend",
    "POST /v1/auth/refresh",
    "POST /v1/emails/test",
    "POST /v1/webhook/ping",
    "POST /v1/webhook/test",
    "POST /v1/auth/forgotten-password",
    "POST /v1/views",
    "DELETE /v1/views/{id}",
    "POST /v1/webhook/deliveries/{id}/replay",
}


def test_every_change_has_an_action() -> None:
    """An operation that is no GET tells the audit log what it does, or is listed here."""
    operations = [each for routes in route_classes() for _, each in operations_of(routes)]
    assert {each.name for each in operations if each.method != "GET" and not each.action} == NO_CHANGE


def test_changes_are_told_with_who_and_from_where(new_account: NewAccount) -> None:
    """By a person and by a key, newest first, with the object and no secret; what was refused is not."""
    customer = owner(new_account())
    made = customer.request("POST", "/v1/api-keys", json={"name": "ci", "scope": "manage"}).json()
    manager = customer.using(bearer(made["key"]))
    manager.request("PUT", "/v1/templates/hello", json={"text": "t"})
    manager.request("DELETE", "/v1/templates/none")
    answer = customer.get("/v1/audit")
    assert made["key"] not in answer.text
    lines = answer.json()["audit"]
    email = customer.account.email
    assert [(each["action"], each["object"], each["actor_kind"], each["actor"]) for each in lines] == [
        ("template.saved", "hello", "key", made["id"]),
        ("api_key.created", made["id"], "user", email),
        ("user.logged_in", "", "user", email),
    ]
    assert {each["address"] for each in lines} == {"127.0.0.1"}
    assert [each["actor_name"] for each in lines] == ["ci", "", ""]
    assert lines[1]["details"] == {"name": "ci", "scope": "manage"}
    assert manager.get("/v1/audit", params={"action": "template"}).json()["audit"] == lines[:1]
    first = customer.get("/v1/audit", params={"limit": 2}).json()
    second = customer.get("/v1/audit", params={"before": first["next"]}).json()
    assert first["audit"] + second["audit"] == lines
    assert customer.get("/v1/audit", params={"since": lines[0]["created_at"]}).json()["audit"] == lines[:1]
    error(customer.get("/v1/audit", params={"since": "yesterday"}), 400, "invalid_request")


def test_what_is_not_there_leaves_no_line(new_account: NewAccount) -> None:
    customer = owner(new_account())
    none = "0" * 32
    for path in (
        "suppressions/none@example.net",
        "suppressions/none@example.net?list=tag:none",
        f"api-keys/key_{none}",
        f"smtp-credentials/smtp_{none}",
        "webhook",
        "domains/none.example",
        "templates/none",
        f"auth/sessions/ses_{none}",
        f"users/usr_{none}",
        f"users/inv_{none}",
    ):
        error(customer.request("DELETE", f"/v1/{path}"), 404, "not_found")
    assert [each["action"] for each in customer.get("/v1/audit").json()["audit"]] == ["user.logged_in"]


def test_what_an_administrator_does_is_seen_by_the_account(new_account: NewAccount) -> None:
    admin, customer, third = owner(new_account(role=Role.ADMIN)), owner(new_account()), owner(new_account())
    admin.request("POST", f"/v1/admin/accounts/{customer.account.account_id}/suspend")
    for caller, times in ((admin, 1), (customer, 1), (third, 0)):
        lines = caller.get("/v1/audit", params={"action": "account.suspended"}).json()["audit"]
        assert [each["actor"] for each in lines] == [admin.account.email] * times


def test_it_is_exported_as_csv(new_account: NewAccount) -> None:
    customer = owner(new_account())
    customer.request("POST", "/v1/suppressions", json={"address": "a@example.net", "reason": "=HYPERLINK(1)"})
    customer.request("POST", "/v1/suppressions", json={"address": "-a@example.net"})
    answer = customer.get("/v1/audit", headers={"Accept": "text/csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["action"] for row in rows] == ["suppression.added", "suppression.added", "user.logged_in"]
    assert (rows[0]["object"], rows[1]["details"]) == ("'-a@example.net", "reason: =HYPERLINK(1)")
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
