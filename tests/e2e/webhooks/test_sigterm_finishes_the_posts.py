"""SIGTERM while events are posted: what is on its way arrives and is recorded, the rest goes on after the restart."""

import time
from pathlib import Path

import httpx

from tests.e2e.contract.service import eventually, new_key
from tests.fakes.webhook_server import Answer, Post, hooks
from tests.running_appliance import appliance


def steadily(_: Post) -> Answer:
    time.sleep(0.3)
    return 200, b""


def test_a_stop_repeats_nothing(tmp_path: Path) -> None:
    """Each of forty events reaches the receiver exactly once, though the program is stopped half-way."""
    to = [f"a{number}@example.net" for number in range(40)]
    message = {"from": "a@example.com", "to": to, "subject": "s", "text": "t"}
    with hooks(tmp_path) as receiver, appliance(tmp_path, webhooks=receiver.settings(tmp_path)) as running:
        receiver.answers["/"] = steadily
        with running.client(headers=running.login()) as client:
            client.put("/v1/webhook", json={"url": receiver.url("/")}).raise_for_status()
            sent = client.post("/emails", json=message, headers={"Idempotency-Key": new_key()})
            assert sent.status_code == 202, sent.text
        eventually(lambda: len(receiver.posts), lambda count: count >= 9)
        assert running.terminate() == 0
        before = len(receiver.posts)
        assert 9 <= before < 40
        running.start()
        eventually(lambda: len(receiver.posts), lambda count: count >= 40)
        time.sleep(0.5)
        ids = [post.json()["id"] for post in receiver.posts]
        assert len(ids) == len(set(ids)) == 40
        history = httpx.get(f"{running.url}/v1/webhook/deliveries?limit=100", headers=running.login(), trust_env=False)
        assert [each["status"] for each in history.json()["deliveries"]] == ["success"] * 40
        assert running.complaints() == []
