"""Streams from the request to the recipient: names, defaults, unsubscribe links, filters and events."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.contract.service import Caller, bearer, error, owner
from tests.e2e.submission.client import smtp
from tests.e2e.submission.test_a_client_submits import queued
from tests.engines import Kind
from tests.running_appliance import Running, add_account, appliance

BASE = "https://mail.example.com"
DIGEST = '[delivery.streams.digest]\npriority = "low"\n'
MESSAGE = b"From: shop@example.com\r\nTo: ada@example.net\r\nSubject: News\r\n%b\r\nHello\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: Kind) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("streams"), http=f'base_url = "{BASE}"', webhooks=DIGEST) as started:
        yield started
        log = started.log_file.read_text()
    assert '"level": "error"' not in log, log


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client(headers={}) as opened:
        yield opened


@pytest.fixture
def customer(running: Running, client: httpx.Client, request: pytest.FixtureRequest) -> Caller:
    account = add_account(running.data_dir, re.sub(r"\W+", "-", request.node.name)[:50] + str(time.monotonic_ns()))
    return owner(Caller(running, account, client, account.bearer))


def link(customer: Caller, message_id: str) -> str:
    """The path of the unsubscribe link; empty without one."""
    found = re.search(rf"^List-Unsubscribe: <{BASE}(/unsubscribe/[\w-]+)>\r$", customer.mime(message_id).decode(), re.M)
    return found[1] if found else ""


def stream(customer: Caller, message_id: str) -> Any:
    return customer.get(f"/v1/emails/{message_id}").json()["stream"]


def key(customer: Caller, **fields: Any) -> Caller:
    made = customer.request("POST", "/v1/api-keys", json={"scope": "full", **fields})
    assert made.status_code == 201, made.text
    assert made.json()["stream"] == fields.get("stream")
    return customer.using(bearer(made.json()["key"]))


def test_a_request_names_its_stream(customer: Caller) -> None:
    for name in ("transactional", "broadcast", "digest"):
        message_id = customer.send(stream=name)["id"]
        assert stream(customer, message_id) == name
        assert (link(customer, message_id) != "") == (name == "broadcast")
        (listed,) = customer.get("/v1/emails", params={"stream": name}).json()["emails"]
        assert (listed["id"], listed["stream"]) == (message_id, name)
    assert stream(customer, customer.send()["id"]) == "transactional"
    assert customer.get("/v1/emails", params={"stream": "other"}).json()["emails"] == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stream": "other"}, "stream: there is no such stream; expected transactional or broadcast or digest"),
        ({"stream": ""}, "stream: there is no such stream"),
        ({"stream": 5}, "stream: "),
        ({"stream": "broadcast", "to": ["a@example.net", "b@example.net"]}, "to: a message of the stream broadcast"),
        ({"stream": "broadcast", "bcc": "b@example.net"}, "to: a message of the stream broadcast has one recipient"),
    ],
)
def test_what_is_refused(customer: Caller, fields: dict[str, Any], text: str) -> None:
    assert customer.refused(**fields).startswith(text)
    batch = {"emails": [{"from": "a@example.com", "to": "a@b.test", "subject": "s", "text": "t", **fields}]}
    refused = customer.request("POST", "/emails/batch", json=batch, headers={"Idempotency-Key": "batch"})
    assert error(refused, 400, "invalid_request").startswith(f"emails[0].{text}")
    assert customer.get("/v1/emails").json()["emails"] == []


def test_null_is_the_default(customer: Caller) -> None:
    assert stream(customer, customer.send(stream=None)["id"]) == "transactional"


def test_unsubscribing_from_a_stream_leaves_other_mail_alone(customer: Caller, client: httpx.Client) -> None:
    path = link(customer, customer.send(stream="broadcast", tags="news")["id"])
    assert client.post(path).json()["unsubscribed"] is True
    (entry,) = customer.get("/v1/suppressions").json()["suppressions"]
    assert (entry["address"], entry["stream"], entry["tag"]) == ("ada@example.net", "broadcast", None)
    stopped = customer.delivered(stream="broadcast")["recipients"][0]
    assert stopped["status"] == "bounced"
    assert stopped["last_smtp_response"].endswith("messages with the stream broadcast")
    for fields in ({}, {"tags": "news"}, {"stream": "digest"}):
        assert customer.delivered(**fields)["status"] == "delivered"
    assert customer.delivered(stream="broadcast", to="eve@example.net")["status"] == "delivered"
    for query in ("stream=other", "stream=broadcast&tag=news"):
        error(customer.request("DELETE", f"/v1/suppressions/ada@example.net?{query}"), 404, "not_found")
    assert customer.request("DELETE", "/v1/suppressions/ada@example.net?stream=broadcast").json()["deleted"] is True
    assert customer.delivered(stream="broadcast")["status"] == "delivered"


def test_a_key_and_a_template_have_a_default(customer: Caller) -> None:
    """The request decides before the template, and the template before the key."""
    newsletter = key(customer, stream="broadcast")
    template = {"subject": "Hi", "text": "Hello", "stream": "digest"}
    assert customer.request("PUT", "/v1/templates/weekly", json=template).json()["stream"] == "digest"
    weekly = {"template": "weekly", "subject": ..., "text": ...}
    for fields, expected in (
        ({}, "broadcast"),
        (weekly, "digest"),
        (weekly | {"stream": "transactional"}, "transactional"),
        ({"stream": "transactional"}, "transactional"),
    ):
        assert stream(customer, newsletter.send(**fields)["id"]) == expected
    for path in ("/v1/api-keys", "/v1/smtp-credentials"):
        error(customer.request("POST", path, json={"stream": "other"}), 400, "invalid_request")
    bad = customer.request("PUT", "/v1/templates/weekly", json={**template, "stream": "other"})
    error(bad, 400, "invalid_request")


def test_numbers_settings_and_users_are_told_by_stream(customer: Caller, client: httpx.Client) -> None:
    """One list of streams; statistics, deliverability, suppressions and the export can be filtered by each."""
    newsletter = key(customer, name="newsletter", stream="broadcast")
    news = newsletter.delivered(to="ada@example.net")
    newsletter.delivered(to="bounce@example.net")
    customer.delivered(to="eve@example.net")
    client.post(link(customer, news["id"]))
    listed = {each["name"]: each for each in customer.get("/v1/streams").json()["streams"]}
    assert list(listed) == ["transactional", "broadcast", "digest"]
    transactional, broadcast, digest = listed.values()
    assert (digest["name"], digest["priority"], digest["unsubscribe"], digest["sent"]) == ("digest", "low", False, 0)
    assert (transactional["sent"], transactional["delivered"], transactional["bounced"]) == (1, 1, 0)
    assert (broadcast["sent"], broadcast["delivered"], broadcast["bounced"]) == (2, 1, 1)
    assert (broadcast["unsubscribed"], broadcast["unsubscribes"], broadcast["unsubscribe_rate"]) == (1, 1, 1.0)
    assert [each["name"] for each in broadcast["api_keys"]] == ["newsletter"]
    by_stream = customer.get("/v1/stats", params={"by": "stream"}).json()["breakdown"]
    assert [(each["value"], each["sent"]) for each in by_stream] == [("broadcast", 2), ("transactional", 1)]
    for name, sent in (("broadcast", 2), ("transactional", 1), ("digest", 0)):
        numbers = customer.get("/v1/stats", params={"stream": name}).json()
        assert (numbers["totals"]["sent"], sum(day["sent"] for day in numbers["days"])) == (sent, sent)
        assert sum(hour["sent"] for hour in numbers["hours"]) == sent
        providers = customer.get("/v1/deliverability", params={"stream": name}).json()["providers"]
        assert sum(each["sent"] for each in providers) == sent
        entries = customer.get("/v1/suppressions", params={"stream": name}).json()["suppressions"]
        assert [each["address"] for each in entries] == (["ada@example.net"] if name == "broadcast" else [])
        lines = customer.get("/v1/emails", params={"stream": name, "format": "csv"}).text.splitlines()
        assert [line.rpartition(",")[2] for line in lines] == ["stream"] + sent * [name]
    replies = customer.get("/v1/deliverability", params={"stream": "transactional"}).json()["replies"]
    assert replies == []
    for path in ("/v1/stats?by=tag&stream=broadcast", "/v1/deliverability?domain=a.test&stream=broadcast"):
        assert error(customer.get(path), 400, "invalid_request").startswith("stream: cannot be combined with")


def test_a_header_names_the_stream_over_smtp(running: Running) -> None:
    with running.client() as client, smtp(running) as session:
        for header, expected in ((b"", "transactional"), (b"X-Service-Stream: broadcast\r\n", "broadcast")):
            session.mail("shop@example.com")
            session.rcpt("ada@example.net")
            message_id = queued(session.data(MESSAGE % header))
            caller = owner(Caller(running, running.account, client, {}))
            assert stream(caller, message_id) == expected
            mime = caller.mime(message_id)
            assert b"X-Service-Stream" not in mime
            assert (link(caller, message_id) != "") == (expected == "broadcast")
        for header, recipients, code in (
            (b"X-Service-Stream: other\r\n", 1, 554),
            (b"X-Service-Stream: broadcast\r\n", 2, 554),
            (b"X-Service-Stream: digest\r\nX-Service-Stream: digest\r\n", 1, 554),
        ):
            session.mail("shop@example.com")
            for number in range(recipients):
                session.rcpt(f"user{number}@example.net")
            answer = session.data(MESSAGE % header)
            assert answer[0] == code, answer
            session.rset()


def test_without_https_there_is_no_broadcast(tmp_path_factory: pytest.TempPathFactory, engine: Kind) -> None:
    with appliance(tmp_path_factory.mktemp("plain")) as started, started.client(headers={}) as client:
        caller = Caller(started, started.account, client, started.account.bearer)
        assert "requires https in base_url" in caller.refused(stream="broadcast")
        own = {"List-Unsubscribe": "<https://example.com/u>"}
        assert caller.send(stream="broadcast", headers=own)["headers"] == own
