"""Logging in and out of the dashboard: tokens, their renewal and their end."""

from datetime import UTC, datetime
from typing import Any

import httpx
import jwt
import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, at_once, bearer, error, message, owner
from tests.running_appliance import PASSWORD

NEW_PASSWORD = "a new and longer password"
UNKNOWN = {"email": "unknown@example.org", "password": PASSWORD}


def works(caller: Caller, token: str) -> bool:
    return caller.using(bearer(token)).get("/v1/templates").status_code == 200


def refused(caller: Caller, *tokens: str) -> None:
    """None of these tokens may open anything."""
    paths = (("GET", "/v1/templates"), ("GET", "/emails/x"), ("POST", "/v1/auth/refresh"))
    requests = [(*path, token) for path in paths for token in tokens]
    for response in at_once(lambda each: caller.using(bearer(each[2])).request(*each[:2]), requests):
        error(response, 401, "unauthorized")


def change_password(caller: Caller, token: str, **fields: Any) -> httpx.Response:
    """One POST /v1/auth/password."""
    return caller.using(bearer(token)).request("POST", "/v1/auth/password", json=fields)


def test_a_login_gives_a_token(caller: Caller) -> None:
    """The answer has token, token_type, expires_at in twelve hours, and whose it is."""
    response = caller.login()
    assert response.status_code == 200
    body = response.json()
    assert set(body) == {"token", "token_type", "expires_at", "account", "request_id"}
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["token_type"] == "Bearer"
    left = datetime.fromisoformat(body["expires_at"]).timestamp() - datetime.now(UTC).timestamp()
    assert 12 * 3600 - 60 < left <= 12 * 3600
    account = caller.account
    assert (body["account"]["id"], body["account"]["name"]) == (account.account_id, account.name)
    assert body["account"]["email"] == account.email
    assert works(caller, body["token"])


def test_the_address_is_known_in_any_spelling(caller: Caller) -> None:
    """Logging in ignores the case of the address, and never that of the password."""
    body = {"email": caller.account.email.upper(), "password": PASSWORD}
    assert caller.client.post("/v1/auth/login", json=body).status_code == 200
    error(caller.login(PASSWORD.upper()), 401, "unauthorized")


def test_a_wrong_login_is_401(new_account: NewAccount) -> None:
    """A wrong password, an unknown address, and other secrets of the account do not log in."""
    caller = new_account()
    account = caller.account
    wrong = [
        {"email": account.email, "password": "wrong"},
        {"email": account.email, "password": PASSWORD + " "},
        {"email": account.email, "password": account.password},
        {"email": account.email, "password": account.full_key},
        {"email": account.username, "password": account.password},
        {"email": account.email + "\0", "password": PASSWORD},
        {"email": "' OR 1=1 --", "password": PASSWORD},
        {"email": account.email, "password": "\0"},
        UNKNOWN,
    ]
    for response in at_once(lambda body: caller.client.post("/v1/auth/login", json=body), wrong):
        error(response, 401, "unauthorized")
        assert "www-authenticate" in response.headers


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"email": "a@example.org"}',
        b'{"password": "x"}',
        b'{"email": "", "password": "x"}',
        b'{"email": "a@example.org", "password": ""}',
        b'{"email": null, "password": "x"}',
        b'{"email": ["a@example.org"], "password": "x"}',
        b'{"email": "a@example.org", "password": "x", "remember": true}',
        b'{"email": "a@example.org", "password": "x", "password": "y"}',
        b'{"email": "a@example.org", "password": "\\ud800"}',
        b'{"email": "a@example.org", "password": "\xff"}',
        b'{"email": "a@example.org", "password": ' + b'"' + b"x" * 2000 + b'"}',
        b"[" * 50_000,
    ],
)
def test_what_is_no_login_is_400(caller: Caller, content: bytes) -> None:
    """A login's body is checked like any other, before any password is."""
    headers = {"Content-Type": "application/json"}
    error(caller.client.post("/v1/auth/login", content=content, headers=headers), 400, "invalid_request")


def test_a_login_is_json(caller: Caller) -> None:
    error(caller.client.post("/v1/auth/login", data=UNKNOWN), 400, "invalid_request")
    for content_type in ("application/json; charset=latin-1", "application/json; charset=utf-8; x=y", "text/json", ""):
        wrong = caller.client.post("/v1/auth/login", content=b"{}", headers={"Content-Type": content_type})
        assert error(wrong, 400, "invalid_request").startswith("Content-Type:")
    right = {"Content-Type": 'Application/JSON ; charset="UTF-8"'}
    refused = caller.client.post("/v1/auth/login", content=b"{}", headers=right)
    assert error(refused, 400, "invalid_request").startswith("email:")


def test_a_refresh_gives_another_token(caller: Caller) -> None:
    """Refreshing answers like a login; the old token works on until it expires or is logged out."""
    first = caller.token()
    response = caller.using(bearer(first)).request("POST", "/v1/auth/refresh")
    assert response.status_code == 200
    body = response.json()
    assert set(body) == {"token", "token_type", "expires_at", "account", "request_id"}
    assert body["token"] != first
    assert works(caller, body["token"])
    assert works(caller, first)


def test_a_logout_ends_its_token_alone(new_account: NewAccount) -> None:
    """The token that logged out is 401 at once, everywhere; others of the user go on."""
    caller = new_account()
    one, other = caller.token(), caller.token()
    assert caller.using(bearer(one)).post(message()).status_code == 202
    response = caller.using(bearer(one)).request("POST", "/v1/auth/logout")
    assert response.json() == {"logged_out": True, "request_id": response.headers["x-request-id"]}
    error(caller.using(bearer(one)).post(message()), 401, "unauthorized")
    refused(caller, one)
    assert works(caller, other)


def test_a_new_password_ends_every_token(new_account: NewAccount) -> None:
    """A password change revokes all tokens of the user; only the new password logs in; keys go on working."""
    caller = new_account()
    one, other = caller.token(), caller.token()
    response = change_password(caller, one, current_password=PASSWORD, new_password=NEW_PASSWORD)
    assert response.status_code == 200
    assert response.json() == {"changed": True, "request_id": response.headers["x-request-id"]}
    refused(caller, one, other)
    error(caller.login(), 401, "unauthorized")
    assert works(caller, caller.login(NEW_PASSWORD).json()["token"])
    assert caller.post(message()).status_code == 202


def test_of_many_changes_at_once_one_counts(new_account: NewAccount) -> None:
    caller = new_account()
    customer = owner(caller)

    def change(number: int) -> int:
        body = {"current_password": PASSWORD, "new_password": f"the new password {number}"}
        return customer.request("POST", "/v1/auth/password", json=body).status_code

    answers = at_once(change, range(4))
    assert sorted(answers) == [200, 401, 401, 401]
    assert caller.login(f"the new password {answers.index(200)}").status_code == 200


def test_the_current_password_is_needed(new_account: NewAccount) -> None:
    """A token alone does not change the password; it stays good after the refusal."""
    caller = new_account()
    token = caller.token()
    response = change_password(caller, token, current_password="wrong", new_password=NEW_PASSWORD)
    assert error(response, 403, "forbidden").startswith("current_password:")
    assert works(caller, token)
    assert caller.login().status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"new_password": NEW_PASSWORD},
        {"current_password": PASSWORD},
        {"current_password": PASSWORD, "new_password": "short"},
        {"current_password": PASSWORD, "new_password": None},
        {"current_password": PASSWORD, "new_password": NEW_PASSWORD, "hint": "x"},
    ],
)
def test_a_wrong_new_password_is_refused(customer: Caller, fields: dict[str, Any]) -> None:
    """Missing, too short or no text: 400, and the old one stays. tests/keys/test_secrets.py has the lengths."""
    error(customer.request("POST", "/v1/auth/password", json=fields), 400, "invalid_request")
    assert customer.get("/v1/templates").status_code == 200


def test_a_token_does_not_hold_secrets(caller: Caller) -> None:
    claims = jwt.decode(caller.token(), options={"verify_signature": False})
    assert not any(secret in str(claims) for secret in (caller.account.email, caller.account.password, PASSWORD))
