"""The Idempotency-Key: one key, one message, however often it is repeated."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from appliance.message.quick_fingerprint import quick_fingerprint
from appliance.message.request import decode, fingerprint
from appliance.message.schema import SendRequest
from tests import engines
from tests.e2e.contract.service import Caller, accepted, any_error, error, message, new_key

pytestmark = pytest.mark.both_engines


def test_the_key_is_required(caller: Caller) -> None:
    """A send without Idempotency-Key is an invalid request that says so."""
    response = caller.request("POST", "/emails", json=message())
    assert "Idempotency-Key" in error(response, 400, "invalid_request")


def test_there_is_one_key(caller: Caller) -> None:
    """Two Idempotency-Key headers are refused: it would be unclear which one counts."""
    headers = [*caller.authorization.items(), ("Idempotency-Key", new_key()), ("Idempotency-Key", new_key())]
    response = caller.client.post("/emails", json=message(), headers=headers)
    assert error(response, 400, "invalid_request").startswith("Idempotency-Key:")


def test_a_retry_is_the_first_answer_again(caller: Caller) -> None:
    """Same key and same body: 202, the same fields, a new request_id, and headers that name the first request."""
    key = new_key()
    first, second, third = (caller.post(message(), key=key) for _ in range(3))
    told, again, once_more = accepted(first), accepted(second), accepted(third)
    assert again | {"request_id": ""} == told | {"request_id": ""} == once_more | {"request_id": ""}
    assert len({each["request_id"] for each in (told, again, once_more)}) == 3
    for retry in (second, third):
        assert retry.headers["idempotent-replayed"] == "true"
        assert retry.headers["original-request-id"] == told["request_id"]


def test_a_retry_after_delivery_still_says_what_was_accepted(caller: Caller) -> None:
    """The first answer is repeated even when the message is final by now."""
    key = new_key()
    first = accepted(caller.post(message(to="bounce@example.net"), key=key))
    caller.final(first["id"])
    again = accepted(caller.post(message(to="bounce@example.net"), key=key))
    assert (again["status"], again["billing_status"], again["id"]) == ("queued", "reserved", first["id"])


@pytest.mark.parametrize("kind", [lambda request, _: fingerprint(request), quick_fingerprint])
def test_a_retry_matches_a_fingerprint_of_either_kind(
    caller: Caller, kind: Callable[[SendRequest, str], bytes]
) -> None:
    """An earlier version, or a cluster, may have stored the fingerprint of a large message."""
    key, body = new_key(), message(attachments=[{"filename": "a.bin", "content": "QUJD" * 30_000}])
    first = accepted(caller.post(body, key=key))
    stored = kind(decode(json.dumps(body).encode()), key)

    async def replace() -> None:
        async with engines.beside(caller.running.data_dir) as store:
            assert await store.engine.change(_REPLACE, {"key": key, "fingerprint": stored})

    trio.run(replace)
    again = caller.post(body, key=key)
    assert accepted(again)["id"] == first["id"]
    assert again.headers["idempotent-replayed"] == "true"
    body["attachments"][0]["content"] = "QUJD" * 29_999 + "QUJE"
    error(caller.post(body, key=key), 409, "idempotency_conflict")


_REPLACE = "UPDATE idempotency_keys SET fingerprint = :fingerprint WHERE key = :key RETURNING key"


@pytest.mark.parametrize("other", [{"subject": "hello"}, {"to": ["ada@example.net"]}, {"cc": []}])
def test_another_body_is_a_conflict(caller: Caller, other: dict[str, Any]) -> None:
    """A key reused with a body that is not equal as JSON is refused, and the first message stays."""
    key = new_key()
    first = accepted(caller.post(message(), key=key))
    error(caller.post(message(**other), key=key), 409, "idempotency_conflict")
    assert accepted(caller.post(message(), key=key))["id"] == first["id"]


def test_a_bad_body_under_a_used_key_is_refused(caller: Caller) -> None:
    """A body that is invalid is a conflict or invalid, but never the first answer."""
    key = new_key()
    accepted(caller.post(message(), key=key))
    for body in (message(to=[]), message(subject=...), {}):
        assert caller.post(body, key=key).status_code in (400, 409)


def test_a_key_is_taken_literally(caller: Caller) -> None:
    """Keys that differ in case or in inner spaces are different keys."""
    key = new_key()
    keys = [f"{key}A b", f"{key}a b", f"{key}A  b", f"{key}A b'--", f"{key}*"]
    assert len({accepted(caller.post(message(), key=each))["id"] for each in keys}) == len(keys)


def test_while_the_first_runs_others_are_told_to_wait(caller: Caller) -> None:
    """During a large send, its key is in progress: 409 with Retry-After 1, whatever the second body says."""
    seen: set[str] = set()
    large = message(text="all wörk and no play\n" * 350_000)
    for _ in range(10):
        key = new_key()
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(caller.post, large, key=key)
            while not first.done():
                second = caller.post(message(text=...), key=key)
                any_error(second)
                seen.add(second.json()["code"])
                if second.json()["code"] == "idempotency_in_progress":
                    assert (second.status_code, second.headers["retry-after"]) == (409, "1")
            if first.result().status_code == 409:  # one of the others came first, and was being judged
                error(first.result(), 409, "idempotency_in_progress")
                continue
            accepted(first.result())
        if "idempotency_in_progress" in seen:
            return
    pytest.fail(f"no request met the first one running: {seen}")
