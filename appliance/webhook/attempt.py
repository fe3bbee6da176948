"""One attempt at a due post: signed, posted, and its answer turned into a result: done, retried and when, or failed."""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from appliance.keys.keyfile import UnsealError
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, PostResult, PostStatus, Webhook, excerpt
from appliance.net.dial import Shortage
from appliance.outside import Outside
from appliance.telemetry.log import get_logger
from appliance.telemetry.message_log import MESSAGE_LOG
from appliance.telemetry.metrics import WEBHOOK_POSTS, WEBHOOK_SECONDS
from appliance.webhook.http import Posted

CONTENT_TYPE_HEADER = ("Content-Type", "application/json")
USER_AGENT_HEADER = ("User-Agent", "Service-Webhook/1.0")

BROKEN_SEAL = "the signing secret cannot be read: rotate it, or have the operator restore the key file"
OWN_FAULT = "the attempt failed on our side; the operator's log has the details"

log = get_logger("webhook")


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes attempts at due posts; `post` is `Poster.post`."""

    post: Callable[[str, Sequence[tuple[str, str]], bytes], Awaitable[Posted]]
    secrets: WebhookSecrets
    outside: Outside
    retry_delays: Sequence[float]  # seconds before each further attempt

    async def make(self, webhook: Webhook, post: DuePost) -> PostResult:
        """Attempt a post once; raises `Shortage`, which is not an attempt. Any other exception is a failed one."""
        began_at = self.outside.now()
        try:
            signature = signature_header(self.secrets.open(webhook), began_at // 1_000_000, post.body)
            headers = (CONTENT_TYPE_HEADER, USER_AGENT_HEADER, ("Service-Signature", signature))
            posted = await self.post(webhook.url, headers, post.body)
        except Shortage:
            raise
        except UnsealError as broken:
            log.warning("a signing secret cannot be read", webhook_id=webhook.id, reason=str(broken))
            posted = Posted(error=BROKEN_SEAL)
        except Exception as error:
            log.exception("a post failed", error, delivery_id=post.id, webhook_id=webhook.id)
            posted = Posted(error=OWN_FAULT)
        return self._result(webhook, post, posted, began_at)

    def _result(self, webhook: Webhook, post: DuePost, posted: Posted, began_at: int) -> PostResult:
        """Any 2xx is success; the delay before the next attempt is counted from the end of this one."""
        status, next_attempt_at = PostStatus.FAILED, None
        if posted.accepted:
            status = PostStatus.SUCCESS
        elif post.attempt < len(self.retry_delays):
            status = PostStatus.PENDING
            next_attempt_at = self.outside.now() + round(self.retry_delays[post.attempt] * 1_000_000)
        return PostResult(
            post,
            status,
            webhook.url,
            response_status=posted.status,
            response_body=None if posted.status is None else excerpt(posted.body),
            error=posted.error,
            duration_ms=posted.duration_ms,
            attempted_at=began_at,
            next_attempt_at=next_attempt_at,
        )


def signature_header(secret: bytes, seconds: int, body: bytes) -> str:
    """The value of Service-Signature for a body posted at this time: an HMAC-SHA256 over `seconds.body`."""
    return f"t={seconds},v1={hmac.digest(secret, b'%d.%b' % (seconds, body), sha256).hex()}"


def observe(result: PostResult) -> None:
    """Count one attempt, which is on disk, and note it in the message log; one that is retried counts as failed."""
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
