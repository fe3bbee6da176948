"""GET /emails/{id}: the message object, its recipients, and the states they go through."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.contract.service import Caller, error, eventually

MESSAGE = {
    "id": str,
    "status": str,
    "source": str,
    "from": str,
    "subject": str,
    "billing_status": str,
    "recipient_count": int,
    "credits_reserved": int,
    "created_at": str,
    "recipients": list,
    "request_id": str,
}
RECIPIENT = {
    "id",
    "email",
    "status",
    "billing_status",
    "attempt_count",
    "last_smtp_code",
    "last_smtp_response",
    "delivered_at",
    "bounced_at",
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def just_now(text: str) -> bool:
    """Whether this is an RFC 3339 time in UTC within the last minute."""
    assert TIME.fullmatch(text)
    return 0 <= datetime.now(UTC).timestamp() - datetime.fromisoformat(text).timestamp() < 60


def results(message: Any) -> dict[str, str]:
    return {each["email"]: each["status"] for each in message["recipients"]}


def test_a_message_has_every_field_and_no_other(caller: Caller) -> None:
    sent = caller.send(from_="Shop <shop@example.com>", subject="Grüße", cc="cc@example.net", bcc="bcc@example.net")
    found = caller.read(sent["id"])
    assert {name: type(value) for name, value in found.items()} == MESSAGE
    assert just_now(found["created_at"])
    told = ("id", "source", "from", "subject", "recipient_count", "credits_reserved")
    assert {name: found[name] for name in told} == {name: sent[name] for name in told}


def test_recipients_are_told_in_the_order_of_to_cc_and_bcc(caller: Caller) -> None:
    """Every unique recipient is there with every field, by its bare address, under an id of its own."""
    sent = caller.send(to=["Zoe <z@example.net>", "b@example.net"], cc="c@example.net", bcc="a@example.net")
    found = caller.read(sent["id"])["recipients"]
    assert [each["email"] for each in found] == ["z@example.net", "b@example.net", "c@example.net", "a@example.net"]
    assert all(set(each) == RECIPIENT for each in found)
    assert len({each["id"] for each in found if each["id"].startswith("rcp_")}) == 4


def test_a_delivered_message(caller: Caller) -> None:
    """All recipients delivered: delivered and settled, with the server's answer and the time of it."""
    found = caller.delivered(to=["a@example.net", "b@example.net"])
    assert (found["status"], found["billing_status"], found["credits_reserved"]) == ("delivered", "settled", 2)
    for each in found["recipients"]:
        assert (each["status"], each["billing_status"], each["attempt_count"]) == ("delivered", "settled", 1)
        assert (each["last_smtp_code"], each["last_smtp_response"][:4]) == (250, "250 ")
        assert just_now(each["delivered_at"])
        assert each["bounced_at"] is None


def test_a_bounced_message(caller: Caller) -> None:
    """All recipients bounced: failed and released; credits_reserved stays what it was."""
    found = caller.delivered(to=["bounce1@example.net", "bounce2@example.net"])
    assert (found["status"], found["billing_status"], found["credits_reserved"]) == ("failed", "released", 2)
    for each in found["recipients"]:
        assert (each["status"], each["billing_status"], each["attempt_count"]) == ("bounced", "released", 1)
        assert (each["last_smtp_code"], each["last_smtp_response"][:10]) == (550, "550 5.1.1 ")
        assert just_now(each["bounced_at"])
        assert each["delivered_at"] is None


def test_a_failed_message(caller: Caller) -> None:
    """All recipients failed after every attempt: failed and settled, since that is no firm bounce."""
    found = caller.delivered(to="fail@example.net")
    assert (found["status"], found["billing_status"]) == ("failed", "settled")
    (recipient,) = found["recipients"]
    assert (recipient["status"], recipient["billing_status"]) == ("failed", "settled")
    assert (recipient["delivered_at"], recipient["bounced_at"]) == (None, None)


def test_a_message_is_queued_until_its_last_recipient_is_final(caller: Caller) -> None:
    """One recipient that is tried again keeps the message queued and reserved while the others are done."""
    sent = caller.send(to=["a@example.net", "bounce@example.net", "defer@example.net"])
    waiting = {"a@example.net": "delivered", "bounce@example.net": "bounced", "defer@example.net": "deferred"}
    found = eventually(lambda: caller.read(sent["id"]), lambda found: results(found) == waiting)
    assert (found["status"], found["billing_status"], found["credits_reserved"]) == ("queued", "reserved", 3)
    assert [each["billing_status"] for each in found["recipients"]] == ["settled", "released", "reserved"]
    found = caller.final(sent["id"])
    assert results(found) == waiting | {"defer@example.net": "delivered"}
    assert (found["status"], found["billing_status"], found["credits_reserved"]) == ("partial", "settled", 3)


def test_every_reading_is_a_request_of_its_own(caller: Caller) -> None:
    sent = caller.send()
    first, second = (caller.get(f"/emails/{sent['id']}") for _ in range(2))
    assert first.headers["x-request-id"] == first.json()["request_id"]
    assert len({sent["request_id"], first.json()["request_id"], second.json()["request_id"]}) == 3


@pytest.mark.parametrize(
    "message_id", ["msg_0", "0", "%00", "%FF", "msg_" + "0" * 32, "x" * 5000, "...", "%2e%2e", "a%2Fb", ""]
)
def test_an_unknown_message_is_not_found(caller: Caller, message_id: str) -> None:
    error(caller.get(f"/emails/{message_id}"), 404, "not_found")


def test_an_id_is_exact(caller: Caller) -> None:
    message_id = caller.send()["id"]
    for other in (message_id.upper(), f"{message_id} ", f"{message_id}%00", message_id[:-1], message_id[4:]):
        error(caller.get(f"/emails/{other}"), 404, "not_found")


def test_messages_are_read_over_one_connection(caller: Caller) -> None:
    """Polling keeps its connection: no answer to a GET ends it."""
    message_id = caller.send()["id"]
    with caller.running.client() as client:
        for _ in range(5):
            response = client.get(f"/emails/{message_id}")
            assert "connection" not in response.headers
            network = response.extensions["network_stream"]
            assert client.head(f"/emails/{message_id}").extensions["network_stream"] is network
            assert client.get("/emails/unknown").extensions["network_stream"] is network
