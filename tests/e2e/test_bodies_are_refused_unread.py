"""What can be refused without its body is refused before the body is read, and the client gets to know it."""

import http.client
import json
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.e2e.raw import MESSAGE, Client, bearer, check_error, request, sending
from tests.running_appliance import Running, appliance

MIB = 1024 * 1024
JSON = "Content-Type: application/json"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("running")) as started:
        yield started


def token(running: Running) -> str:
    return f"Authorization: {running.login()['Authorization']}"


def announcing(target: str, length: int | None, *headers: str) -> bytes:
    """The head of a POST whose body is yet to come; None: in chunks."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return request("POST", target, size, *headers)


REFUSED: dict[str, tuple[int, Callable[[Running], bytes]]] = {
    "no credential": (401, lambda _: announcing("/emails", 100, JSON)),
    "no credential, in chunks": (401, lambda _: announcing("/emails", None, JSON)),
    "wrong credential": (401, lambda _: announcing("/emails", 100, "Authorization: Bearer ma_live_wrong", JSON)),
    "more than 16 MiB": (413, lambda it: announcing("/emails", 16 * MIB + 1, *sending(it, "large"))),
    "a terabyte": (413, lambda it: announcing("/emails", 2**40, *sending(it, "large"))),
    "not JSON": (400, lambda it: announcing("/emails", 100, bearer(it), "Idempotency-Key: a")),
    "no key": (400, lambda it: announcing("/emails", 100, bearer(it), JSON)),
    "a path without POST": (405, lambda it: announcing("/emails/x", 100, bearer(it))),
    "more than 64 KiB under /v1": (413, lambda it: announcing("/v1/templates", 64 * 1024 + 1, token(it), JSON)),
    "no token under /v1": (401, lambda _: announcing("/v1/templates", 100, JSON)),
    "a key under /v1": (401, lambda it: announcing("/v1/templates", 100, bearer(it), JSON)),
    "a long login": (413, lambda _: announcing("/v1/auth/login", 64 * 1024 + 1, JSON)),
    "/healthz": (405, lambda _: announcing("/healthz", 1)),
    "/healthz, in chunks": (405, lambda _: announcing("/healthz", None)),
    "an unknown path": (404, lambda _: announcing("/nowhere", 1)),
}


@pytest.mark.parametrize("expecting", [False, True], ids=["plain", "100-continue"])
@pytest.mark.parametrize("name", REFUSED)
def test_the_answer_comes_although_the_body_does_not(running: Running, name: str, expecting: bool) -> None:
    """A refusal needs no body, is the first answer even to `Expect: 100-continue`, and closes the connection."""
    status, head = REFUSED[name]
    sent = head(running)
    if expecting:
        sent = sent.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    with Client(running.url, timeout=5) as client:
        client.send(sent)
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        check_error(answer)
        assert client.rest() == []


def test_an_accepted_body_is_asked_for(running: Running) -> None:
    """`Expect: 100-continue` gets its 100 only once everything but the body has been looked at, and then the 202."""
    with Client(running.url) as client:
        client.send(announcing("/emails", len(MESSAGE), *sending(running, "continue", "Expect: 100-continue")))
        assert client.answer().status == 100
        client.send(MESSAGE)
        assert client.answer().status == 202


def test_a_body_in_chunks_is_asked_for_and_taken(running: Running) -> None:
    """The same without a length, and the connection goes on afterwards."""
    with Client(running.url) as client:
        client.send(announcing("/emails", None, *sending(running, "chunks", "Expect: 100-continue")))
        assert client.answer().status == 100
        client.send(b"%x\r\n%s\r\n" % (10, MESSAGE[:10]))
        client.send(b"%x;extension=1\r\n%s\r\n0\r\n\r\n" % (len(MESSAGE) - 10, MESSAGE[10:]))
        assert client.answer().status == 202
        client.send(request("GET", "/healthz"))
        assert client.answer().status == 200


def test_a_client_that_sends_all_before_it_reads_still_reads_the_413(running: Running) -> None:
    """17 MiB pushed by a client that looks for an answer only afterwards do not destroy the answer."""
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    headers = {**running.account.bearer, "Idempotency-Key": "pushed", "Content-Type": "application/json"}
    connection.request("POST", "/emails", body=b" " * (17 * MIB), headers=headers)
    response = connection.getresponse()
    assert response.status == 413
    assert json.load(response)["code"] == "payload_too_large"
    connection.close()


@pytest.mark.parametrize(("target", "limit"), [("/emails", 16 * MIB), ("/v1/auth/login", 64 * 1024)])
def test_chunks_beyond_the_limit_are_refused(running: Running, target: str, limit: int) -> None:
    """A body of undeclared length is a 413 as soon as it is too long, also for a client that sends all first."""
    piece = b"%x\r\n%s\r\n" % (64 * 1024, b" " * 64 * 1024)
    with Client(running.url) as client:
        client.send(announcing(target, None, *sending(running, "beyond")))
        assert client.offer(piece * (limit // (64 * 1024) + 1))
        answer = client.answer()  # before the end of the body
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        check_error(answer)
        assert client.rest() == []


def test_what_is_as_large_as_allowed_is_read(running: Running) -> None:
    """16 MiB exactly are no 413, with and without a length: that much blank space around a message is a message."""
    body = MESSAGE + b" " * (16 * MIB - len(MESSAGE))
    with Client(running.url, timeout=30) as client:
        client.send(announcing("/emails", len(body), *sending(running, "as large")) + body)
        assert client.answer().status == 202
        client.send(announcing("/emails", None, *sending(running, "as large, in chunks")))
        client.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert client.answer().status == 202


def test_a_refused_body_is_never_taken_for_the_next_request(running: Running) -> None:
    hidden = request("GET", "/healthz")
    with Client(running.url) as client:
        client.send(announcing("/emails", len(hidden), JSON) + hidden)
        assert client.answer().status == 401
        assert client.rest() == []


def test_two_requests_in_one_packet_give_two_answers_in_order(running: Running) -> None:
    """Pipelining works, for sends, reads, refusals and a mixture of them."""
    first = request("POST", "/emails", *sending(running, "pipelined 1"), body=MESSAGE)
    again = request("POST", "/emails", *sending(running, "pipelined 1"), body=MESSAGE)
    with Client(running.url) as client:
        client.send(
            first
            + again
            + request("GET", "/emails/none", bearer(running))
            + request("GET", "/healthz")
            + request("GET", "/emails/none")
            + request("PUT", "/emails/none")
            + request("GET", "/healthz")
        )
        accepted, replayed = client.answer(), client.answer()
        assert (accepted.status, replayed.status) == (202, 202)
        assert "idempotent-replayed" not in accepted.headers
        assert replayed.headers["idempotent-replayed"] == "true"
        assert replayed.json()["id"] == accepted.json()["id"]
        assert [client.answer().status for _ in range(5)] == [404, 200, 401, 405, 200]


def test_a_connection_is_kept_for_the_next_request(running: Running) -> None:
    with Client(running.url) as client:
        for number in range(50):
            client.send(request("POST", "/emails", *sending(running, f"kept {number}"), body=MESSAGE))
            accepted = client.answer()
            assert accepted.status == 202
            client.send(request("GET", f"/emails/{accepted.json()['id']}", bearer(running)))
            assert client.answer().status == 200
            client.send(request("GET", "/emails/none", bearer(running)))
            assert client.answer().status == 404


def test_nothing_of_it_was_worth_a_line_in_the_log(running: Running) -> None:
    """Refusing clients is the plain course of things."""
    assert running.complaints() == []
