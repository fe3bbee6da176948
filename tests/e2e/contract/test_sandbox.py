"""Sandbox delivery: the recipient's local part decides, and everything else is as with real mail."""

from typing import Any

import msgspec

from tests.e2e.contract.service import Caller


def events(caller: Caller, message_id: str) -> list[Any]:
    query = "SELECT body FROM events WHERE message_id = :id ORDER BY id"
    return [msgspec.json.decode(bytes(body)) for (body,) in caller.rows(query, id=message_id)]


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
            "message_id": f"{sent['id'].removeprefix('msg_')}@example.com",
            "stream": "transactional",
            "smtp_code": recipient["last_smtp_code"],
            "smtp_response": recipient["last_smtp_response"],
            **({"bounce_class": "invalid_recipient"} if event["type"] == "email.bounced" else {}),
        }
