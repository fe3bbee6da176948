"""An account's messages in its owner's hands: found, told in full, read, cancelled."""

import time
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, error, owner, waiting
from tests.running_appliance import add_account

LISTED = {
    "id",
    "status",
    "source",
    "from",
    "subject",
    "tags",
    "recipient_count",
    "outcomes",
    "recipients",
    "created_at",
    "scheduled_at",
    "stream",
}
SCRIPT = "<script>alert(1)</script>"


def listed(customer: Caller, **query: Any) -> list[str]:
    ids: list[str] = []
    while True:
        response = customer.get("/v1/emails", params=query)
        assert response.status_code == 200, response.text
        ids += [each["id"] for each in response.json()["emails"]]
        if (before := response.json()["next"]) is None:
            return ids
        query["before"] = before


@pytest.fixture(scope="module")
def mailed(running: Any, client: Any) -> tuple[Caller, dict[str, str]]:
    """A customer with a few messages of different kinds, all of them final; their ids by a word for each."""
    account = add_account(running.data_dir, "mailed")
    caller = Caller(running, account, client, account.bearer)
    ids = {
        "plain": caller.delivered(to="Ada@Example.NET", tags=["order"])["id"],
        "partial": caller.delivered(to=["ok@one.example", "bounce@two.example"], tags=["order", 'a"b'])["id"],
        "failed": caller.delivered(to="bounce@example.net", from_="Shop <ORDERS@example.com>")["id"],
        "other letters": caller.delivered(
            to="Zoë@Bücher.example", from_='"Eve <eve@evil.example>" <sender@example.com>'
        )["id"],
        "test": caller.using(bearer(account.test_key)).send(to="ada@example.net")["id"],
    }
    caller.final(ids["test"])
    return owner(caller), ids


def test_pages_towards_newer_messages(mailed: tuple[Caller, dict[str, str]]) -> None:
    """`after` continues from the oldest message to the newest; each page is newest first, and filters apply."""
    customer, ids = mailed
    pages, query = list[list[str]](), {"after": ids["plain"], "limit": 3, "source": "api"}
    while query["after"] is not None:
        page = customer.get("/v1/emails", params=query).json()
        pages.append([message["id"] for message in page["emails"]])
        query["after"] = page["next"]
    assert pages == [[ids["other letters"], ids["failed"], ids["partial"]], []]
    for wrong in ({"after": "msg_1"}, {"after": ids["plain"], "before": ids["test"]}):
        assert error(customer.get("/v1/emails", params=wrong), 400, "invalid_request").startswith("after: ")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["test", "other letters", "failed", "partial", "plain"]),
        ({"status": "delivered"}, ["test", "other letters", "plain"]),
        ({"status": "partial"}, ["partial"]),
        ({"status": "failed"}, ["failed"]),
        ({"status": "queued"}, []),
        ({"source": "test"}, ["test"]),
        ({"source": "api"}, ["other letters", "failed", "partial", "plain"]),
        ({"source": "smtp"}, []),
        ({"recipient": "ada@example.net"}, ["test", "plain"]),
        ({"recipient": "ADA@example.net", "source": "api"}, ["plain"]),
        ({"recipient": "two.example"}, ["partial"]),
        ({"recipient": "@two.example"}, ["partial"]),
        ({"recipient": "unknown@two.example"}, []),
        ({"from": "orders@example.com"}, ["failed"]),
        ({"from": "sender@example.com"}, ["test", "other letters", "partial", "plain"]),
        ({"from": "example.com"}, ["test", "other letters", "failed", "partial", "plain"]),
        ({"from": "@example.com"}, ["test", "other letters", "failed", "partial", "plain"]),
        ({"from": "eve@evil.example"}, []),
        ({"from": "evil.example"}, []),
        ({"recipient": "BÜCHER.example"}, ["other letters"]),
        ({"recipient": "xn--bcher-kva.example"}, ["other letters"]),
        ({"recipient": "Zoë@bücher.example"}, ["other letters"]),
        ({"recipient": "zoë@XN--bcher-kva.example"}, ["other letters"]),
        ({"recipient": "oë@bücher.example"}, []),
        ({"from": "ample.com"}, []),
        ({"from": "example.co"}, []),
        ({"tag": "order"}, ["partial", "plain"]),
        ({"tag": 'a"b'}, ["partial"]),
        ({"tag": "b"}, []),
        ({"tag": "orde"}, []),
        ({"tag": "order", "status": "partial", "recipient": "one.example"}, ["partial"]),
        ({"tag": "order", "status": "failed"}, []),
        ({"q": "ada"}, ["test", "plain"]),
        ({"q": "EXAMPLE.net"}, ["test", "failed", "plain"]),
        ({"q": "two.exa order"}, ["partial"]),
        ({"q": "@one.example"}, ["partial"]),
        ({"q": "5.1.1"}, ["failed", "partial"]),
        ({"q": "zoë"}, ["other letters"]),
        ({"q": "wo.example"}, []),
        ({"q": "bounce", "outcome": "bounced"}, ["failed", "partial"]),
        ({"q": '"ada" NEAR *', "outcome": "delivered"}, []),
        ({"outcome": "bounced", "status": "partial"}, ["partial"]),
        ({"outcome": "suppressed"}, []),
        ({"q": "ada", "since": "2020-01-01", "until": "2200-01-01T00:00:00+02:00"}, ["test", "plain"]),
        ({"until": "2020-01-01"}, []),
        ({"since": "2200-01-01"}, []),
    ],
)
def test_messages_are_found(mailed: tuple[Caller, dict[str, str]], query: dict[str, Any], expected: list[str]) -> None:
    """Each filter, alone and with others, finds exactly what matches, newest first, however small the pages."""
    customer, ids = mailed
    assert listed(customer, limit=1, **query) == [ids[word] for word in expected]


def test_a_list_shows_what_matters(mailed: tuple[Caller, dict[str, str]]) -> None:
    """Each entry has its fields, and its first recipients with where they stand."""
    customer, ids = mailed
    entries = {each["id"]: each for each in customer.get("/v1/emails").json()["emails"]}
    assert all(set(each) == LISTED for each in entries.values())
    partial = entries[ids["partial"]]
    assert partial["recipients"] == [
        {"email": "ok@one.example", "status": "delivered", "outcome": "delivered"},
        {"email": "bounce@two.example", "status": "bounced", "outcome": "bounced"},
    ]
    assert (partial["status"], partial["recipient_count"], partial["tags"]) == ("partial", 2, ["order", 'a"b'])
    assert partial["outcomes"] == {"delivered": 1, "bounced": 1}


def test_a_list_shows_three_recipients(new_account: NewAccount) -> None:
    caller = new_account()
    caller.send(to=[f"r{number}@example.net" for number in range(9)])
    (entry,) = owner(caller).get("/v1/emails").json()["emails"]
    assert [each["email"] for each in entry["recipients"]] == ["r0@example.net", "r1@example.net", "r2@example.net"]
    assert entry["recipient_count"] == 9


@pytest.mark.parametrize(
    "query",
    [
        {"status": "sent"},
        {"status": ""},
        {"source": "web"},
        {"recipient": ""},
        {"from": " "},
        {"tag": ""},
        {"tag": "x" * 65},
        {"recipient": "x" * 2000},
    ],
)
def test_a_wrong_filter_is_400(customer: Caller, query: dict[str, str]) -> None:
    (name,) = query
    assert error(customer.get("/v1/emails", params=query), 400, "invalid_request").startswith(f"{name}:")


@pytest.mark.parametrize("value", ["\0", "%", "_", "' OR 1=1 --", "\ud7ff\uffff", "<>", "@", "a@b@c", "é@é.example"])
def test_a_strange_filter_finds_nothing(mailed: tuple[Caller, dict[str, str]], value: str) -> None:
    """Wildcards, quotes and other letters mean themselves."""
    customer, _ = mailed
    for name in ("recipient", "from", "tag"):
        assert listed(customer, **{name: value}) == []


def test_the_story_of_a_message_is_told(new_account: NewAccount) -> None:
    """Every attempt for every recipient, with its reply and its time, and a sentence on where each stands."""
    caller = new_account()
    sent = caller.delivered(to=["ok@example.net", "bounce@example.net", "defer@example.net"], tags="order")
    told = owner(caller).get(f"/v1/emails/{sent['id']}").json()
    assert (told["status"], told["tags"], told["source"], told["body_kept"]) == ("partial", ["order"], "api", True)
    assert told["envelope_from"] == "sender@example.com"
    ok, bounced, deferred = told["recipients"]
    assert [each["status"] for each in told["recipients"]] == ["delivered", "bounced", "delivered"]
    assert ok["explanation"].startswith("delivered at ")
    assert "550 5.1.1" in bounced["explanation"]
    assert [attempt["smtp_code"] for attempt in deferred["attempts"]] == [451, 250]
    assert [attempt["number"] for attempt in deferred["attempts"]] == [1, 2]
    assert all(attempt["duration_ms"] >= 0 for attempt in deferred["attempts"])
    assert (ok["simulated"], ok["next_attempt_at"]) == (True, None)


def test_what_waits_says_for_what(new_account: NewAccount) -> None:
    customer = owner(new_account())
    message_id = waiting(customer)
    told = customer.get(f"/v1/emails/{message_id}").json()
    (recipient,) = told["recipients"]
    assert recipient["explanation"].startswith("deferred: try 1 of 12 at ")
    assert (
        listed(customer, status="queued") == listed(customer, status="queued", recipient="example.net") == [message_id]
    )
    assert listed(customer, status="queued", before=message_id) == []
    assert recipient["next_attempt_at"] is not None


def test_the_body_is_read_back(new_account: NewAccount) -> None:
    """Header, texts and files as the sender wrote them, markup and all: it is text here."""
    caller = new_account()
    attached = {"filename": f"{SCRIPT[8:16]}é.txt", "content": "aGFsbG8=", "content_type": "text/plain"}
    sent = caller.send(
        subject=f"Grüße {SCRIPT}", text=f"Hällo\n{SCRIPT}", html=f"<p>{SCRIPT}</p>", attachments=[attached]
    )
    response = owner(caller).get(f"/v1/emails/{sent['id']}/body")
    told = response.json()
    assert response.headers["content-type"] == "application/json"
    headers = {each["name"]: each["value"] for each in told["headers"]}
    assert (headers["Subject"], headers["From"]) == (f"Grüße {SCRIPT}", "sender@example.com")
    assert told["text"].replace("\r\n", "\n").rstrip("\n") == f"Hällo\n{SCRIPT}"
    assert told["html"].strip() == f"<p>{SCRIPT}</p>"
    assert told["attachments"] == [
        {"filename": attached["filename"], "content_type": "text/plain", "size": 5, "content_id": None}
    ]
    assert told["truncated"] is False


def cancelled(customer: Caller, message_id: str) -> int:
    """Cancel a message; a node of a shared database has what the test stored only after a while."""
    for _ in range(60):
        answer = customer.request("POST", f"/v1/emails/{message_id}/cancel")
        if answer.status_code != 503:
            break
        time.sleep(0.5)
    return int(answer.json()["cancelled"])


def test_cancelling_gives_up_what_waits(new_account: NewAccount) -> None:
    """Its recipients fail with `cancelled:`, the credits are back with an entry each, the events are there, once."""
    caller = new_account(credit=10)
    customer = owner(caller)
    message_id = waiting(caller, "a@example.net", "b@example.net")
    assert caller.credits() == 8
    assert cancelled(customer, message_id) == 2
    told = caller.read(message_id)
    assert (told["status"], told["billing_status"], told["credits_reserved"]) == ("failed", "released", 2)
    for recipient in told["recipients"]:
        assert recipient["status"] == "failed"
        assert recipient["last_smtp_response"].startswith("cancelled: ")
    assert caller.credits() == 10
    error(customer.request("POST", f"/v1/emails/{message_id}/cancel"), 409, "conflict")
    assert caller.credits() == 10
    kinds = [each["kind"] for each in customer.get("/v1/credits").json()["entries"]]
    assert kinds == ["release", "release", "reserve", "grant"]
    assert listed(customer, status="failed") == [message_id]


def test_what_is_final_cannot_be_cancelled(new_account: NewAccount) -> None:
    caller = new_account()
    sent = caller.delivered()
    error(owner(caller).request("POST", f"/v1/emails/{sent['id']}/cancel"), 409, "conflict")
    assert caller.read(sent["id"])["status"] == "delivered"


# ---- a test message


def send_test(customer: Caller, **body: Any) -> Any:
    """One POST /v1/emails/test."""
    return customer.request("POST", "/v1/emails/test", json=body)


def test_a_test_is_free_and_arrives(new_account: NewAccount) -> None:
    """It has the source `test`, costs nothing also without any credit, and goes the way of every message."""
    caller = new_account(credit=0)
    response = send_test(owner(caller), to="ada@example.net")
    assert response.status_code == 202
    told = response.json()
    assert (told["status"], told["source"], told["from"]) == ("queued", "test", "test@example.com")
    read = caller.final(told["id"])
    assert (read["status"], read["source"], read["credits_reserved"]) == ("delivered", "test", 0)
    assert caller.credits() == 0


def test_a_test_every_15_seconds(new_account: NewAccount) -> None:
    """A second one has to wait, and is told how long; a refused one does not count; accounts do not share it."""
    customer, other = owner(new_account()), owner(new_account())
    error(send_test(customer, to="not an address"), 400, "invalid_request")
    error(send_test(customer, to="ada@example.net", **{"from": "a@foreign.example"}), 403, "forbidden")
    assert send_test(customer, to="ada@example.net").status_code == 202
    again = send_test(customer, to="ada@example.net")
    error(again, 429, "rate_limited")
    assert 1 <= int(again.headers["retry-after"]) <= 15
    assert send_test(other, to="ada@example.net").status_code == 202


def test_a_test_may_say_what_the_owner_wants(new_account: NewAccount) -> None:
    caller = new_account()
    customer = owner(caller)
    customer.request("PUT", "/v1/templates/hello", json={"subject": "Hi {{name}}", "text": "Hello {{name}}"})
    sent = send_test(customer, to="ada@example.net", template="hello", variables={"name": "Ada"}).json()
    told = customer.get(f"/v1/emails/{sent['id']}").json()
    assert (told["subject"], told["template"], told["template_version"]) == ("Hi Ada", "hello", 1)
    assert b"Hello Ada" in caller.mime(sent["id"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"to": ["ada@example.net"]},
        {"to": "ada@example.net, bob@example.net"},
        {"to": "ada@example.net", "cc": "bob@example.net"},
        {"to": "ada@example.net", "subject": "a\nb"},
        {"to": "ada@example.net", "template": "unknown"},
        {"to": "ada@example.net", "variables": {"a": "b"}},
    ],
)
def test_a_test_goes_to_one_address(customer: Caller, body: dict[str, Any]) -> None:
    error(send_test(customer, **body), 400, "invalid_request")


def test_a_suspended_account_tests_nothing(new_account: NewAccount) -> None:
    customer = owner(new_account())
    change(customer.running.data_dir, lambda store: store.accounts.set_suspended(customer.account.account_id, True))
    error(send_test(customer, to="ada@example.net"), 403, "account_suspended")


def test_a_test_is_no_message(customer: Caller) -> None:
    response = customer.get("/v1/emails/test")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("q", ""),
        ("q", "-"),
        ("q", "\0"),
        ("q", "a" * 201),
        ("q", "a b c d e f g h i"),
        ("outcome", "gone"),
        ("since", "yesterday"),
        ("since", ""),
        ("until", "2026-13-01"),
        ("until", "9" * 5_000),
    ],
)
def test_what_cannot_be_searched_is_named(mailed: tuple[Caller, dict[str, str]], name: str, value: str) -> None:
    customer, _ = mailed
    response = customer.get("/v1/emails", params={name: value})
    assert error(response, 400, "invalid_request").startswith(name)


def test_another_account_finds_nothing_of_it(mailed: tuple[Caller, dict[str, str]], new_account: NewAccount) -> None:
    _, ids = mailed
    stranger = owner(new_account())
    for query in ("ada", "example.net", ids["plain"], "5.1.1"):
        assert listed(stranger, q=query) == []
