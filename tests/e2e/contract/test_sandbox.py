"""Sandbox delivery: the recipient's local part decides, and everything else is as with real mail."""

from typing import Any

import msgspec
import pytest

from tests.e2e.contract.service import Caller, eventually
from tests.stopwatch import Stopwatch

ATTEMPTS = 12  # in all, by the retry schedule


def only(found: Any) -> Any:
    (recipient,) = found["recipients"]
    return recipient


def events(caller: Caller, message_id: str) -> list[Any]:
    query = "SELECT body FROM events WHERE message_id = :id ORDER BY id"
    return [msgspec.json.decode(bytes(body)) for (body,) in caller.rows(query, id=message_id)]


@pytest.mark.parametrize("to", ["fail@example.net", "failure.1@example.net", "FAIL@example.net"])
def test_fail_uses_up_all_attempts_at_once(caller: Caller, to: str) -> None:
    """A local part that begins with `fail` gets 451 until the twelve attempts are used up, without waiting."""
    watch = Stopwatch(caller.running.pid)
    recipient = only(caller.delivered(to=to))
    assert watch.taken < 2
    assert (recipient["status"], recipient["attempt_count"], recipient["last_smtp_code"]) == ("failed", ATTEMPTS, 451)
    assert recipient["last_smtp_response"].startswith("451 ")


def test_defer_is_tried_again_after_two_seconds(caller: Caller) -> None:
    """A local part that begins with `defer` gets one 451 and waits deferred, then 250 about two seconds later."""
    watch = Stopwatch(caller.running.pid)
    sent = caller.send(to="defer@example.net")
    found = eventually(lambda: caller.read(sent["id"]), lambda found: only(found)["status"] != "queued")
    waiting = only(found)
    assert (found["status"], found["billing_status"]) == ("queued", "reserved")
    assert (waiting["status"], waiting["billing_status"], waiting["attempt_count"]) == ("deferred", "reserved", 1)
    assert (waiting["last_smtp_code"], waiting["last_smtp_response"][:4]) == (451, "451 ")
    assert (waiting["delivered_at"], waiting["bounced_at"]) == (None, None)
    assert events(caller, sent["id"]) == []
    recipient = only(caller.final(sent["id"]))
    assert watch.elapsed > 1.8
    assert watch.taken < 8
    assert (recipient["status"], recipient["attempt_count"], recipient["last_smtp_code"]) == ("delivered", 2, 250)


def test_each_recipient_has_its_own_result(caller: Caller) -> None:
    """One message may be delivered, bounced and failed, each recipient by its own address."""
    found = caller.delivered(to="ok@example.net", cc="bounce@example.net", bcc="fail@example.net")
    assert [each["status"] for each in found["recipients"]] == ["delivered", "bounced", "failed"]
    assert [each["billing_status"] for each in found["recipients"]] == ["settled", "released", "settled"]


def test_every_final_result_has_one_event(caller: Caller) -> None:
    """One event a recipient, of its type, with what the interface says, and none for a deferral."""
    sent = caller.send(
        from_="Shop <shop@example.com>",
        to=["ok@example.net", "bounce@example.net", "fail@example.net", "defer@example.net"],
        subject="x" * 300,
    )
    found = caller.final(sent["id"])
    told = {event["data"]["to"]: event for event in events(caller, sent["id"])}
    kinds = {"ok": "email.delivered", "bounce": "email.bounced", "fail": "email.failed", "defer": "email.delivered"}
    assert {to: event["type"] for to, event in told.items()} == {f"{n}@example.net": kind for n, kind in kinds.items()}
    assert len(events(caller, sent["id"])) == 4
    for recipient in found["recipients"]:
        event = told[recipient["email"]]
        assert set(event) == {"id", "type", "created_at", "data"}
        assert event["id"].startswith("evt_")
        assert event["data"] == {
            "email_id": sent["id"],
            "recipient_id": recipient["id"],
            "to": recipient["email"],
            "from": "shop@example.com",
            "subject": "x" * 200,
            "smtp_code": recipient["last_smtp_code"],
            "smtp_response": recipient["last_smtp_response"],
        }
