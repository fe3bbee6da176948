"""What is counted and noted of an attempt."""

import pytest

from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus, Trigger
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import WEBHOOK_POSTS, WEBHOOK_SECONDS
from appliance.webhook.post import observe


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    notes: list[dict[str, object]] = []
    monkeypatch.setattr(MESSAGE_LOG, "keep", True)
    monkeypatch.setattr(MESSAGE_LOG, "note", lambda event, **fields: notes.append({"event": event, **fields}))
    return notes


def result(status: PostStatus, message_id: str | None = "msg_1") -> PostResult:
    lane = Lane("whk_1", Trigger.EVENT if message_id else Trigger.PING)
    post = DuePost(lane, "whd_1", 2, b"{}", "evt_1", message_id, "rcp_1" if message_id else None)
    again = 5 if status is PostStatus.PENDING else None
    answered = 200 if status is PostStatus.SUCCESS else 500
    return PostResult(post, status, "https://hooks.example.net/?key=secret", answered, "body", None, 250, 1, again)


def test_every_attempt_is_counted(noted: list[dict[str, object]]) -> None:
    before, total = dict(WEBHOOK_POSTS.values), WEBHOOK_SECONDS.total
    for status in PostStatus:
        observe(result(status))
    observe(result(PostStatus.SUCCESS, None))
    counted = {key: value - before.get(key, 0) for key, value in WEBHOOK_POSTS.values.items()}
    assert counted == {"success": 2, "failed": 2}
    assert WEBHOOK_SECONDS.total - total == pytest.approx(1.0)


def test_a_message_is_followed_to_its_webhook(noted: list[dict[str, object]]) -> None:
    """The line has the message's id and the delivery's, and neither the URL, which may hold a secret, nor a body."""
    observe(result(PostStatus.PENDING))
    observe(result(PostStatus.SUCCESS, None))
    (line,) = noted
    assert (line["event"], line["message_id"], line["recipient_id"]) == ("webhook", "msg_1", "rcp_1")
    assert (line["event_id"], line["delivery_id"], line["trigger"]) == ("evt_1", "whd_1", "event")
    assert (line["status"], line["attempt"], line["response_status"], line["ms"]) == ("pending", 3, 500, 250)
    assert "secret" not in str(line)
    assert "body" not in str(line)
