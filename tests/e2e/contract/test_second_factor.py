"""The second factor: enrolled in two steps, asked for at the login, good once, and throttled as passwords are."""

import time
from base64 import b32decode
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.keys.secrets import code_of
from appliance.model.accounts import Role
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, at_once, bearer, error, message, owner
from tests.running_appliance import PASSWORD, add_account, appliance

OFF = {"enabled": False, "required": False, "enabled_at": None, "recovery_codes_left": 0}


@pytest.fixture
def user(new_account: NewAccount) -> Caller:
    return owner(new_account())


def code(secret: str, away: int = 0) -> str:
    return code_of(b32decode(secret), int(time.time()) // 30 + away)


def enrolled(user: Caller) -> tuple[str, list[str]]:
    secret = user.request("POST", "/v1/account/totp").json()["secret"]
    done = user.request("POST", "/v1/account/totp/confirm", json={"password": PASSWORD, "code": code(secret)})
    assert done.status_code == 200, done.text
    return secret, done.json()["recovery_codes"]


def login(user: Caller, password: str = PASSWORD, **more: str) -> httpx.Response:
    body = {"email": user.account.email, "password": password, **more}
    return user.client.post("/v1/auth/login", json=body)


def needs_code(answer: httpx.Response) -> bool:
    """Whether it is refused for want of a code: the error object of the contract, and a header."""
    error(answer, 401, "unauthorized")
    assert set(answer.json()) == {"error", "code", "request_id"}
    return bool(answer.headers.get("second-factor") == "required")


def test_it_is_enrolled_in_two_steps(user: Caller) -> None:
    """Before a code is given nothing changes; afterwards a login needs one."""
    told = user.get("/v1/account/totp").json()
    assert {**told, "request_id": ""} == {**OFF, "request_id": ""}
    error(
        user.request("POST", "/v1/account/totp/confirm", json={"password": PASSWORD, "code": "123456"}), 409, "conflict"
    )
    first = user.request("POST", "/v1/account/totp")
    assert first.status_code == 201
    assert first.json()["uri"].startswith("otpauth://totp/")
    secret = user.request("POST", "/v1/account/totp").json()["secret"]  # takes the place of the first
    assert login(user).status_code == 200
    given = {"password": PASSWORD, "code": code(first.json()["secret"])}
    error(user.request("POST", "/v1/account/totp/confirm", json=given), 400, "invalid_request")
    given["code"] = code(secret)
    codes = user.request("POST", "/v1/account/totp/confirm", json=given).json()["recovery_codes"]
    assert len(set(codes)) == 10
    told = user.get("/v1/account/totp").json()
    assert (told["enabled"], told["recovery_codes_left"]) == (True, 10)
    assert needs_code(login(user))
    error(user.request("POST", "/v1/account/totp"), 409, "conflict")
    assert user.get("/v1/users").json()["users"][0]["totp"] is True
    log = user.running.log_file.read_text()
    assert secret not in log
    assert not any(each in log for each in codes)


def test_a_token_alone_does_not_turn_it_on(user: Caller) -> None:
    """The password is asked for, too; then the user's other sessions end, and no other's."""
    elsewhere = user.using(bearer(login(user).json()["token"]))
    secret = user.request("POST", "/v1/account/totp").json()["secret"]
    path, given = "/v1/account/totp/confirm", {"password": "wrong password", "code": code(secret)}
    error(elsewhere.request("POST", path, json=given), 403, "forbidden")
    error(elsewhere.request("POST", path, json={"code": code(secret)}), 400, "invalid_request")
    assert login(user).status_code == 200
    assert elsewhere.get("/v1/account").status_code == 200
    enrolled(user)
    error(elsewhere.get("/v1/account"), 401, "unauthorized")
    assert user.get("/v1/account").status_code == 200


def test_a_code_is_good_once(user: Caller) -> None:
    """The one that turned it on is spent; of several logins with the next one, at once, one succeeds."""
    secret, _ = enrolled(user)
    assert needs_code(login(user, code=code(secret, -1)))  # older than the one that was used
    following = code(secret, 1)
    answers = at_once(lambda _: login(user, code=following), range(3))
    assert sorted(answer.status_code for answer in answers) == [200, 401, 401]
    assert needs_code(login(user, code=following))


def test_a_recovery_code_is_good_once(user: Caller) -> None:
    _, codes = enrolled(user)
    assert login(user, code=codes[3].upper().replace("-", " ")).status_code == 200
    assert needs_code(login(user, code=codes[3]))
    assert login(user, code=codes[4]).status_code == 200
    assert user.get("/v1/account/totp").json()["recovery_codes_left"] == 8


def test_a_wrong_password_is_not_told_of_codes(user: Caller) -> None:
    secret, _ = enrolled(user)
    assert not needs_code(login(user, "not the password"))
    assert not needs_code(login(user, "not the password", code=code(secret, 1)))


def test_wrong_codes_are_throttled_as_passwords_are(user: Caller) -> None:
    """Each takes a second and counts; after ten neither codes nor passwords are checked. Asking for none is free."""
    _, codes = enrolled(user)
    for _ in range(12):
        assert needs_code(login(user))
    began = time.monotonic()
    answers = at_once(lambda number: login(user, code=f"{number:06}"), range(20))
    assert time.monotonic() - began >= 1
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(401) <= 10
    assert statuses.count(429) >= 10
    error(login(user, code=codes[0]), 429, "rate_limited")
    error(login(user, "not the password"), 429, "rate_limited")


def test_codes_have_a_limit_of_their_own(user: Caller) -> None:
    """Ten wrong ones an hour, recovery codes among them, however the password's own count stands; asking is free."""
    _, codes = enrolled(user)
    wrong = [f"{number:06}" for number in range(5)] + [f"{number:016}" for number in range(4)]
    for each in wrong:  # a right password without a code takes nothing back from them
        assert needs_code(login(user, code=each))
        assert needs_code(login(user))
    assert login(user, code=codes[0]).status_code == 200  # which forgives the password's failures, and no code
    assert needs_code(login(user, code="000000"))
    refused = login(user, code=codes[1])
    assert "codes" in error(refused, 429, "rate_limited")
    assert int(refused.headers["retry-after"]) > 60
    given = {"password": PASSWORD, "code": codes[1]}
    error(user.request("DELETE", "/v1/account/totp", json=given), 429, "rate_limited")
    assert needs_code(login(user))


def test_it_is_turned_off_with_password_and_code(user: Caller) -> None:
    error(user.request("DELETE", "/v1/account/totp", json={"password": PASSWORD, "code": "123456"}), 404, "not_found")
    _, codes = enrolled(user)
    for given in ({"password": PASSWORD, "code": "000000"}, {"password": "wrong password", "code": codes[0]}):
        error(user.request("DELETE", "/v1/account/totp", json=given), 403, "forbidden")
    error(user.request("DELETE", "/v1/account/totp", json={"password": PASSWORD}), 400, "invalid_request")
    done = user.request("DELETE", "/v1/account/totp", json={"password": PASSWORD, "code": codes[0]})
    assert done.json()["deleted"] is True
    assert login(user).status_code == 200


def test_who_has_lost_everything_asks_an_administrator(running: Any, client: Any, user: Caller) -> None:
    admin = owner(Caller(running, add_account(running.data_dir, "totp-admin", role=Role.ADMIN), client, {}))
    enrolled(user)
    mine = user.get("/v1/users").json()["users"][0]["id"]
    assert admin.request("DELETE", f"/v1/admin/users/{mine}/totp").json()["deleted"] is True
    error(admin.request("DELETE", f"/v1/admin/users/{mine}/totp"), 404, "not_found")
    assert login(user).status_code == 200


@pytest.mark.parametrize("demand", ["admins", pytest.param("all", marks=pytest.mark.slow)])
def test_the_installation_can_demand_it(tmp_path: Path, demand: str) -> None:
    with appliance(tmp_path, dashboard=f'require_totp = "{demand}"') as running:
        plain = running.account
        boss = add_account(running.data_dir, "boss", role=Role.ADMIN)
        with running.client(headers={}) as client:
            for account, demanded in ((boss, True), (plain, demand == "all")):
                caller = Caller(running, account, client, {})
                begun = login(caller).json()
                assert begun["account"]["totp_required"] is demanded
                user = caller.using(bearer(begun["token"]))
                assert user.get("/v1/account/totp").json()["required"] is demanded
                if not demanded:
                    assert user.get("/v1/account").status_code == 200
                    continue
                error(user.get("/v1/account"), 403, "forbidden")
                error(user.post(message()), 403, "forbidden")
                refused = user.get("/emails/x")
                error(refused, 401, "unauthorized")  # of 401 and 404, which are all that a read may answer
                assert refused.json()["error"] == user.post(message()).json()["error"]
                assert caller.using(account.bearer).post(message()).status_code == 202  # programs go on
                enrolled(user)
                assert user.get("/v1/account").status_code == 200
