"""Webhook deliveries and replays: /v1/webhook/deliveries."""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.concurrency.fair_share import ON_LOOP
from appliance.config.settings import Config
from appliance.errors import Code, invalid
from appliance.intake.limits import RequestRate
from appliance.model.accounts import User
from appliance.model.webhooks import PING_TYPE, EventType, PostStatus, Trigger, WebhookDelivery, excerpt
from appliance.times import rfc3339
from appliance.web.answer import CreatedAt, NextPage, RequestId, Time, time_or_none
from appliance.web.app import ApiServices, Routes, choice, page_limit, request_id
from appliance.web.operations import BEFORE_PARAMETER, Tag, for_customers, limit_parameter, parameter

DELIVERIES_ON_PAGE = 20  # default
DELIVERY_COST = 60  # microseconds to read and encode a delivery with the longest bodies
# A replay is stored for seven days and is free. These limits bound replays to about 300 MB per account.
REPLAYS_AT_ONCE = 10_000  # the events of a long outage of the receiver
REPLAYS_PER_SECOND = 0.2
TOO_MANY_REPLAYS = "This account has replayed 10,000 deliveries. Replay one every 5 seconds from now on."


class DeliveryObject(msgspec.Struct):
    """One event, and its last attempt."""

    id: Annotated[str, Meta(description="Delivery id, `whd_…`.")]
    event_id: Annotated[str, Meta(description="Id of the event. Retries and replays keep it.")]
    type: Annotated[str, Meta(description="Event type.")]
    message_id: Annotated[str | None, Meta(description="Message id; null if no message is involved.")]
    recipient_id: Annotated[str | None, Meta(description="Recipient id; null if no recipient is involved.")]
    url: Annotated[str, Meta(description="URL of the last or next attempt.")]
    trigger: Annotated[Trigger, Meta(description="Cause of the delivery: `event`, `ping` or `replay`.")]
    status: Annotated[PostStatus, Meta(description="`pending`, `success` (2xx) or `failed` (attempts used up).")]
    attempt: Annotated[int, Meta(ge=0, description="Number of attempts so far.")]
    max_attempts: Annotated[int, Meta(ge=1, description="Maximum number of attempts.")]
    request_body: Annotated[str, Meta(description="First 2 KiB of the posted body.")]
    response_status: Annotated[int | None, Meta(description="HTTP status of the last response, or null.")]
    response_body: Annotated[str | None, Meta(description="First 2 KiB of the last response, or null.")]
    error: Annotated[str | None, Meta(description="Why no complete response arrived; null otherwise.")]
    duration_ms: Annotated[int | None, Meta(description="Duration of the last attempt in milliseconds.")]
    created_at: CreatedAt
    attempted_at: Annotated[Time | None, Meta(description="Time of the last attempt; null before the first.")]
    next_attempt_at: Annotated[Time | None, Meta(description="Time of the next attempt, or null.")]


class DeliveryAnswer(msgspec.Struct):
    """The delivery of a ping or a replay."""

    delivery: Annotated[DeliveryObject, Meta(description="The new delivery.")]
    request_id: RequestId


class DeliveriesAnswer(msgspec.Struct):
    """A page of deliveries, newest first. Pass `next` as `before` to get the next page."""

    deliveries: Annotated[list[DeliveryObject], Meta(description="Deliveries, newest first.")]
    next: NextPage
    request_id: RequestId


_POSTED_TYPES = (*EventType, PING_TYPE)
_HISTORY = (
    parameter("status", "query", "Filter by status.", {"type": "string", "enum": list(PostStatus)}),
    parameter("type", "query", "Filter by event type.", {"type": "string", "enum": list(_POSTED_TYPES)}),
    parameter("message_id", "query", "Filter by message.", {"type": "string"}),
    limit_parameter(DELIVERIES_ON_PAGE),
    BEFORE_PARAMETER,
)


class WebhookDeliveryRoutes(Routes):
    tag = Tag.WEBHOOK

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.replays = RequestRate(REPLAYS_PER_SECOND, services.env, REPLAYS_AT_ONCE, TOO_MANY_REPLAYS)

    @for_customers("GET /v1/webhook/deliveries", DeliveriesAnswer, parameters=_HISTORY)
    async def list_webhook_deliveries(self, user: User) -> bytes:
        """List the webhook deliveries of the last 7 days, newest first.

        With `status` or `type`, a page may be incomplete while the search continues; `next` is null only at the end.
        `message_id` cannot be combined with them.
        """
        limit, history = page_limit(DELIVERIES_ON_PAGE), self.store.webhook_history
        status, kind = choice("status", PostStatus), request.args.get("type")
        if kind is not None and kind not in _POSTED_TYPES:
            raise invalid("type", f"must be one of {', '.join(_POSTED_TYPES)}")
        if (status or kind) and "message_id" not in request.args:
            before, config = request.args.get("before"), self.services.config
            posts, following = await history.search(user.account_id, status, kind, before, limit)
            shown = posts, following, config, request_id()
            return await self.services.intake.workers.run(
                user.account_id, DELIVERY_COST * len(posts), _encoded_page, *shown
            )
        query = user.account_id, request.args.get("message_id"), request.args.get("before"), limit + 1
        deliveries = await history.page(*query, off_loop=DELIVERY_COST * limit > ON_LOOP)
        cost, config = DELIVERY_COST * len(deliveries), self.services.config
        return await self.services.intake.workers.run(
            user.account_id, cost, _encoded, deliveries, limit, config, request_id()
        )

    @for_customers(
        "POST /v1/webhook/deliveries/{id}/replay",
        (202, DeliveryAnswer, "The new delivery."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        Code.RATE_LIMITED,
        parameters=(parameter("id", "path", "Delivery id.", {"type": "string"}),),
    )
    async def replay_webhook_delivery(self, user: User, delivery_id: str) -> DeliveryAnswer:
        """Post the same body again."""
        self.replays.take(user.account_id)
        delivery = await self.store.webhook_history.replay(user.account_id, delivery_id)
        return delivery_answer(delivery, self.services.config)


def delivery_answer(delivery: WebhookDelivery, config: Config) -> DeliveryAnswer:
    return DeliveryAnswer(_delivery(delivery, config), request_id())


def _encoded(deliveries: list[WebhookDelivery], limit: int, config: Config, request_id: str) -> bytes:
    following = deliveries[limit - 1].id if len(deliveries) > limit else None
    return _encoded_page(deliveries[:limit], following, config, request_id)


def _encoded_page(deliveries: list[WebhookDelivery], following: str | None, config: Config, request_id: str) -> bytes:
    shown = [_delivery(delivery, config) for delivery in deliveries]
    return msgspec.json.encode(DeliveriesAnswer(shown, following, request_id))


def _delivery(post: WebhookDelivery, config: Config) -> DeliveryObject:
    most = max(len(config.webhooks.retry_delays) + 1, post.attempt)  # the schedule may be shorter now
    event = post.id, post.event_id, post.type, post.message_id, post.recipient_id
    sent = post.url, post.trigger, post.status, post.attempt, most, excerpt(post.request_body)
    got = post.response_status, post.response_body, post.error, post.duration_ms
    times = rfc3339(post.created_at), time_or_none(post.attempted_at), time_or_none(post.next_attempt_at)
    shown = (*event, *sent, *got, *times)
    return DeliveryObject(*shown)
