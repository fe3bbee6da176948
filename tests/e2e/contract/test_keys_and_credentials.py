"""SMTP credentials and API keys in their owner's hands: created, shown once, used, revoked."""

import base64
from functools import partial
from typing import Any

import pytest

from appliance.model.accounts import Role
from appliance.store import Store
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, accepted, bearer, error, eventually, message, owner


def create(customer: Caller, path: str, **body: Any) -> dict[str, Any]:
    """Create one, which must work."""
    response = customer.request("POST", path, json=body)
    assert response.status_code == 201, response.text
    told: dict[str, Any] = response.json()
    return told


def basic(made: dict[str, Any]) -> dict[str, str]:
    pair = f"{made['username']}:{made['password']}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def sends(customer: Caller, headers: dict[str, str]) -> bool:
    return customer.using(headers).post(message()).status_code == 202


def found(customer: Caller, path: str, plural: str, name: str, value: str) -> dict[str, Any]:
    (entry,) = [each for each in customer.get(path).json()[plural] if each[name] == value]
    assert isinstance(entry, dict)
    return entry


def test_a_credential_works_until_it_is_revoked(new_account: NewAccount) -> None:
    """Its password is shown once; it is listed without; its last use is told; revoked it is 401 at once."""
    customer = owner(new_account())
    made = create(customer, "/v1/smtp-credentials", name="web shop")
    listed = found(customer, "/v1/smtp-credentials", "smtp_credentials", "username", made["username"])
    assert made == listed | {"password": made["password"], "request_id": made["request_id"]}
    assert set(listed) == {
        *("username", "name", "dsn", "stream", "created_by", "created_at", "last_used_at", "revoked_at")
    }
    assert listed["created_by"] == customer.account.email
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
        ({"scope": "manage"}, "ma_live_", "manage", False),
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
    assert read.status_code == (200 if scope in ("full", "manage") else 401)
    listed = customer.get("/v1/api-keys")
    assert made["key"] not in listed.text
    used = found(customer, "/v1/api-keys", "api_keys", "id", made["id"])
    assert (used["last_used_at"] > made["created_at"], used["last_used_from"]) == (True, "127.0.0.1")
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
    before = len(customer.get(path).text)
    error(customer.request("POST", path, json=body), 400, "invalid_request")
    assert abs(len(customer.get(path).text) - before) < 60  # but for the time of a use


@pytest.mark.parametrize(
    "body",
    [
        {"scope": "admin"},
        {"scope": None},
        {"test": "yes"},
        {"test": 1},
        {"scope": "manage", "test": True},
        {"domain": "no domain"},
        {"domain": "x <a@example.com>"},
        {"domain": ""},
        {"expires_in": 0},
        {"expires_in": 10**12},
        {"expires_at": "tomorrow"},
        {"expires_at": "2099-01-01"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "9999-12-31T23:59:59Z"},
        {"expires_at": "2030-01-01T00:00:00Z", "expires_in": 60},
    ],
)
def test_a_key_is_of_a_known_kind(customer: Caller, body: object) -> None:
    """An unknown scope, a strange flag or limit, or a time that has passed is refused."""
    error(customer.request("POST", "/v1/api-keys", json=body), 400, "invalid_request")


def test_a_key_itself_does_not_belong_into_a_path(new_account: NewAccount) -> None:
    """A key is revoked by its id; the key in a URL would end up in logs."""
    customer = owner(new_account())
    error(customer.request("DELETE", f"/v1/api-keys/{customer.account.full_key}"), 404, "not_found")
    assert sends(customer, bearer(customer.account.full_key))


# ---- scopes


def key_of(customer: Caller, **body: Any) -> Caller:
    return customer.using(bearer(create(customer, "/v1/api-keys", **body)["key"]))


def test_a_reading_key_may_not_send(new_account: NewAccount) -> None:
    """It reads what others have sent, and is told why a send is refused; it does not open /v1."""
    customer = owner(new_account())
    reader = key_of(customer, scope="read")
    assert reader.read(customer.send()["id"])["status"]
    assert "scope `read`" in error(reader.post(message()), 403, "forbidden")
    assert "scope manage" in error(reader.get("/v1/domains"), 401, "unauthorized")


def test_a_managing_key_does_what_a_developer_may(new_account: NewAccount) -> None:
    """It reads and changes what is under /v1, sends and reads; the account is told without a person."""
    customer = owner(new_account())
    manager = key_of(customer, scope="manage", name="terraform")
    assert manager.read(manager.send()["id"])["status"]
    assert manager.get("/v1/domains").status_code == 200
    assert manager.get("/v1/account").json()["email"] == customer.account.email
    assert manager.request("PUT", "/v1/templates/by-key", json={"text": "t"}).status_code == 200
    assert manager.request("POST", "/v1/suppressions", json={"address": "x@example.net"}).status_code == 201
    made = create(manager, "/v1/api-keys", scope="manage")
    assert manager.request("DELETE", f"/v1/api-keys/{made['id']}").json()["revoked"] is True


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/auth/sessions"),
        ("DELETE", "/v1/auth/sessions"),
        ("POST", "/v1/auth/logout"),
        ("GET", "/v1/admin/accounts"),
        ("GET", "/v1/admin/queue"),
        ("POST", "/v1/admin/queue/google/resume"),
        ("GET", "/v1/admin/nodes"),
        ("GET", "/v1/admin/sources"),
    ],
)
def test_a_managing_key_is_no_person_and_no_administrator(new_account: NewAccount, method: str, path: str) -> None:
    admin = owner(new_account(role=Role.ADMIN))
    assert admin.get("/v1/admin/accounts").status_code == 200
    error(key_of(admin, scope="manage").request(method, path), 403, "forbidden")


# ---- limits


async def add_domain(account_id: str, name: str, store: Store) -> None:
    await store.access.add_domain(account_id, name, usable=True)


def test_a_key_sends_from_its_domain_only(new_account: NewAccount) -> None:
    """By the domain of the address: a display name, another spelling or a registered domain does not help."""
    customer = owner(new_account())
    account_id = customer.account.account_id
    for name in ("xn--bcher-kva.example", "other.example"):
        customer.stored(partial(add_domain, account_id, name))
    limited = key_of(customer, domain="BÜCHER.example")
    for sender in ("a@bücher.example", "a@xn--bcher-kva.example", "a@XN--BCHER-KVA.Example", "Shop <a@Bücher.example>"):
        accepted(limited.post(message(from_=sender)))
    for sender in (
        "a@other.example",
        "a@example.com",
        '"a@xn--bcher-kva.example" <a@other.example>',
        "bücher.example <a@other.example>",
        "a@sub.bücher.example",
        "a@bucher.example",
        "a@bu\u0308cher.example.other.example",
    ):
        told = error(limited.post(message(from_=sender)), 403, "forbidden")
        assert "may only send from xn--bcher-kva.example" in told
    assert customer.post(message(from_="a@other.example")).status_code == 202


def test_a_limited_key_manages_within_its_limits(new_account: NewAccount) -> None:
    """It makes and rolls no key that may do more or for longer, makes no SMTP credential, and tests from its domain."""
    customer = owner(new_account())
    limited = key_of(customer, scope="manage", domain="example.com", expires_in=3600)
    free = create(customer, "/v1/api-keys")
    for body in ({}, {"domain": "example.com"}, {"domain": "example.com", "expires_in": 7200}, {"expires_in": 60}):
        assert "than its own" in error(limited.request("POST", "/v1/api-keys", json=body), 403, "forbidden")
    error(limited.request("POST", f"/v1/api-keys/{free['id']}/roll"), 403, "forbidden")
    error(limited.request("POST", "/v1/smtp-credentials", json={}), 403, "forbidden")
    create(limited, "/v1/api-keys", domain="example.com", expires_in=60)
    body = {"to": "ada@example.net", "from": "a@other.example"}
    assert "may only" in error(limited.request("POST", "/v1/emails/test", json=body), 403, "forbidden")
    assert limited.request("POST", "/v1/emails/test", json={"to": "ada@example.net"}).status_code == 202


def test_a_key_ends_at_its_time(new_account: NewAccount) -> None:
    """Also one that was just used; the refusal is 401 and says that it expired, everywhere."""
    customer = owner(new_account())
    made = create(customer, "/v1/api-keys", scope="manage", expires_in=1)
    assert made["expires_at"] > made["created_at"]
    key = customer.using(bearer(made["key"]))
    eventually(lambda: key.get("/v1/domains").status_code, lambda status: status == 401)
    for answer in (key.post(message()), key.get("/emails/msg_0"), key.get("/v1/domains")):
        assert f"expired at {made['expires_at']}" in error(answer, 401, "unauthorized")
    error(customer.request("POST", f"/v1/api-keys/{made['id']}/roll"), 409, "conflict")


def test_the_former_secret_of_a_key_changes_no_key(new_account: NewAccount) -> None:
    """It does what else the key may until its overlap ends; the new one rolls."""
    customer = owner(new_account())
    made = create(customer, "/v1/api-keys", scope="manage")
    path = f"/v1/api-keys/{made['id']}"
    rolled = customer.request("POST", f"{path}/roll").json()
    former, current = customer.using(bearer(made["key"])), customer.using(bearer(rolled["key"]))
    assert former.get("/v1/api-keys").status_code == 200
    for method, where in (("POST", f"{path}/roll"), ("POST", "/v1/api-keys"), ("DELETE", path)):
        body = {"expires_in": 60} if where == "/v1/api-keys" else None
        assert "was replaced" in error(former.request(method, where, json=body), 403, "forbidden")
    error(former.request("POST", "/v1/smtp-credentials", json={}), 403, "forbidden")
    assert current.request("POST", f"{path}/roll").status_code == 200


def test_a_rolled_key_changes_its_secret(new_account: NewAccount) -> None:
    """Both work until the overlap ends, for a day if it is not given; the list tells it; 0 ends the former at once."""
    customer = owner(new_account())
    made = create(customer, "/v1/api-keys", name="shop", scope="full")
    path = f"/v1/api-keys/{made['id']}/roll"
    rolled = customer.request("POST", path).json()
    assert (rolled["id"], rolled["name"], rolled["scope"]) == (made["id"], "shop", "full")
    assert (rolled["previous_hint"], rolled["hint"]) == (made["key"][-4:], rolled["key"][-4:])
    assert sends(customer, bearer(made["key"]))
    assert sends(customer, bearer(rolled["key"]))
    listed = found(customer, "/v1/api-keys", "api_keys", "id", made["id"])
    assert listed["previous_expires_at"] == rolled["previous_expires_at"]
    again = customer.request("POST", path, json={"overlap": 0}).json()
    assert again["previous_hint"] is None
    assert not sends(customer, bearer(made["key"]))
    told = error(customer.using(bearer(rolled["key"])).post(message()), 401, "unauthorized")
    assert "because it was rolled" in told
    assert sends(customer, bearer(again["key"]))
    wrong: list[Any] = [{"overlap": -1}, {"overlap": 10**9}, {"overlap": "1d"}, []]
    for body in wrong:
        error(customer.request("POST", path, json=body), 400, "invalid_request")
