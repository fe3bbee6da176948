"""People of an account: invitations, the three roles, and what each is refused."""

import uuid
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from appliance.model.accounts import Role
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, error, message, owner
from tests.e2e.contract.test_keys_and_credentials import basic
from tests.running_appliance import PASSWORD, add_account


def someone() -> str:
    return f"{uuid.uuid4().hex[:12]}@example.org"


def invited(caller: Caller, email: str, role: str) -> dict[str, Any]:
    made = caller.request("POST", "/v1/users", json={"email": email, "role": role})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def token_of(invitation: dict[str, Any]) -> str:
    return str(dict(parse_qsl(urlsplit(invitation["link"]).fragment))["token"])


def accept(caller: Caller, token: str, password: str = PASSWORD) -> httpx.Response:
    """One POST /v1/auth/invitation."""
    return caller.client.post("/v1/auth/invitation", json={"token": token, "password": password})


def joined(caller: Caller, role: str) -> Caller:
    email = someone()
    assert accept(caller, token_of(invited(caller, email, role))).status_code == 200
    return owner(replace(caller, account=replace(caller.account, email=email)))


def people(caller: Caller) -> dict[str, dict[str, Any]]:
    return {user["email"]: user for user in caller.get("/v1/users").json()["users"]}


def user_id(caller: Caller) -> str:
    return str(people(caller)[caller.account.email]["id"])


@pytest.fixture
def boss(new_account: NewAccount) -> Caller:
    return owner(new_account())


def test_an_invitation_leads_to_a_login(boss: Caller) -> None:
    """The link is shown once, its token in the fragment; who accepts it logs in with the role it was made for."""
    email = someone()
    made = invited(boss, email.upper(), "developer")
    assert set(made) == {"id", "email", "role", "created_at", "expires_at", "link", "mailed", "request_id"}
    assert (made["email"], made["role"]) == (email, "developer")
    link = urlsplit(made["link"])
    assert (link.path, link.query) == ("/dashboard/invitation", "")
    assert dict(parse_qsl(link.fragment)) == {"token": token_of(made), "email": email}
    (waiting,) = boss.get("/v1/users").json()["invitations"]
    assert waiting == {key: made[key] for key in ("id", "email", "role", "created_at", "expires_at")}
    accepted = accept(boss, token_of(made)).json()
    assert accepted == {"email": email, "request_id": accepted["request_id"]}
    login = boss.client.post("/v1/auth/login", json={"email": email, "password": PASSWORD}).json()
    assert (login["account"]["id"], login["account"]["account_role"]) == (boss.account.account_id, "developer")
    assert login["account"]["totp_required"] is False
    told = boss.get("/v1/users").json()
    assert told["invitations"] == []
    assert [user["role"] for user in told["users"]] == ["owner", "developer"]
    assert boss.get("/v1/account").json()["account_role"] == "owner"
    assert token_of(made) not in boss.running.log_file.read_text()


def test_an_address_of_another_account_is_told_when_the_link_is_used(boss: Caller, new_account: NewAccount) -> None:
    """An invitation is answered alike whether or not its address logs in elsewhere; in the same account it is 409."""
    body = {"email": boss.account.email, "role": "viewer"}
    other = owner(new_account())
    made, unknown = invited(other, boss.account.email, "viewer"), invited(other, someone(), "viewer")
    assert made.keys() == unknown.keys()
    assert "another account" in error(accept(other, token_of(made)), 409, "conflict")
    assert boss.login().status_code == 200
    assert "this account" in error(boss.request("POST", "/v1/users", json=body), 409, "conflict")
    email = someone()
    here, there = (token_of(invited(each, email, "viewer")) for each in (boss, other))
    assert accept(other, there).status_code == 200
    assert email in error(accept(boss, here), 409, "conflict")


def test_an_account_invites_so_many_and_then_waits(new_account: NewAccount) -> None:
    """A hundred at once, withdrawn or not; then 429 with Retry-After, while other accounts go on."""
    busy, other = owner(new_account()), owner(new_account())
    email = someone()
    for _ in range(100):
        made = invited(busy, email, "viewer")
    refused = busy.request("POST", "/v1/users", json={"email": email, "role": "viewer"})
    error(refused, 429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 180
    assert accept(busy, token_of(made)).status_code == 200
    invited(other, someone(), "viewer")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"email": "ann@example.org"},
        {"email": "ann", "role": "viewer"},
        {"email": "Ann <ann@example.org>", "role": "viewer"},
        {"email": "ann@example.org", "role": "admin"},
        {"email": "ann@example.org", "role": "viewer", "password": "x"},
    ],
)
def test_a_strange_invitation_is_400(customer: Caller, body: dict[str, Any]) -> None:
    error(customer.request("POST", "/v1/users", json=body), 400, "invalid_request")


def test_a_weak_password_keeps_the_invitation(boss: Caller) -> None:
    """It is refused as in a password change, and the link is still good."""
    token = token_of(invited(boss, someone(), "viewer"))
    error(accept(boss, token, "short"), 400, "invalid_request")
    assert accept(boss, token).status_code == 200


# ---- roles


def test_a_viewer_reads_mail_and_sends_none(new_account: NewAccount) -> None:
    """`POST /emails` with the token is 403; `GET /emails/{id}` is what it was."""
    caller = new_account()
    sent = caller.send()["id"]
    boss = owner(caller)
    viewer, developer = joined(boss, "viewer"), joined(boss, "developer")
    error(viewer.post(message()), 403, "forbidden")
    assert viewer.read(sent)["id"] == sent
    assert developer.post(message()).status_code == 202


def test_another_role_counts_at_once(boss: Caller) -> None:
    """The token of before ends; one that is renewed by the session has the new role."""
    user = joined(boss, "developer")
    cookie = boss.client.post("/v1/auth/login", json={"email": user.account.email, "password": PASSWORD})
    assert cookie.status_code == 200
    changed = boss.request("POST", f"/v1/users/{user_id(user)}/role", json={"role": "viewer"})
    assert (changed.status_code, changed.json()["role"]) == (200, "viewer")
    error(user.request("PUT", "/v1/templates/a", json={"text": "t"}), 401, "unauthorized")
    error(user.post(message()), 401, "unauthorized")
    again = owner(user)
    error(again.request("PUT", "/v1/templates/a", json={"text": "t"}), 403, "forbidden")
    assert again.get("/v1/templates").status_code == 200


def test_a_removed_user_is_out_at_once(boss: Caller, customer: Caller) -> None:
    """Token, session and login end, and the address may be invited again."""
    user = joined(boss, "owner")
    found = user_id(user)
    error(customer.request("DELETE", f"/v1/users/{found}"), 404, "not_found")
    assert boss.request("DELETE", f"/v1/users/{found}").json()["deleted"] is True
    error(user.get("/v1/account"), 401, "unauthorized")
    error(user.get("/emails/msg_x"), 401, "unauthorized")
    error(user.login(), 401, "unauthorized")
    assert set(people(boss)) == {boss.account.email}
    invited(boss, user.account.email, "viewer")


# ---- administration


@pytest.fixture(scope="module")
def admin(running: Any, client: Any) -> Caller:
    return owner(
        Caller(running, add_account(running.data_dir, f"admin-{uuid.uuid4().hex[:8]}", role=Role.ADMIN), client, {})
    )


def test_an_administrator_resets_a_password(admin: Caller, boss: Caller) -> None:
    """By a link like an invitation's: the user's sessions end when it is used, and it is good once."""
    users = admin.get(f"/v1/admin/accounts/{boss.account.account_id}/users").json()["users"]
    assert [user["email"] for user in users] == [boss.account.email]
    made = admin.request("POST", f"/v1/admin/users/{users[0]['id']}/password-reset")
    assert made.status_code == 201
    assert boss.get("/v1/users").json()["invitations"] == []
    assert boss.get("/v1/account").status_code == 200
    assert accept(boss, token_of(made.json()), "a password for later").status_code == 200
    error(boss.get("/v1/account"), 401, "unauthorized")
    error(boss.login(), 401, "unauthorized")
    assert boss.login("a password for later").status_code == 200
    error(accept(boss, token_of(made.json())), 401, "unauthorized")


# ---- keys and credentials of people


def test_a_removed_users_keys_are_revoked(boss: Caller) -> None:
    """Those that the user made, and those that such a key made; they are listed before and after, others stay."""
    user = joined(boss, "developer")
    kept = boss.request("POST", "/v1/api-keys", json={"name": "ours"}).json()
    manage = user.request("POST", "/v1/api-keys", json={"name": "theirs", "scope": "manage"}).json()
    by_key = boss.using(bearer(manage["key"]))
    second = by_key.request("POST", "/v1/api-keys", json={"name": "more"}).json()
    credential = by_key.request("POST", "/v1/smtp-credentials", json={}).json()
    assert (manage["created_by"], second["created_by"]) == (user.account.email, user.account.email)
    listed = people(boss)[user.account.email]
    assert listed["api_keys"] == [{"id": each["id"], "name": each["name"]} for each in (manage, second)]
    assert [each["username"] for each in listed["smtp_credentials"]] == [credential["username"]]
    answer = boss.request("DELETE", f"/v1/users/{listed['id']}").json()
    assert answer["deleted"] is True
    assert sorted(answer["revoked"]["api_keys"]) == sorted([manage["id"], second["id"]])
    assert answer["revoked"]["smtp_credentials"] == [credential["username"]]
    for headers in (bearer(manage["key"]), bearer(second["key"]), basic(credential)):
        error(boss.using(headers).post(message()), 401, "unauthorized")
    error(by_key.request("POST", "/v1/api-keys", json={}), 401, "unauthorized")
    assert boss.using(bearer(kept["key"])).post(message()).status_code == 202


def test_a_removed_users_keys_can_be_kept(boss: Caller) -> None:
    """Then they belong to the account, and still make others."""
    user = joined(boss, "developer")
    made = user.request("POST", "/v1/api-keys", json={"scope": "manage"}).json()
    answer = boss.request("DELETE", f"/v1/users/{user_id(user)}?keep_keys=true").json()
    assert answer["revoked"] == {"api_keys": [], "smtp_credentials": []}
    key = boss.using(bearer(made["key"]))
    assert key.request("POST", "/v1/api-keys", json={}).json()["created_by"] is None
    error(boss.request("DELETE", f"/v1/users/{user_id(boss)}?keep_keys=yes"), 400, "invalid_request")


def test_a_demoted_users_keys_only_read(boss: Caller) -> None:
    """`manage` and `full` become `read`; `send` and SMTP credentials end; a developer keeps all."""
    user = joined(boss, "owner")
    made = {scope: user.request("POST", "/v1/api-keys", json={"scope": scope}).json() for scope in ("send", "manage")}
    credential = user.request("POST", "/v1/smtp-credentials", json={}).json()
    path = f"/v1/users/{user_id(user)}/role"
    assert len(boss.request("POST", path, json={"role": "developer"}).json()["api_keys"]) == 2
    sent = boss.using(bearer(made["manage"]["key"])).post(message())
    assert sent.status_code == 202
    assert len(boss.request("POST", path, json={"role": "viewer"}).json()["api_keys"]) == 1
    error(boss.using(bearer(made["send"]["key"])).post(message()), 401, "unauthorized")
    error(boss.using(basic(credential)).post(message()), 401, "unauthorized")
    reader = boss.using(bearer(made["manage"]["key"]))
    error(reader.post(message()), 403, "forbidden")
    error(reader.get("/v1/domains"), 401, "unauthorized")
    assert reader.get(f"/emails/{sent.json()['id']}").status_code == 200
