"""In charge of what an answer means for a post: done, to be tried again and when, or given up. PURE."""

from collections.abc import Sequence

from appliance.model.webhooks import DuePost, PostResult, PostStatus, excerpt
from appliance.webhook.post import Posted


def judge(post: DuePost, url: str, posted: Posted, began_at: int, now: int, delays: Sequence[float]) -> PostResult:
    """What one attempt came to. Any 2xx is success; the wait for the next one is counted from the end of this one."""
    status, next_attempt_at = PostStatus.FAILED, None
    if posted.accepted:
        status = PostStatus.SUCCESS
    elif post.attempt < len(delays):
        status, next_attempt_at = PostStatus.PENDING, now + round(delays[post.attempt] * 1_000_000)
    return PostResult(
        post,
        status,
        url,
        posted.status,
        None if posted.status is None else excerpt(posted.body),
        posted.error,
        posted.duration_ms,
        began_at,
        next_attempt_at,
    )
