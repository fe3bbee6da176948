"""Counts recorded attempts, and writes a line of each into the message log."""

from appliance.model.webhooks import PostResult, PostStatus
from appliance.telemetry.message_log import MESSAGE_LOG
from appliance.telemetry.metrics import WEBHOOK_POSTS, WEBHOOK_SECONDS


def observe(result: PostResult) -> None:
    """Count one attempt, which is on disk; one that will be retried counts as failed."""
    WEBHOOK_POSTS.add((PostStatus.SUCCESS if result.status is PostStatus.SUCCESS else PostStatus.FAILED).value)
    WEBHOOK_SECONDS.add(result.duration_ms / 1000)
    post = result.post
    if not MESSAGE_LOG.keep or post.message_id is None:  # a ping is about no message
        return
    MESSAGE_LOG.note(
        "webhook",
        message_id=post.message_id,
        recipient_id=post.recipient_id,
        event_id=post.event_id,
        delivery_id=post.id,
        trigger=post.lane.trigger.value,
        status=result.status.value,
        attempt=post.attempt + 1,
        response_status=result.response_status,
        error=result.error,
        ms=result.duration_ms,
    )
