"""Errors: the object, the code and the status, the header, on every way a request can go wrong."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from appliance.errors import Code
from tests.e2e import raw
from tests.e2e.contract.service import Caller, any_error, at_once, bearer, error, message
from tests.running_appliance import PASSWORD, Running, add_account, appliance

# The interface's list, word for word.
CODES = [
    "invalid_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "conflict",
    "insufficient_credits",
    "rate_limited",
    "warmup_limited",
    "account_suspended",
    "payload_too_large",
    "service_unavailable",
    "temporary_failure",
    "internal_error",
    "idempotency_conflict",
    "idempotency_in_progress",
]
ROUTES = {
    "/emails": "POST",
    "/emails/msg_0": "GET, HEAD, PATCH",
    "/v1/auth/login": "POST",
    "/v1/auth/refresh": "POST",
    "/v1/auth/logout": "POST",
    "/v1/auth/password": "POST",
    "/v1/templates": "GET, HEAD",
    "/v1/templates/welcome": "DELETE, GET, HEAD, PUT",
    "/v1/suppressions": "GET, HEAD, POST",
    "/v1/suppressions/a@example.net": "DELETE",
    "/v1/unsubscribe-tags": "GET, HEAD, PUT",
    "/unsubscribe/x": "GET, HEAD, POST",
    "/healthz": "GET, HEAD",
    "/readyz": "GET, HEAD",
    "/openapi.json": "GET, HEAD",
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")


def test_the_list_of_codes_is_closed() -> None:
    assert sorted(code.value for code in Code) == sorted(CODES)


@pytest.mark.parametrize("path", ROUTES)
def test_a_wrong_method_is_405_and_told_the_right_ones(customer: Caller, path: str) -> None:
    """Any other method gives 405, invalid_request, and the header Allow."""
    allowed = ROUTES[path].split(", ")
    for method in METHODS:
        if method in allowed:
            continue
        response = customer.request(method, path)
        assert response.headers["allow"] == ROUTES[path]
        if method != "HEAD":
            error(response, 405, "invalid_request")
        assert response.status_code == 405
        assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "path",
    ["/email", "/Emails", "/emails/a/b", "/v1", "/v1/", "/v1/nothing", "/v1/templates/a/b", "/v2/emails", "/%00"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_path_is_404(customer: Caller, method: str, path: str) -> None:
    error(customer.request(method, path), 404, "not_found")


@pytest.mark.parametrize("path", ["/static/x/none.js", "/static/x/../../edge.py", "/docs/none.md", "/docs/none"])
def test_an_unknown_file_is_404(customer: Caller, path: str) -> None:
    """A file or document that does not exist is answered by the error object, too."""
    error(customer.get(path), 404, "not_found")


@pytest.mark.parametrize("path", ["/", "/dashboard", "/dashboard/messages", "/static/x/main.js"])
def test_a_page_takes_no_other_method(customer: Caller, path: str) -> None:
    """The dashboard's addresses are read and nothing else."""
    response = customer.request("POST", path)
    error(response, 405, "invalid_request")
    assert response.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/templates", "/v1/suppressions"])
def test_success_carries_the_request_id_too(customer: Caller, path: str) -> None:
    response = customer.get(path)
    assert response.status_code == 200
    assert response.json()["request_id"] == response.headers["x-request-id"]


def test_the_description_carries_a_request_id(customer: Caller) -> None:
    """Even /openapi.json, which has no request_id in its body, has the header."""
    assert customer.get("/openapi.json").headers["x-request-id"].startswith("req_")


def test_a_head_is_a_get_without_its_body(caller: Caller) -> None:
    message_id = caller.delivered()["id"]
    for path in (f"/emails/{message_id}", "/emails/unknown", "/healthz"):
        got, head = caller.get(path), caller.request("HEAD", path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-length"] == str(len(got.content))
        assert head.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        b"POST /emails HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /emails HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_the_error_object(running: Running, data: bytes) -> None:
    """A request that cannot be read is answered with 400, the error object and the header, and the end."""
    with raw.Client(running.url) as client:
        client.send(data)
        (answer,) = client.rest()
    raw.check_error(answer)
    assert (answer.status, answer.json()["code"]) == (400, "invalid_request")


def test_request_ids_are_never_the_caller_s(caller: Caller) -> None:
    response = caller.post(message(), headers={"X-Request-ID": "req_mine"})
    assert response.headers.get_list("x-request-id") == [response.json()["request_id"]]
    assert response.json()["request_id"] != "req_mine"


def test_an_error_tells_nothing_about_the_inside(customer: Caller) -> None:
    """No answer names the server software, a file or a cause."""
    for response in (
        customer.get("/nothing"),
        customer.post(None, content=b"{"),
        customer.get("/v1/templates?limit=x"),
    ):
        any_error(response)
        assert "server" not in response.headers
        assert not any(word in response.text for word in ("Traceback", ".py", "Error(", "sqlite", "msgspec", "quart"))


# ---- a server with little to give


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An appliance behind a proxy, which takes five requests a second from a credential."""
    behind = 'trusted_proxies = ["127.0.0.0/8"]'
    with appliance(tmp_path_factory.mktemp("narrow"), http=behind, requests_per_second=5) as started:
        yield started


def send_from(running: Running, authorization: dict[str, str], key: str) -> httpx.Response:
    with running.client(headers=authorization) as client:
        return client.post("/emails", json=message(), headers={"Idempotency-Key": key})


def test_too_many_requests_are_told_when_to_come_back(narrow: Running) -> None:
    """A credential may burst to twice its rate; then 429, rate_limited and Retry-After, while others go on."""
    responses = at_once(lambda index: send_from(narrow, narrow.account.bearer, f"burst-{index}"), range(40))
    refused = [response for response in responses if response.status_code != 202]
    assert 0 < len(refused) <= 30
    for response in refused:
        error(response, 429, "rate_limited")
        assert int(response.headers["retry-after"]) >= 1
    (first, *_) = (response for response in responses if response.status_code == 202)
    assert send_from(narrow, narrow.account.basic, "another").status_code == 202
    with narrow.client() as client:
        assert client.get(f"/emails/{first.json()['id']}").status_code == 200


def test_changes_without_a_body_count_for_the_rate(narrow: Running) -> None:
    """A POST or DELETE under /v1 without a body is limited like one with a body. A read or a login is not."""
    headers = narrow.login()
    with narrow.client(headers=headers) as client:
        found = at_once(lambda _: client.post("/v1/webhook/rotate-secret"), range(20))
        found += at_once(lambda _: client.delete("/v1/templates/none"), range(20))
        refused = [response for response in found if response.status_code != 404]
        assert refused
        for response in refused:
            error(response, 429, "rate_limited")
            assert int(response.headers["retry-after"]) >= 1
        reading = at_once(lambda _: client.get("/v1/account"), range(20))
        assert {response.status_code for response in reading} == {200}
    assert narrow.login() != headers


@pytest.mark.parametrize("split", [False, True], ids=["whole", "body after its head"])
def test_a_refused_call_keeps_its_connection(narrow: Running, split: bool) -> None:
    """Connecting again would cost more than the call: its body is dropped, and the next call is read."""
    account = add_account(narrow.data_dir, f"refused-{split}".lower())
    body = json.dumps(message()).encode()
    headers = (f"Authorization: Bearer {account.send_key}", "Content-Type: application/json", "Idempotency-Key: a")
    sent = raw.request("POST", "/emails", *headers, body=body)
    cut = len(sent) - len(body) if split else len(sent)
    with raw.Client(narrow.url) as client:
        statuses = []
        for _ in range(40):
            client.send(sent[:cut])
            if split:
                time.sleep(0.002)
                client.send(sent[cut:])
            answer = client.answer()
            assert "connection" not in answer.headers
            statuses.append(answer.status)
    assert set(statuses) == {202, 429}


def test_reads_have_a_rate_of_their_own(tmp_path: Path) -> None:
    """Ten times that of changes, with a burst of twice that; a GET takes nothing from what a change may."""
    with appliance(tmp_path, requests_per_second=1) as slow, slow.client(headers=slow.login()) as client:
        answers = [answer for _ in range(10) for answer in at_once(lambda _: client.get("/v1/domains"), range(20))]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(answers) - len(refused) >= 20
        assert refused
        for answer in refused:
            assert "may read 10 times a second" in error(answer, 429, "rate_limited")
            assert int(answer.headers["retry-after"]) >= 1
        error(client.delete("/v1/templates/none"), 404, "not_found")


def test_changes_without_a_body_need_a_login_first(running: Running) -> None:
    """Without one a POST or DELETE under /v1 is 401, also where there is nothing; the login itself needs none."""
    with running.client(headers={}) as client:
        for method in ("POST", "DELETE"):
            for path in ("/v1/webhook/rotate-secret", "/v1/templates/none", "/v1/nothing"):
                error(client.request(method, path), 401, "unauthorized")
        assert "renew" in error(client.post("/v1/auth/refresh"), 401, "unauthorized")
        error(client.post("/v1/auth/login"), 400, "invalid_request")
        error(client.delete("/v1/auth/login"), 405, "invalid_request")


def test_an_address_that_goes_on_guessing_is_asked_to_wait(narrow: Running) -> None:
    """A wrong credential is always 401; after ten in a minute with Retry-After. The right key works, but no login."""
    here = {"X-Forwarded-For": "203.0.113.9"}
    with narrow.client(headers=bearer("ma_live_wrong")) as client:
        first = at_once(lambda _: client.get("/emails/x", headers=here), range(10))
        later = at_once(lambda path: client.get(path, headers=here), ("/emails/x", "/emails/y"))
    for response in (*first, *later):
        error(response, 401, "unauthorized")
    assert not any("retry-after" in response.headers for response in first)
    assert all(1 <= int(response.headers["retry-after"]) <= 60 for response in later)
    with narrow.client() as client:
        error(client.get("/emails/x", headers=here), 404, "not_found")
        login = {"email": narrow.account.email, "password": PASSWORD}
        refused = client.post("/v1/auth/login", json=login, headers=here)
        error(refused, 429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.post("/v1/auth/login", json=login).status_code == 200


@pytest.mark.parametrize(("size", "status"), [(15_000, 200), (17_000, 400), (40_000, 400)])
def test_request_headers_may_have_16_kib(caller: Caller, size: int, status: int) -> None:
    """More than 16 KiB of headers are refused with the error object, also when they come in one packet."""
    answer = caller.client.get("/healthz", headers={"X-Filler": "x" * size})
    assert answer.status_code == status
    assert answer.headers["X-Request-ID"] == answer.json()["request_id"]
