"""One attempt at a due post: signed, posted, and its answer turned into a result: done, retried and when, or failed."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from appliance.keys.keyfile import UnsealError
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, PostResult, PostStatus, Webhook, excerpt
from appliance.outside import Outside
from appliance.system.shortage import Shortage
from appliance.telemetry.log import get_logger
from appliance.webhook.post import Posted

CONTENT_TYPE_HEADER = ("Content-Type", "application/json")
USER_AGENT_HEADER = ("User-Agent", "Service-Webhook/1.0")

BROKEN_SEAL = "the signing secret cannot be read: rotate it, or have the operator restore the key file"
OWN_FAULT = "the attempt failed on our side; the operator's log has the details"

log = get_logger("webhook")


class Posts(Protocol):
    """What posts: `post.Poster`, or receivers in the memory of a test."""

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once; every failure but `Shortage` is in the result."""
        ...


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes attempts at due posts."""

    poster: Posts
    secrets: WebhookSecrets
    outside: Outside
    retry_delays: Sequence[float]  # seconds before each further attempt

    async def make(self, webhook: Webhook, post: DuePost) -> PostResult:
        """Attempt a post once; raises `Shortage`, which is not an attempt. Any other exception is a failed one."""
        began_at = self.outside.now()
        try:
            posted = await self._post(webhook, post, began_at)
        except Shortage:
            raise
        except Exception as error:
            log.exception("a post failed", error, delivery_id=post.id, webhook_id=webhook.id)
            posted = Posted(None, b"", OWN_FAULT, 0)
        return self._result(webhook, post, posted, began_at)

    async def _post(self, webhook: Webhook, post: DuePost, now: int) -> Posted:
        try:
            secret = self.secrets.open(webhook)
        except UnsealError as broken:
            log.warning("a signing secret cannot be read", webhook_id=webhook.id, reason=str(broken))
            return Posted(None, b"", BROKEN_SEAL, 0)
        signature = signature_header(secret, now // 1_000_000, post.body)
        headers = (CONTENT_TYPE_HEADER, USER_AGENT_HEADER, ("Service-Signature", signature))
        return await self.poster.post(webhook.url, headers, post.body)

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
    digest = hmac.digest(secret, b"%d.%b" % (seconds, body), sha256).hex()
    return f"t={seconds},v1={digest}"
