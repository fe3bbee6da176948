"""SMTP credentials and API keys in their owner's hands: created, shown once, used, revoked."""

import base64
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, error, eventually, message, owner


def create(customer: Caller, path: str, **body: Any) -> dict[str, Any]:
    """Create one, which must work."""
    response = customer.request("POST", path, json=body)
    assert response.status_code == 201, response.text
    told: dict[str, Any] = response.json()
    return told


def basic(made: dict[str, Any]) -> dict[str, str]:
    """The Authorization header of a new credential."""
    pair = f"{made['username']}:{made['password']}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def sends(customer: Caller, headers: dict[str, str]) -> bool:
    """Whether a credential may send."""
    return customer.using(headers).post(message()).status_code == 202


def found(customer: Caller, path: str, plural: str, name: str, value: str) -> dict[str, Any]:
    """One entry of a list."""
    (entry,) = [each for each in customer.get(path).json()[plural] if each[name] == value]
    assert isinstance(entry, dict)
    return entry


def test_a_credential_works_until_it_is_revoked(new_account: NewAccount) -> None:
    """Its password is shown once; it is listed without; its last use is told; revoked it is 401 at once."""
    customer = owner(new_account())
    made = create(customer, "/v1/smtp-credentials", name="web shop")
    assert set(made) == {"username", "password", "name", "created_at", "request_id"}
    listed = found(customer, "/v1/smtp-credentials", "smtp_credentials", "username", made["username"])
    assert set(listed) == {"username", "name", "created_at", "last_used_at", "revoked_at"}
    assert (listed["name"], listed["last_used_at"], listed["revoked_at"]) == ("web shop", None, None)
    assert made["password"] not in customer.get("/v1/smtp-credentials").text
    assert sends(customer, basic(made))
    used = found(customer, "/v1/smtp-credentials", "smtp_credentials", "username", made["username"])
    assert used["last_used_at"] > used["created_at"]
    gone = customer.request("DELETE", f"/v1/smtp-credentials/{made['username']}")
    assert gone.json()["revoked"] is True
    assert not sends(customer, basic(made))
    assert found(customer, "/v1/smtp-credentials", "smtp_credentials", "username", made["username"])["revoked_at"]


@pytest.mark.parametrize(
    ("body", "prefix", "scope", "test"),
    [
        ({}, "ma_live_", "send", False),
        ({"scope": "full"}, "ma_live_", "full", False),
        ({"test": True, "name": "x"}, "ma_test_", "send", True),
    ],
)
def test_a_key_works_until_it_is_revoked(
    new_account: NewAccount, body: dict[str, Any], prefix: str, scope: str, test: bool
) -> None:
    """The key is shown once, of the kind that was asked for, with its last four characters afterwards."""
    customer = owner(new_account())
    made = create(customer, "/v1/api-keys", **body)
    assert made["key"].startswith(prefix)
    assert (made["scope"], made["test"], made["name"]) == (scope, test, body.get("name", ""))
    assert made["hint"] == made["key"][-4:]
    sent = customer.using(bearer(made["key"])).post(message())
    assert sent.status_code == 202
    read = customer.using(bearer(made["key"])).get(f"/emails/{sent.json()['id']}")
    assert read.status_code == (200 if scope == "full" else 401)
    listed = customer.get("/v1/api-keys")
    assert made["key"] not in listed.text
    assert found(customer, "/v1/api-keys", "api_keys", "id", made["id"])["last_used_at"] is not None
    assert customer.request("DELETE", f"/v1/api-keys/{made['id']}").json()["revoked"] is True
    assert not sends(customer, bearer(made["key"]))
    assert found(customer, "/v1/api-keys", "api_keys", "id", made["id"])["revoked_at"] is not None


def test_the_last_use_reaches_the_disk_by_itself(new_account: NewAccount) -> None:
    """It is stored soon after the use, without a further request."""
    caller = new_account()
    caller.send()
    eventually(
        lambda: [key.last_used_at for key in caller.stored(lambda store: store.access.keys(caller.account.account_id))],
        lambda times: any(times),
        patience=20,
    )


@pytest.mark.parametrize("path", ["/v1/smtp-credentials", "/v1/api-keys"])
@pytest.mark.parametrize("body", [{"name": "x" * 65}, {"name": "a\nb"}, {"name": None}, {"name": 1}, {"nome": "x"}, []])
def test_a_name_is_one_short_line(customer: Caller, path: str, body: object) -> None:
    """Anything else is refused before anything is made."""
    before = len(customer.get(path).text)
    error(customer.request("POST", path, json=body), 400, "invalid_request")
    assert abs(len(customer.get(path).text) - before) < 60  # but for the time of a use


@pytest.mark.parametrize("body", [{"scope": "admin"}, {"scope": None}, {"test": "yes"}, {"test": 1}])
def test_a_key_is_of_a_known_kind(customer: Caller, body: object) -> None:
    """An unknown scope or a strange flag is refused."""
    error(customer.request("POST", "/v1/api-keys", json=body), 400, "invalid_request")


def test_lists_are_paged_newest_first(new_account: NewAccount) -> None:
    """Every key is on exactly one page."""
    customer = owner(new_account())
    made = [create(customer, "/v1/api-keys")["id"] for _ in range(2)]
    first = customer.get("/v1/api-keys", params={"limit": 2}).json()
    assert [each["id"] for each in first["api_keys"]] == made[::-1]
    second = customer.get("/v1/api-keys", params={"before": first["next"]}).json()
    assert len(second["api_keys"]) == 3  # which the account was made with
    assert second["next"] is None


def test_a_hundred_work_at_once(new_account: NewAccount) -> None:
    """One more is refused until another is revoked."""
    customer = owner(new_account())
    made = [create(customer, "/v1/smtp-credentials") for _ in range(99)]  # beside the one it was made with
    error(customer.request("POST", "/v1/smtp-credentials", json={}), 409, "conflict")
    customer.request("DELETE", f"/v1/smtp-credentials/{made[0]['username']}")
    create(customer, "/v1/smtp-credentials")


def test_a_key_itself_does_not_belong_into_a_path(new_account: NewAccount) -> None:
    """A key is revoked by its id; the key in a URL would end up in logs."""
    customer = owner(new_account())
    error(customer.request("DELETE", f"/v1/api-keys/{customer.account.full_key}"), 404, "not_found")
    assert sends(customer, bearer(customer.account.full_key))
