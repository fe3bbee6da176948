"""Scheduled sends over HTTP: when they go, who may move and cancel them, and what is refused."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, accepted, bearer, error, eventually, message, new_key, owner

NOT_A_TIME = "expected an RFC 3339 time with an offset, such as 2026-11-15T13:00:00+01:00"


def ahead(**since_now: float) -> str:
    return (datetime.now(UTC) + timedelta(**since_now)).isoformat()


def change(caller: Caller, message_id: str, scheduled_at: Any) -> Any:
    return caller.request("PATCH", f"/emails/{message_id}", json={"scheduled_at": scheduled_at})


def cancel(caller: Caller, message_id: str) -> Any:
    return caller.request("POST", f"/emails/{message_id}/cancel")


def key(caller: Caller, scope: str, **options: Any) -> Caller:
    made = owner(caller).request("POST", "/v1/api-keys", json={"scope": scope, **options})
    assert made.status_code == 201, made.text
    return caller.using(bearer(made.json()["key"]))


def test_a_scheduled_message_goes_at_its_time(caller: Caller) -> None:
    due = datetime.now(timezone(timedelta(hours=5, minutes=30))) + timedelta(seconds=2)
    sent = caller.send(scheduled_at=due.isoformat(), to=["a@example.net", "b@example.net"])
    written = due.astimezone(UTC).isoformat(timespec="microseconds")[:23] + "Z"
    assert (sent["status"], sent["scheduled_at"], sent["credits_reserved"]) == ("queued", written, 2)
    found = caller.read(sent["id"])
    assert (found["status"], found["scheduled_at"]) == ("queued", written)
    assert {(each["status"], each["attempt_count"]) for each in found["recipients"]} == {("scheduled", 0)}
    final = caller.final(sent["id"])
    assert (final["status"], final["scheduled_at"]) == ("delivered", written)
    assert all(each["delivered_at"] >= written for each in final["recipients"])
    assert due.astimezone(UTC).strftime("Date: %a, %d %b %Y %H:%M:%S +0000").encode() in caller.mime(sent["id"])


def test_other_messages_do_not_mention_a_schedule(caller: Caller) -> None:
    for options in ({}, {"scheduled_at": None}):
        sent = caller.send(**options)
        assert "scheduled_at" not in sent | caller.read(sent["id"])


WRONG: list[tuple[Any, str]] = [
    (1, "expected a string, got a number"),
    ("", NOT_A_TIME),
    ("tomorrow", NOT_A_TIME),
    ("2026-11-15", NOT_A_TIME),
    ("2126-11-15T13:00:00", NOT_A_TIME),  # no offset
    ("2126-11-15 13:00:00Z", NOT_A_TIME),
    ("2126-02-30T13:00:00Z", NOT_A_TIME),
    ("2126-11-15T13:00:00+25:00", NOT_A_TIME),
    ("2126-11-15T13:00:00Z ", NOT_A_TIME),
    ("٢126-11-15T13:00:00Z", NOT_A_TIME),
    ("0001-01-01T00:00:00+10:00", "0001-01-01T00:00:00+10:00 is in the past"),  # before the first year, in UTC
    ("9999-12-31T23:59:59-10:00", "must be at most 30 days ahead"),
    ("2" * 65, "must have at most 64 characters"),
    (["2126-11-15T13:00:00Z"], "expected a string, got an array"),
    ("2020-11-15T13:00:00Z", "2020-11-15T13:00:00Z is in the past"),
    ("2126-11-15T13:00:00Z", "must be at most 30 days ahead, that is until "),
]


@pytest.mark.parametrize(("value", "text"), WRONG, ids=[repr(value)[:40] for value, _ in WRONG])
def test_wrong_times_are_refused_by_name(caller: Caller, value: Any, text: str) -> None:
    assert caller.refused(scheduled_at=value).startswith(f"scheduled_at: {text}")
    if value != "":
        assert error(change(caller, "msg_1", value), 400, "invalid_request").startswith(f"scheduled_at: {text}")


def test_thirty_days_are_the_limit(caller: Caller) -> None:
    caller.send(scheduled_at=ahead(days=30, seconds=-5))
    caller.refused(scheduled_at=ahead(days=30, seconds=5))


def test_messages_of_a_batch_are_scheduled_each(caller: Caller) -> None:
    emails = [message(scheduled_at=ahead(hours=1)), message(), message(scheduled_at="2020-11-15T13:00:00Z")]
    body = json.dumps({"emails": emails, "on_error": "skip"}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": new_key()}
    later, now, refused = accepted(caller.request("POST", "/emails/batch", content=body, headers=headers))["results"]
    assert refused["error"].startswith("emails[2].scheduled_at: 2020-11-15T13:00:00Z is in the past")
    assert caller.final(now["id"])["status"] == "delivered"
    assert caller.read(later["id"])["recipients"][0]["status"] == "scheduled"


def test_a_replay_after_the_due_time_is_still_the_202(caller: Caller) -> None:
    body, once = message(scheduled_at=ahead(seconds=1)), new_key()
    sent = accepted(caller.post(body, key=once))
    caller.final(sent["id"])
    again = caller.post(body, key=once)
    assert accepted(again)["id"] == sent["id"]
    assert again.headers["idempotent-replayed"] == "true"


def test_a_message_is_moved_and_then_goes(caller: Caller) -> None:
    sent = caller.send(scheduled_at=ahead(days=3))
    near = ahead(seconds=1)
    moved = change(caller, sent["id"], near)
    assert moved.status_code == 200, moved.text
    assert moved.json()["scheduled_at"] == near[:23] + "Z"
    assert moved.json()["request_id"] == moved.headers["x-request-id"]
    assert caller.final(sent["id"])["status"] == "delivered"
    assert datetime.fromisoformat(near).strftime("Date: %a, %d %b %Y %H:%M:%S +0000").encode() in caller.mime(
        sent["id"]
    )
    error(change(caller, sent["id"], ahead(days=1)), 409, "conflict")
    error(change(caller, caller.send()["id"], ahead(days=1)), 409, "conflict")


def test_a_cancelled_message_fails_and_its_credits_return(new_account: NewAccount) -> None:
    caller = new_account(credit=10)
    sent = caller.send(scheduled_at=ahead(hours=1), to=["a@example.net", "b@example.net"])
    assert caller.credits() == 8
    answer = cancel(caller, sent["id"])
    assert (answer.status_code, answer.json()["status"]) == (200, "failed"), answer.text
    assert {each["status"] for each in answer.json()["recipients"]} == {"failed"}
    assert all(each["last_smtp_response"].startswith("cancelled: ") for each in answer.json()["recipients"])
    assert caller.credits() == 10
    error(cancel(caller, sent["id"]), 409, "conflict")
    error(change(caller, sent["id"], ahead(days=1)), 409, "conflict")


def test_who_may_move_and_cancel(new_account: NewAccount, caller: Caller) -> None:
    own = new_account()
    sender, other_sender, reader = key(own, "send"), key(own, "send"), key(own, "read")
    for who in (own, key(own, "full"), owner(own), sender):
        sent = sender.send(scheduled_at=ahead(hours=1))
        assert change(who, sent["id"], ahead(hours=2)).status_code == 200
        assert cancel(who, sent["id"]).status_code == 200
    sent = sender.send(scheduled_at=ahead(hours=1))
    for stranger in (caller, other_sender, key(own, "full", domain="example.com", test=True)):
        error(change(stranger, sent["id"], ahead(hours=2)), 404, "not_found")
        error(cancel(stranger, sent["id"]), 404, "not_found")
    error(cancel(reader, sent["id"]), 403, "forbidden")
    error(change(own.using({}), sent["id"], ahead(hours=2)), 401, "unauthorized")
    error(cancel(own.using(bearer("ma_live_no")), sent["id"]), 401, "unauthorized")
    assert own.read(sent["id"])["recipients"][0]["status"] == "scheduled"
    manager = key(own, "manage")
    sent = own.send(scheduled_at=ahead(hours=1))
    assert cancel(manager, sent["id"]).status_code == 200
    lines = owner(own).get("/v1/audit", params={"action": "email"}).json()["audit"]
    audited = [("key", "email.cancelled"), ("user", "email.cancelled"), ("user", "email.rescheduled")]
    assert [(line["actor_kind"], line["action"]) for line in lines] == audited, "those who may only send add no lines"


def test_the_list_and_its_details_show_the_schedule(new_account: NewAccount) -> None:
    caller = owner(new_account())
    sent = caller.send(scheduled_at=ahead(hours=1))
    caller.delivered()
    listed = caller.get("/v1/emails", params={"outcome": "scheduled"}).json()["emails"]
    assert [(each["id"], each["scheduled_at"], each["outcomes"]) for each in listed] == [
        (sent["id"], sent["scheduled_at"], {"scheduled": 1})
    ]
    details = caller.get(f"/v1/emails/{sent['id']}").json()
    (recipient,) = details["recipients"]
    assert (details["scheduled_at"], recipient["outcome"]) == (sent["scheduled_at"], "scheduled")
    assert "scheduled" in recipient["explanation"]
    cancelled = caller.request("POST", f"/v1/emails/{sent['id']}/cancel")
    assert cancelled.json()["cancelled"] == 1
    eventually(
        lambda: caller.get("/v1/emails", params={"outcome": "scheduled"}).json()["emails"], lambda each: not each
    )
