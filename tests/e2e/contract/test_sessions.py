"""Sessions in a browser: the cookie that renews a token, what ends it, and who may not use it."""

import time
from http.cookies import Morsel, SimpleCookie

import httpx
import pytest

from appliance.web.live import STREAM_SECONDS
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, at_once, bearer, error, owner
from tests.running_appliance import PASSWORD

NAME = "appliance_session"
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


def cookie(response: httpx.Response) -> "Morsel[str]":
    return SimpleCookie(response.headers["set-cookie"])[NAME]


def renew(caller: Caller, value: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """One POST /v1/auth/refresh by cookie, from a page of the service unless told otherwise."""
    sent = {"Cookie": f"{NAME}={value}"} | (OWN_PAGE if headers is None else headers)
    return caller.client.post("/v1/auth/refresh", headers=sent)


def works(caller: Caller, token: str) -> bool:
    return caller.using(bearer(token)).get("/v1/account").status_code == 200


def test_a_login_sets_a_cookie_for_renewal_alone(caller: Caller) -> None:
    """It cannot be read by scripts, goes to no other site and to no path but that of sessions, and lasts a week."""
    given = cookie(caller.login())
    assert (given["path"], given["samesite"], given["httponly"]) == ("/v1/auth", "Strict", True)
    assert given["max-age"] == str(7 * 86_400)
    assert not given["secure"]  # over plain HTTP a browser would not send it back


def test_a_cookie_gives_a_token_and_the_next_cookie(caller: Caller) -> None:
    """Renewing by cookie answers like a login; each cookie is another one, and the old token works on."""
    login = caller.login()
    response = renew(caller, cookie(login).value)
    assert response.status_code == 200
    assert set(response.json()) == {"token", "token_type", "expires_at", "account", "request_id"}
    assert works(caller, response.json()["token"])
    assert works(caller, login.json()["token"])
    assert cookie(response).value != cookie(login).value
    assert renew(caller, cookie(response).value).status_code == 200


def test_other_applications_cookies_do_no_harm(caller: Caller) -> None:
    """The session's cookie is found among any number of others, in whatever place; one that looks like it is not."""
    others = [f"other{index}={'x' * 30}" for index in range(150)]
    for place in (0, 75, 150):
        sent = [*others[:place], f"{NAME}={cookie(caller.login()).value}", *others[place:]]
        answer = caller.client.post("/v1/auth/refresh", headers={"Cookie": "; ".join(sent)} | OWN_PAGE)
        assert answer.status_code == 200, answer.text
    for wrong in (f"x{NAME}={cookie(caller.login()).value}", f"{NAME}={'x' * 1_000}"):
        answer = caller.client.post("/v1/auth/refresh", headers={"Cookie": "; ".join([*others, wrong])} | OWN_PAGE)
        assert "No session to renew" in error(answer, 401, "unauthorized")


def test_a_cookie_that_was_just_replaced_is_still_good(caller: Caller) -> None:
    """Windows that are restored together send the same cookie: each gets a token, and all the same next cookie."""
    first = cookie(caller.login()).value
    answers = [renew(caller, first) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({cookie(answer).value for answer in answers}) == 1
    assert works(caller, answers[-1].json()["token"])
    assert renew(caller, cookie(answers[0]).value).status_code == 200


def test_a_cookie_that_comes_twice_ends_the_session(new_account: NewAccount) -> None:
    """Reuse means a copy: no cookie and no token of that session works any more, others of the user do."""
    caller = new_account()
    login, other = caller.login(), caller.login()
    renewed = renew(caller, cookie(renew(caller, cookie(login).value)).value)
    again = renew(caller, cookie(login).value)
    error(again, 401, "unauthorized")
    assert (cookie(again).value, cookie(again)["max-age"]) == ("", "0")
    error(renew(caller, cookie(renewed).value), 401, "unauthorized")
    tokens = [login.json()["token"], renewed.json()["token"], other.json()["token"]]
    assert at_once(lambda token: works(caller, token), tokens) == [False, False, True]
    assert renew(caller, cookie(other).value).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "{own}"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "{own}.evil.example"},
        {"Origin": "http://[oops"},
    ],
)
def test_no_other_page_can_use_the_cookie(caller: Caller, headers: dict[str, str]) -> None:
    """Without a browser's word that a page of the service asks, the cookie is refused, and stays good."""
    value = cookie(caller.login()).value
    sent = {name: text.replace("{own}", caller.running.url) for name, text in headers.items()}
    error(renew(caller, value, sent), 403, "forbidden")
    assert renew(caller, value).status_code == 200


def test_over_plain_http_the_origin_is_enough(caller: Caller) -> None:
    """Browsers send no Sec-Fetch-Site there, but always the origin of a POST."""
    value = cookie(caller.login()).value
    assert renew(caller, value, {"Origin": caller.running.url}).status_code == 200


@pytest.mark.parametrize(
    "value", ["", "x", "ses_0.0.0", "{id}.0.{zeros}", "{id}.1.{mac}", "{id}.-1.{mac}", "{other}.0.{mac}"]
)
def test_a_forged_cookie_is_401_and_harms_no_session(caller: Caller, value: str) -> None:
    login = caller.login()
    good = cookie(login).value
    session_id, _, mac = good.split(".")
    other = cookie(caller.login()).value.partition(".")[0]
    error(renew(caller, value.format(id=session_id, mac=mac, other=other, zeros="0" * 64)), 401, "unauthorized")
    assert works(caller, login.json()["token"])
    assert renew(caller, good).status_code == 200


def test_the_cookie_opens_nothing_else(caller: Caller) -> None:
    """Whatever else is asked for with the cookie alone is 401, writing or reading."""
    headers = {"Cookie": f"{NAME}={cookie(caller.login()).value}"} | OWN_PAGE
    for method, path in (("GET", "/v1/account"), ("POST", "/v1/auth/logout"), ("DELETE", "/v1/auth/sessions")):
        error(caller.client.request(method, path, headers=headers), 401, "unauthorized")


def test_a_logout_ends_cookie_and_tokens(new_account: NewAccount) -> None:
    caller = new_account()
    login = caller.login()
    renewed = renew(caller, cookie(login).value)
    response = caller.using(bearer(renewed.json()["token"])).request("POST", "/v1/auth/logout")
    assert cookie(response)["max-age"] == "0"
    error(renew(caller, cookie(renewed).value), 401, "unauthorized")
    assert at_once(lambda each: works(caller, each.json()["token"]), [login, renewed]) == [False, False]


def test_all_other_sessions_are_ended(new_account: NewAccount) -> None:
    """With `keep=current` the one that asks goes on; nothing else can be kept."""
    caller = new_account()
    tokens = [caller.token() for _ in range(3)]
    mine = caller.using(bearer(tokens[1]))
    error(mine.request("DELETE", "/v1/auth/sessions", params={"keep": "all"}), 400, "invalid_request")
    assert mine.request("DELETE", "/v1/auth/sessions", params={"keep": "current"}).json()["ended"] == 2
    assert at_once(lambda token: works(caller, token), tokens) == [False, True, False]
    (left,) = mine.get("/v1/auth/sessions").json()["sessions"]
    assert left["current"] is True
    (line,) = mine.get("/v1/audit", params={"action": "session"}).json()["audit"]
    assert (line["action"], line["details"]) == ("session.ended_all", {"keep": "current"})


def test_sessions_are_listed_and_ended(new_account: NewAccount) -> None:
    """The list tells where one is logged in; ending one ends its token, ending all ends every one."""
    caller = new_account()
    logins = [
        caller.client.post("/v1/auth/login", json=_login(caller), headers={"User-Agent": f"b{i}"}) for i in (1, 2, 3)
    ]
    tokens = [each.json()["token"] for each in logins]
    mine = caller.using(bearer(tokens[0]))
    listed = mine.get("/v1/auth/sessions").json()
    assert [each["user_agent"] for each in listed["sessions"]] == ["b3", "b2", "b1"]
    assert [each["current"] for each in listed["sessions"]] == [False, False, True]
    assert {each["address"] for each in listed["sessions"]} == {"127.0.0.1"}
    assert listed["next"] is None
    ended = mine.request("DELETE", f"/v1/auth/sessions/{listed['sessions'][0]['id']}")
    assert ended.json()["ended"] == 1
    assert at_once(lambda token: works(caller, token), tokens) == [True, True, False]
    assert mine.request("DELETE", "/v1/auth/sessions").json()["ended"] == 2
    assert at_once(lambda token: works(caller, token), tokens) == [False, False, False]


def _login(caller: Caller) -> dict[str, str]:
    return {"email": caller.account.email, "password": PASSWORD}


def test_what_a_browser_calls_itself_is_cut(new_account: NewAccount) -> None:
    """A long name of a program does not fill the list, and markup in it is text."""
    caller = new_account()
    name = "<script>alert(1)</script>" + "x" * 1000
    login = caller.client.post("/v1/auth/login", json=_login(caller), headers={"User-Agent": name})
    (session,) = caller.using(bearer(login.json()["token"])).get("/v1/auth/sessions").json()["sessions"]
    assert session["user_agent"] == name[:200]


@pytest.mark.parametrize("way", ["logout", "revoked key"])
def test_the_live_stream_ends_with_its_credential(new_account: NewAccount, way: str) -> None:
    customer = owner(new_account())
    made = customer.request("POST", "/v1/api-keys", json={"scope": "manage"}).json()
    watcher = customer if way == "logout" else customer.using(bearer(made["key"]))
    began = time.monotonic()
    with customer.client.stream("GET", "/dashboard/live", headers=watcher.authorization) as answer:
        assert answer.status_code == 200
        lines = answer.iter_raw()
        next(lines)
        if way == "logout":
            assert customer.request("POST", "/v1/auth/logout").status_code == 200
        else:
            assert customer.request("DELETE", f"/v1/api-keys/{made['id']}").status_code == 200
        for _ in lines:
            pass
    assert time.monotonic() - began < STREAM_SECONDS / 4
