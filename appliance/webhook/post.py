"""Attempts a due post: signs it, posts it over HTTPS within five seconds, and returns whether it is done or retried.

Each attempt checks the URL and all addresses of its name again. SNI and Host carry the name. Redirects are not
followed. A reusable connection is kept for the next event.
"""

import hmac
import ssl
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import trio

from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, PostResult, PostStatus, Webhook, excerpt
from appliance.net.address_policy import Address, Network
from appliance.net.dial import Dial, Shortage, dial_first
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import WEBHOOK_POSTS, WEBHOOK_SECONDS
from appliance.webhook.connect import (
    IDLE_SECONDS,
    AddressLookup,
    IdleConnections,
    NoAddress,
    NotPosted,
    ReceiverConnection,
    Target,
    UrlRefused,
    read_url,
    start_tls,
    unencrypted,
)
from appliance.webhook.http import ConnectionLost, Posted, Step, exchange, request_bytes

# ---- posts

POST_TIMEOUT = 5.0  # seconds for all of an attempt, by the interface
ADDRESSES_TRIED = 2
FIRST_ADDRESS = 2.0  # seconds until the second is tried: an unreachable IPv6 address usually times out
URLS_CACHED = 1_000


class Poster:
    """Posts events. The process has one, since it keeps the idle connections."""

    def __init__(
        self,
        resolver: Resolver,
        dial: Dial,
        context: ssl.SSLContext,
        *,
        ports: Container[int],
        own_names: Container[str] = frozenset(),
        allowed: tuple[Network, ...] = (),
        own: Container[Address] = frozenset(),
        plain_loopback: bool = False,
        timeout: float = POST_TIMEOUT,
        first_address: float = FIRST_ADDRESS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._dial = dial
        self._context = context
        self._timeout = timeout
        self._first_address = first_address
        self._lookup = AddressLookup(resolver, allowed, own)
        self.idle = IdleConnections(idle_seconds)
        # The verdict depends only on the URL's text and the settings, so it can be cached.
        self._read = lru_cache(URLS_CACHED)(
            lambda url: read_url(url, ports, own_names, allowed, plain_loopback=plain_loopback)
        )

    async def check(self, url: str) -> str | None:
        """Why this URL may not be saved; None if it may.

        A temporary DNS failure refuses nothing: every attempt looks the name up again, and customers must be able to
        save their settings during a DNS outage.
        """
        try:
            target = self._read(url)
            with trio.move_on_after(self._timeout):
                await self._lookup.addresses(target)
        except UrlRefused as refused:
            return str(refused)
        except NoAddress as missing:
            return None if missing.temporary else str(missing)
        except Shortage:
            pass
        return None

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once. A cancellation closes the connection.

        Raises `Shortage` if this machine is out of a resource, after closing the idle connections.
        """
        posted, started = Posted(), trio.current_time()
        with trio.move_on_after(self._timeout) as limit:
            try:
                target = self._read(url)
                await self._post(posted, target, request_bytes(target, headers, body))
            except (UrlRefused, NotPosted) as fault:
                posted.error = str(fault)
            except Shortage:
                await self.idle.drop_all()
                raise
        if limit.cancelled_caught:
            posted.timed_out, posted.error = True, f"{posted.awaiting} within {self._timeout:g} s"
        posted.duration_ms = round((trio.current_time() - started) * 1000)
        return posted

    async def _post(self, posted: Posted, target: Target, request: bytes) -> None:
        addresses = await self._lookup.addresses(target)
        if target.secure and (connection := await self.idle.take(target.host, target.port, addresses)):
            try:
                return await self._exchange(posted, connection, request)
            except ConnectionLost:  # closed while idle; a receiver that took the event nevertheless sees its id twice
                await self.idle.drop_all_to(connection.endpoint)
        posted.awaiting = Step.CONNECTED
        tried, port = addresses[:ADDRESSES_TRIED], target.port
        try:
            address, stream = await dial_first(self._dial, tried, port, patience=self._first_address)
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotPosted(f"the receiver did not accept a connection to port {port}: {reason}") from error
        if not target.secure:
            return await self._exchange(posted, unencrypted(target, address, stream), request)
        posted.awaiting = Step.SECURED
        connection = await start_tls(self._context, target, address, stream)
        return await self._exchange(posted, connection, request)

    async def _exchange(self, posted: Posted, connection: ReceiverConnection, request: bytes) -> None:
        keep = False
        try:
            keep = await exchange(posted, connection, request) and connection.secure
        finally:
            if not keep:
                await connection.aclose()
        if keep:
            await self.idle.give_back(connection)


# ---- attempts

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
    env: Environment
    retry_delays: Sequence[float]  # seconds before each further attempt

    async def make(self, webhook: Webhook, post: DuePost) -> PostResult:
        """Attempt a post once; raises `Shortage`, which is not an attempt. Any other exception is a failed attempt."""
        began_at = self.env.now()
        try:
            signature = signature_header(self.secrets.open(webhook), began_at // 1_000_000, post.body)
            headers = (CONTENT_TYPE_HEADER, USER_AGENT_HEADER, ("Service-Signature", signature))
            posted = await self.post(webhook.url, headers, post.body)
        except Shortage:
            raise
        except UnsealError as broken:
            log.warning("signing secret unreadable", webhook_id=webhook.id, reason=str(broken))
            posted = Posted(error=BROKEN_SEAL)
        except Exception as error:
            log.exception("webhook post failed", error, delivery_id=post.id, webhook_id=webhook.id)
            posted = Posted(error=OWN_FAULT)
        return self._result(webhook, post, posted, began_at)

    def _result(self, webhook: Webhook, post: DuePost, posted: Posted, began_at: int) -> PostResult:
        """Any 2xx is success. The delay before the next attempt starts at the end of this one."""
        status, next_attempt_at = PostStatus.FAILED, None
        if posted.accepted:
            status = PostStatus.SUCCESS
        elif post.attempt < len(self.retry_delays):
            status = PostStatus.PENDING
            next_attempt_at = self.env.now() + round(self.retry_delays[post.attempt] * 1_000_000)
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
    """The Service-Signature of a body posted at this time: an HMAC-SHA256 over `seconds.body`."""
    return f"t={seconds},v1={hmac.digest(secret, b'%d.%b' % (seconds, body), sha256).hex()}"


def observe(result: PostResult) -> None:
    """Count a recorded attempt and write it to the message log; one that is retried counts as failed."""
    WEBHOOK_POSTS.add((PostStatus.SUCCESS if result.status is PostStatus.SUCCESS else PostStatus.FAILED).value)
    WEBHOOK_SECONDS.add(result.duration_ms / 1000)
    post = result.post
    if not MESSAGE_LOG.keep or post.message_id is None:  # a ping has no message
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
