"""`kill -9` right after messages were accepted, before any index has them: they are found by the next start."""

from pathlib import Path

import pytest

from tests.running_appliance import appliance, command

SUBJECT = "An invoice of the last second"


@pytest.mark.timeout(120)
def test_what_was_accepted_before_a_kill_is_found(tmp_path: Path) -> None:
    """By the shell while nothing runs, and over HTTP by words, by id and by outcome after the start."""
    with appliance(tmp_path, credit=100) as running:
        with running.client() as client:
            body = {"from": "a@example.com", "to": ["ada.lovelace@example.net"], "subject": SUBJECT, "text": "Hello"}
            answer = client.post("/emails", json=body, headers={"Idempotency-Key": "1"})
            assert answer.status_code == 202, answer.text
        running.kill()
        message_id = answer.json()["id"]
        found = command(running.config_file, "messages", "INV", "lovelace@")["messages"]
        assert [each["id"] for each in found] == [message_id]
        running.start()
        with running.client(headers=running.login()) as client:
            for query in ("invoice", "lovelace@example", message_id, answer.json()["request_id"]):
                found = client.get("/v1/emails", params={"q": query})
                assert [each["id"] for each in found.json()["emails"]] == [message_id], query
