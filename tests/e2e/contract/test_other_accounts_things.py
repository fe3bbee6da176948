"""What belongs to another account is, to the byte, what never was."""

from typing import Any

import httpx
import pytest

from tests import engines
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, owner
from tests.running_appliance import add_account

NOTHING = {
    "email": f"msg_{'0' * 32}",
    "domain": "never-was.example",
    "credential": f"smtp_{'0' * 32}",
    "key": f"key_{'0' * 32}",
    "session": f"ses_{'0' * 32}",
    "user": f"usr_{'0' * 32}",
    "template": "never-was",
    "address": "never-was@example.net",
    "feedback": f"fbm_{'0' * 32}",
}
KEPT_MAIL = """INSERT INTO feedback_inbox VALUES (?, 'fbl', 'fbm_theirs', 'fbl@bounces.theirs.example', 'a@b.example',
    'subject', 'not_understood', 1, 4, ?)"""
ROUTES = [
    ("GET", "/v1/emails/{email}"),
    ("GET", "/v1/emails/{email}/body"),
    ("GET", "/v1/emails/{email}/raw"),
    ("GET", "/v1/emails/{email}/attachments/0"),
    ("POST", "/v1/emails/{email}/cancel"),
    ("GET", "/emails/{email}"),
    ("GET", "/v1/feedback/inbox/{feedback}"),
    ("GET", "/v1/domains/{domain}"),
    ("POST", "/v1/domains/{domain}/verify"),
    ("DELETE", "/v1/domains/{domain}"),
    ("DELETE", "/v1/smtp-credentials/{credential}"),
    ("DELETE", "/v1/api-keys/{key}"),
    ("DELETE", "/v1/auth/sessions/{session}"),
    ("DELETE", "/v1/users/{user}"),
    ("GET", "/v1/templates/{template}"),
    ("DELETE", "/v1/templates/{template}"),
    ("DELETE", "/v1/suppressions/{address}"),
    ("DELETE", "/v1/suppressions/{address}?tag=news"),
]


@pytest.fixture(scope="module")
def theirs(running: Any, client: httpx.Client) -> tuple[Caller, dict[str, str]]:
    """An account that has one of everything, and what these are called."""
    account = add_account(running.data_dir, "owner-of-things", domain="theirs.example")
    caller = Caller(running, account, client, account.bearer)
    customer = owner(caller)
    customer.request("PUT", "/v1/templates/theirs", json={"text": "t"})
    customer.request("POST", "/v1/suppressions", json={"address": "theirs@example.net"})
    engines.rows(running.data_dir, KEPT_MAIL, account.account_id, b"mail")
    return customer, {
        "email": caller.send(from_="a@theirs.example", to="defer@example.net")["id"],
        "domain": "theirs.example",
        "credential": account.username,
        "key": customer.get("/v1/api-keys").json()["api_keys"][0]["id"],
        "session": customer.get("/v1/auth/sessions").json()["sessions"][0]["id"],
        "user": customer.get("/v1/users").json()["users"][0]["id"],
        "template": "theirs",
        "address": "theirs@example.net",
        "feedback": "fbm_theirs",
    }


def told(response: httpx.Response, name: str) -> tuple[int, bytes, dict[str, str]]:
    """What an answer says, but for the request's id, the time, and the name that was asked for."""
    request_id = response.headers["x-request-id"].encode()
    headers = {
        key: value for key, value in response.headers.items() if key not in ("x-request-id", "date", "content-length")
    }
    return response.status_code, response.content.replace(request_id, b"").replace(name.encode(), b""), headers


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_it_is_as_absent_as_nothing(
    theirs: tuple[Caller, dict[str, str]], new_account: NewAccount, method: str, path: str
) -> None:
    _, things = theirs
    (thing,) = [name for name in NOTHING if f"{{{name}}}" in path]
    caller = new_account()
    stranger = owner(caller)
    real = stranger.request(method, path.format(**things))
    absent = stranger.request(method, path.format(**NOTHING))
    assert absent.status_code == 404
    assert told(real, things[thing]) == told(absent, NOTHING[thing])


def test_nothing_happened_to_it(theirs: tuple[Caller, dict[str, str]]) -> None:
    customer, things = theirs
    assert customer.get(f"/v1/emails/{things['email']}").json()["recipients"][0]["status"] != "failed"
    assert customer.get("/v1/domains").json()["domains"][0]["name"] == "theirs.example"
    assert all(each["revoked_at"] is None for each in customer.get("/v1/api-keys").json()["api_keys"])
    assert all(each["revoked_at"] is None for each in customer.get("/v1/smtp-credentials").json()["smtp_credentials"])
    assert customer.get("/v1/templates/theirs").status_code == 200


@pytest.mark.parametrize(
    ("path", "plural"),
    [
        ("/v1/emails", "emails"),
        ("/v1/credits", "entries"),
        ("/v1/templates", "templates"),
        ("/v1/suppressions", "suppressions"),
    ],
)
def test_lists_hold_ones_own_things_only(
    theirs: tuple[Caller, dict[str, str]], new_account: NewAccount, path: str, plural: str
) -> None:
    """A new account's lists are empty, whatever others have; also from another's cursor on."""
    customer, things = theirs
    assert customer.get(path).json()[plural]
    caller = new_account(credit=None)
    stranger = owner(caller)
    for query in ({}, {"before": things["email"] + "f"}, {"before": "~"}):
        assert stranger.get(path, params=query).json()[plural] == []
