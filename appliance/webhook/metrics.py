"""In charge of counting what came of posts, and of leaving a line of each in the log."""

from appliance.model.webhooks import PostResult, PostStatus
from appliance.telemetry.message_log import MESSAGE_LOG
from appliance.telemetry.metrics import WEBHOOK_POSTS, WEBHOOK_SECONDS


def observe(result: PostResult) -> None:
    """Count one attempt, which is on disk; one that is made again has failed all the same."""
    WEBHOOK_POSTS.add((PostStatus.SUCCESS if result.status is PostStatus.SUCCESS else PostStatus.FAILED).value)
    WEBHOOK_SECONDS.add(result.duration_ms / 1000)
    if MESSAGE_LOG.keep and result.post.message_id is not None:  # a ping is about no message
        _note(result)


def _note(result: PostResult) -> None:
    post = result.post
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
