"""Who may do what: the four kinds of credential, and everything that is none."""

import base64
import statistics
import time
import uuid
from typing import Any

import httpx
import jwt
import pytest

from appliance.keys.keyfile import derive, load_or_create
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, at_once, bearer, error, message, new_key
from tests.running_appliance import PASSWORD, Provisioned, Running
from tests.stopwatch import Stopwatch

CLAIMS = ("iss", "sub", "acct", "role", "iat", "exp", "jti")


def basic(username: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}


def unauthorized(response: httpx.Response) -> str:
    """The text of a 401, which names the schemes one could use."""
    challenge = response.headers["www-authenticate"]
    assert "Basic" in challenge
    assert "Bearer" in challenge
    return error(response, 401, "unauthorized")


def ask(caller: Caller, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    """One request without anything but these headers, and a body where there may be one."""
    body = message() if path == "/emails" else {}
    sent = {"Idempotency-Key": new_key()} | headers
    return caller.client.request(method, path, json=body if method in ("POST", "PUT") else None, headers=sent)


def credentials(account: Provisioned) -> dict[str, dict[str, str]]:
    return {
        "basic": account.basic,
        "send": bearer(account.send_key),
        "full": bearer(account.full_key),
        "test": bearer(account.test_key),
    }


# ---- the matrix


@pytest.mark.parametrize("kind", ["basic", "send", "full", "test", "token"])
def test_every_credential_may_send(caller: Caller, kind: str) -> None:
    """POST /emails takes Basic, keys of both scopes, and a customer token."""
    headers = bearer(caller.token()) if kind == "token" else credentials(caller.account)[kind]
    assert ask(caller, "POST", "/emails", headers).status_code == 202


@pytest.mark.parametrize("kind", ["basic", "full", "test", "token"])
def test_all_but_sending_keys_may_read(caller: Caller, kind: str) -> None:
    """GET /emails/{id} takes Basic, a key of scope full, and a customer token, by whichever of them it was sent.

    A test key reads what a test key sent.
    """
    headers = bearer(caller.token()) if kind == "token" else credentials(caller.account)[kind]
    message_id = (caller.using(headers) if kind == "test" else caller).send()["id"]
    assert ask(caller, "GET", f"/emails/{message_id}", headers).json()["id"] == message_id


def test_a_sending_key_may_not_read(caller: Caller) -> None:
    """A key of scope send gets 401 and is told why, for messages that are there and those that are not."""
    for message_id in (caller.send()["id"], "msg_unknown"):
        response = ask(caller, "GET", f"/emails/{message_id}", bearer(caller.account.send_key))
        assert unauthorized(response) == "this key may only send"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
def test_health_and_description_are_open(caller: Caller, path: str) -> None:
    """No credential is needed to ask whether the service is there, or what it offers."""
    assert ask(caller, "GET", path, {}).status_code == 200


# ---- what is no credential


def test_a_wrong_credential_is_401_everywhere(caller: Caller) -> None:
    """Whatever is not exactly a credential of an account is refused the same way, however close it is."""
    account = caller.account
    token = caller.token()
    wrong = [
        "Basic",
        "Bearer",
        "Digest username=x",
        account.full_key,
        f"Token {account.full_key}",
        f"Bearer {account.full_key}x",
        f"Bearer {account.full_key[:-1]}",
        f"Bearer {account.full_key.swapcase()}",
        f"Bearer {account.full_key.replace('ma_live_', 'ma_test_')}",
        f"Bearer {account.password}",
        "Bearer ma_live_",
        "Bearer ma_",
        f"Basic {account.full_key}",
        "Basic !!!",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
        "Basic " + base64.b64encode(f"{account.username}\0:{account.password}".encode()).decode(),
        basic(account.username, account.password + " ")["Authorization"],
        basic(account.username, "")["Authorization"],
        basic("", account.password)["Authorization"],
        basic(account.email, PASSWORD)["Authorization"],
        basic(account.full_key, "")["Authorization"],
        basic(account.username.upper(), account.password)["Authorization"],
        f"Bearer {token}x",
        f"Bearer {token[:-2]}",
        f"Bearer {token.rsplit('.', 1)[0]}.",
        "Bearer a.b.c",
        "Bearer ..",
        "Bearer " + base64.urlsafe_b64encode(b"[" * 6000).decode() + ".e30.e30",
        "Bearer " + "x" * 8000,
    ]
    requests = [(method, path, text) for method, path in (("POST", "/emails"), ("GET", "/emails/x")) for text in wrong]
    for response in at_once(lambda each: ask(caller, *each[:2], {"Authorization": each[2]}), requests):
        unauthorized(response)


def test_the_scheme_is_known_in_any_spelling(caller: Caller) -> None:
    """Schemes compare ignoring case (RFC 9110 11.1)."""
    for scheme in ("bearer", "BEARER", "Bearer"):
        headers = {"Authorization": f"{scheme} {caller.account.full_key}"}
        assert ask(caller, "POST", "/emails", headers).status_code == 202


# ---- tokens


def claims_of(caller: Caller) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(caller.token(), options={"verify_signature": False})
    return claims


def key_of(running: Running) -> bytes:
    return derive(load_or_create(running.data_dir), "dashboard tokens")


def test_a_token_says_who_and_until_when(caller: Caller) -> None:
    """HS256, with every claim that was decided on, for twelve hours, and an id of its own."""
    token = caller.token()
    assert jwt.get_unverified_header(token)["alg"] == "HS256"
    claims = jwt.decode(token, key_of(caller.running), algorithms=["HS256"], options={"verify_iat": False})
    assert set(CLAIMS) <= set(claims)
    assert claims["acct"] == caller.account.account_id
    assert claims["role"] == "customer"
    assert claims["exp"] - claims["iat"] == 12 * 3600
    assert abs(claims["iat"] - time.time()) < 60
    assert claims["jti"] != claims_of(caller)["jti"]


def test_a_forged_token_is_401(caller: Caller) -> None:
    """No algorithm and no key but ours, no claim missing, none expired: anything else is 401 on every endpoint."""
    claims, key, now = claims_of(caller), key_of(caller.running), int(time.time())
    forged = [
        jwt.encode(claims, "", algorithm="none"),
        jwt.encode(claims, b"x" * 32, algorithm="HS256"),
        jwt.encode(claims, key + b"x", algorithm="HS256"),
        jwt.encode(claims, key * 2, algorithm="HS384"),
        jwt.encode(claims, key * 2, algorithm="HS512"),
        *(jwt.encode({k: v for k, v in claims.items() if k != name}, key, algorithm="HS256") for name in CLAIMS),
        jwt.encode(claims | {"exp": now - 1}, key, algorithm="HS256"),
        jwt.encode(claims | {"exp": now - 13 * 3600}, key, algorithm="HS256"),
        jwt.encode(claims | {"exp": "soon"}, key, algorithm="HS256"),
        jwt.encode(claims | {"exp": None}, key, algorithm="HS256"),
        jwt.encode(claims | {"iss": "another"}, key, algorithm="HS256"),
        jwt.encode(claims | {"sub": "usr_unknown"}, key, algorithm="HS256"),
        jwt.encode(claims | {"acct": "acc_unknown"}, key, algorithm="HS256"),
        jwt.encode(claims | {"role": "emperor"}, key, algorithm="HS256"),
        jwt.encode(claims, key, algorithm="HS256").rsplit(".", 1)[0] + ".",
    ]
    good = jwt.encode(claims, key, algorithm="HS256")
    assert ask(caller, "GET", "/v1/templates", bearer(good)).status_code == 200
    paths = (("POST", "/emails"), ("GET", "/emails/x"), ("GET", "/v1/templates"))
    requests = [(*path, token) for path in paths for token in forged]
    for response in at_once(lambda each: ask(caller, *each[:2], bearer(each[2])), requests):
        unauthorized(response)


# ---- guessing


def seconds(caller: Caller, email: str) -> float:
    began = time.monotonic()
    unauthorized(caller.client.post("/v1/auth/login", json={"email": email, "password": "wrong"}))
    return time.monotonic() - began


def test_unknown_users_are_refused_as_slowly_as_known_ones(new_account: NewAccount) -> None:
    """Neither the time of a refused login nor its words tell whether there is such a user."""
    caller = new_account()
    emails = (caller.account.email, f"{uuid.uuid4().hex}@example.org")
    taken = [at_once(lambda email: seconds(caller, email), emails) for _ in range(5)]
    known, unknown = (statistics.median(each) for each in zip(*taken, strict=True))
    assert min(known, unknown) >= 1.0
    assert abs(known - unknown) < 0.5  # a refusal without the wait would be a second faster


def test_a_refused_login_says_the_same_for_known_and_unknown_users(new_account: NewAccount) -> None:
    """The two refusals are equal but for their request_id."""
    caller = new_account()

    def login(email: str) -> httpx.Response:
        return caller.client.post("/v1/auth/login", json={"email": email, "password": "wrong"})

    known, unknown = at_once(login, (caller.account.email, f"{uuid.uuid4().hex}@example.org"))
    assert unauthorized(known) == unauthorized(unknown)
    assert len(known.content) == len(unknown.content)


def test_guessing_a_password_has_to_wait(new_account: NewAccount) -> None:
    """After ten failures in a quarter of an hour logins to that account are told to wait; keys go on working."""
    caller = new_account()
    at_once(lambda _: unauthorized(caller.login("wrong")), range(10))
    response = caller.login()
    error(response, 429, "rate_limited")
    assert int(response.headers["retry-after"]) > 0
    assert caller.post(message()).status_code == 202
    assert new_account().login().status_code == 200


def test_a_wrong_guess_is_answered_after_a_second(caller: Caller) -> None:
    """A wrong key costs its sender a second; a right one afterwards costs nothing."""
    began = time.monotonic()
    unauthorized(ask(caller, "GET", "/emails/x", bearer("ma_live_wrong")))
    assert time.monotonic() - began >= 1.0
    watch = Stopwatch(caller.running.pid)
    caller.send()
    assert watch.taken < 0.9
