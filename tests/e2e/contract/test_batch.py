"""`POST /emails/batch`: the good messages in one transaction, the bad ones named by their place."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, accepted, bearer, change, error, eventually, message, new_key, owner
from tests.running_appliance import appliance


def post(caller: Caller, *emails: Any, key: str | None = None, **fields: Any) -> httpx.Response:
    return post_body(caller, {"emails": list(emails), **fields}, key=key)


def post_body(caller: Caller, body: Any, *, key: str | None = None) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": key or new_key()}
    return caller.request("POST", "/emails/batch", content=content, headers=headers)


def messages(caller: Caller) -> int:
    ((count,),) = caller.rows("SELECT count(*) FROM messages WHERE account_id = :id", id=caller.account.account_id)
    return int(count)


@pytest.mark.both_engines
def test_a_batch_is_accepted_and_delivered(new_account: NewAccount) -> None:
    """Each message has the result of its place, costs what it costs alone, and is a message like any other."""
    caller = new_account(credit=100)
    emails = [message(to=f"user{n}@example.net", subject=f"number {n}", tags=["a"]) for n in range(9)]
    emails.append(message(to=["ada@example.net", "bob@example.net"], cc="ada@example.net"))
    body = accepted(post(caller, *emails))
    assert set(body) == {"results", "accepted", "refused", "request_id"}
    assert (body["accepted"], body["refused"]) == (10, 0)
    for index, result in enumerate(body["results"]):
        recipients = 2 if index == 9 else 1
        assert result == {
            "index": index,
            "id": result["id"],
            "status": "queued",
            "recipient_count": recipients,
            "credits_reserved": recipients,
        }
        read = caller.final(result["id"])
        assert (read["status"], read["source"], read["subject"]) == ("delivered", "api", emails[index]["subject"])
    assert caller.credits() == 100 - 11
    times = caller.rows(
        "SELECT count(DISTINCT request_id) FROM messages WHERE account_id = :id", id=caller.account.account_id
    )
    assert times == [(1,)]


FILE = {"filename": "a.txt", "content": "aGk="}
# Tests of a single message have every rule (tests/message); here is one of each kind.
BAD: list[tuple[Any, int, str, str]] = [
    (message(to=["a@example.net", 5]), 400, "invalid_request", ".to[1]: expected a string, got a number"),
    (message(from_=...), 400, "invalid_request", ".from: this field is required"),
    (message(from_="a@other.example"), 403, "forbidden", ".from: "),
    (message(template="none", text=...), 400, "invalid_request", ".template: "),
    (message(headers={"X-A": 1}), 400, "invalid_request", ".headers.X-A: expected a string, got a number"),
    (message(other=1), 400, "invalid_request", ".other: there is no such field"),
    (
        message(attachments=[FILE, FILE, FILE | {"content": "%"}]),
        400,
        "invalid_request",
        ".attachments[2].content: not standard base64",
    ),
    (message(text="x" * 11 * 2**20), 413, "payload_too_large", ": the assembled message is larger"),
    (5, 400, "invalid_request", ": expected an object, got a number"),
    (None, 400, "invalid_request", ": expected an object, got null"),
]


@pytest.mark.parametrize(("bad", "status", "code", "text"), BAD, ids=[bad[3][:30] for bad in BAD])
def test_a_bad_message_is_named_by_its_place(
    new_account: NewAccount, bad: Any, status: int, code: str, text: str
) -> None:
    """It refuses the batch; with `skip` only itself, with the same words; and alone in a batch it refuses that, too."""
    caller = new_account(credit=10)
    refused = error(post(caller, *[message()] * 3, bad, message()), status, code)
    assert refused.startswith(f"emails[3]{text}")
    assert error(post(caller, bad, on_error="skip"), status, code).startswith(f"emails[0]{text}")
    assert (messages(caller), caller.credits()) == (0, 10)
    body = accepted(post(caller, *[message()] * 3, bad, message(), on_error="skip"))
    assert (body["accepted"], body["refused"]) == (4, 1)
    assert body["results"][3] == {"index": 3, "error": refused, "code": code}
    assert [("id" in result, result["index"]) for result in body["results"]] == [(n != 3, n) for n in range(5)]
    assert (messages(caller), caller.credits()) == (4, 6)


ONE = json.dumps(message()).encode()
ENVELOPES: list[tuple[Any, str]] = [
    ({}, "emails: this field is required"),
    ([], "body: expected an object, got an array"),
    ({"emails": {}}, "emails: expected an array, got an object"),
    ({"emails": []}, "emails: must not be empty"),
    ({"emails": [message()] * 101}, "emails: must have at most 100 entries"),
    ({"emails": [message()], "on_error": "ignore"}, "on_error: expected `reject` or `skip`"),
    ({"emails": [message()], "on_error": True}, "on_error: expected a string"),
    ({"emails": [message()], "more": 1}, "more: there is no such field"),
    (b'{"emails": [%s], "emails": [%s]}' % (ONE, ONE), "emails: this key occurs twice in one object"),
    (b'{"emails": [%s, {"from": "a", "from": "b"}]}' % ONE, "emails[1]."),
    (b'{"emails": [%s, {"to": nul}]}' % ONE, "emails[1].to: not valid JSON (byte"),
    (b'{"emails": [%s, {"to": "\xff"}]}' % ONE, "emails[1].to: not valid UTF-8"),
    (b'{"emails": [%s]' % ONE, "emails: the JSON ends too early"),
    (b"", "body: expected a JSON object, got nothing"),
    (b'{"emails": [' + b"1," * 2**19 + b"1]}", "body: contains more than 400000 values"),
]


@pytest.mark.parametrize(("body", "text"), ENVELOPES, ids=[text for _, text in ENVELOPES])
def test_a_bad_envelope_is_refused(caller: Caller, body: Any, text: str) -> None:
    assert error(post_body(caller, body), 400, "invalid_request").startswith(text)


def test_a_batch_larger_than_16_mib_is_refused(caller: Caller) -> None:
    large = [message(text="x" * 6 * 2**20)] * 3
    assert "16 MiB" in error(post(caller, *large), 413, "payload_too_large")


@pytest.mark.both_engines
def test_credits_are_needed_for_all_or_for_each(new_account: NewAccount) -> None:
    """`reject` needs the credits of all; with `skip` the messages beyond them are refused one by one."""
    caller = new_account(credit=4)
    emails = [message(), message(to=["a@example.net", "b@example.net"]), message(), message(to=["a@x.org", "b@x.org"])]
    refused = error(post(caller, *emails), 402, "insufficient_credits")
    assert refused.startswith("emails[3]: This message needs 2 credits and the account has 0.")
    assert (messages(caller), caller.credits()) == (0, 4)
    body = accepted(post(caller, emails[3], *emails, message(), on_error="skip"))
    codes = [result.get("code", result.get("status")) for result in body["results"]]
    assert codes == ["queued", "queued", "insufficient_credits", "queued", *["insufficient_credits"] * 2]
    assert (body["accepted"], body["refused"], caller.credits()) == (3, 3, 0)
    assert error(post(caller, message(), on_error="skip"), 402, "insufficient_credits").startswith("emails[0]: ")


@pytest.mark.both_engines
@pytest.mark.parametrize("mode", ["reject", "skip"])
def test_a_retry_returns_the_same_results(new_account: NewAccount, mode: str) -> None:
    """Also where some were refused, and where the first was; another body is a conflict, and so is a single message."""
    caller, key = new_account(credit=2), new_key()
    emails = [message(to="bounce@example.net"), message()]
    if mode == "skip":
        emails = [message(to="x"), *emails, message(), message(subject=4)]
    first = post(caller, *emails, on_error=mode, key=key)
    told = accepted(first)
    assert told["accepted"] == 2
    caller.final(told["results"][-1 if mode == "reject" else 2]["id"])
    for _ in range(2):
        retry = post(caller, *emails, on_error=mode, key=key)
        assert accepted(retry) | {"request_id": ""} == told | {"request_id": ""}
        assert retry.headers["idempotent-replayed"] == "true"
        assert retry.headers["original-request-id"] == told["request_id"] != retry.json()["request_id"]
    error(post(caller, *emails[:-1], on_error=mode, key=key), 409, "idempotency_conflict")
    if mode == "reject":
        error(post(caller, *emails, on_error="skip", key=key), 409, "idempotency_conflict")
    error(caller.post(message(), key=key), 409, "idempotency_conflict")
    assert messages(caller) == 2
    assert error(caller.request("POST", "/emails/batch", json={"emails": emails}), 400, "invalid_request").startswith(
        "Idempotency-Key: missing header"
    )


@pytest.mark.both_engines
def test_suppressed_recipients_bounce_and_cost_nothing(new_account: NewAccount) -> None:
    caller = new_account(credit=10)
    account_id = caller.account.account_id
    change(caller.running.data_dir, lambda store: store.suppressions.add(account_id, "bad@example.net", "manual"))
    body = accepted(post(caller, *[message(to=["bad@example.net", "ada@example.net"])] * 3, message()))
    ids = [result["id"] for result in body["results"]]
    assert [caller.final(each)["status"] for each in ids] == ["partial"] * 3 + ["delivered"]
    assert caller.credits() == 10 - 4


@pytest.mark.both_engines
def test_the_daily_cap_counts_the_messages_before(new_account: NewAccount) -> None:
    caller = new_account(credit=100)
    account_id = caller.account.account_id
    change(caller.running.data_dir, lambda store: store.accounts.set_daily_cap(account_id, 3))
    emails = [message(), message(to=["a@x.org", "b@x.org"]), message()]
    response = post(caller, *emails)
    assert error(response, 429, "warmup_limited").startswith("emails[2]: The account may send to 3 recipients")
    assert int(response.headers["retry-after"]) > 0
    body = accepted(post(caller, message(), message(to=["a@x.org", "b@x.org", "c@x.org"]), *emails, on_error="skip"))
    codes = [result.get("code", "queued") for result in body["results"]]
    assert codes == ["queued", "warmup_limited", "queued", "warmup_limited", "queued"]


def test_templates_test_keys_and_suspension(new_account: NewAccount) -> None:
    """Placeholders are filled in, a test key costs nothing, and a suspended account is refused as a whole."""
    caller = new_account(credit=10)
    account_id = caller.account.account_id
    template = {"subject": "Hi {{name}}", "text": "Dear {{name}}"}
    assert owner(caller).request("PUT", "/v1/templates/hello", json=template).status_code in (200, 201)
    emails = [message(template="hello", variables={"name": n}, text=..., subject=...) for n in ("Ada", "Bob")]
    body = accepted(post(caller, *emails))
    assert [caller.read(result["id"])["subject"] for result in body["results"]] == ["Hi Ada", "Hi Bob"]
    test = accepted(post(caller.using(bearer(caller.account.test_key)), *emails))
    assert [result["credits_reserved"] for result in test["results"]] == [0, 0]
    assert caller.credits() == 8
    change(caller.running.data_dir, lambda store: store.accounts.set_suspended(account_id, True))
    for mode in ("reject", "skip"):
        refusal = eventually(lambda: post(caller, message(), on_error=mode), lambda sent: sent.status_code != 202)  # noqa: B023
        error(refusal, 403, "account_suspended")


@pytest.mark.both_engines
def test_large_messages_are_whole(new_account: NewAccount) -> None:
    """What is too much for one commit is written in parts; all is there, also of messages that are small alone."""
    caller = new_account(credit=100)
    files = [bytes([65 + n]) * (5 * 2**20 if n == 3 else 200_000) for n in range(12)]
    emails = [
        message(attachments=[{"filename": "a.bin", "content": base64.b64encode(file).decode()}]) for file in files
    ]
    body = accepted(post(caller, *emails, message(to="x"), on_error="skip"))
    assert (body["accepted"], body["refused"]) == (12, 1)
    for result, file in zip(body["results"], files, strict=False):
        lines = caller.mime(result["id"]).replace(b"\r\n", b"")
        assert base64.b64encode(file) in lines
        assert caller.final(result["id"])["status"] == "delivered"


def test_the_request_log_knows_the_route(new_account: NewAccount) -> None:
    caller = new_account()
    told = accepted(post(caller, *[message(text="x" * 5_000)] * 3))
    error(post(caller, message(to="x")), 400, "invalid_request")
    reader = owner(caller)
    listed = eventually(lambda: reader.get("/v1/requests").json()["requests"], lambda found: len(found) == 2)
    refused, sent = listed
    assert {(entry["route"], entry["source"]) for entry in listed} == {("POST /emails/batch", "api")}
    assert (sent["status"], sent["message_id"]) == (202, told["results"][0]["id"])
    assert sent["body"].startswith(
        '{"on_error":"reject","emails":[{"from":"sender@example.com","to":"ada@example.net",'
    )
    assert refused["error"].startswith("emails[0].to: ")


def test_a_batch_counts_as_a_request_for_every_10_messages_begun(tmp_path: Path) -> None:
    """One larger than the burst is admitted when the bucket is full, and empties it."""
    with appliance(tmp_path, requests_per_second=1) as slow, slow.client(headers={}) as client:
        caller = Caller(slow, slow.account, client, slow.account.bearer)
        accepted(post(caller, *[message()] * 100))
        response = post(caller, *[message()] * 20)
        error(response, 429, "rate_limited")
        assert response.headers["retry-after"] in ("1", "2")
        one = caller.using(caller.account.basic)  # a bucket of its own
        accepted(post(one, *[message()] * 10))
        response = post(one, *[message()] * 11)
        error(response, 429, "rate_limited")
        assert response.headers["retry-after"] in ("1", "2")


def test_a_batch_carries_metadata(new_account: NewAccount) -> None:
    caller = new_account()
    body = accepted(post(caller, message(metadata={"order": "1"}), message(metadata={"order": "2"})))
    assert [caller.read(result["id"])["metadata"]["order"] for result in body["results"]] == ["1", "2"]
    refused = error(post(caller, message(), message(metadata={"order": 1})), 400, "invalid_request")
    assert refused.startswith("emails[1].metadata.order: expected a string, got a number")
