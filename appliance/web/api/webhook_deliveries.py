"""The history of webhook deliveries, and their replay: /v1/webhook/deliveries."""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.concurrency.workers import ON_LOOP
from appliance.config.settings import Config
from appliance.errors import Code, invalid
from appliance.intake.limits import RequestRate
from appliance.model.accounts import User
from appliance.model.webhooks import PING_TYPE, EventType, PostStatus, Trigger, WebhookDelivery, excerpt
from appliance.times import rfc3339
from appliance.web.answer import Time, time_or_none
from appliance.web.app import ApiServices, Routes, choice, page_limit, request_id
from appliance.web.operations import BEFORE_PARAMETER, for_customers, limit_parameter, parameter

DELIVERIES_ON_PAGE = 20  # by default
DELIVERY_COST = 60  # microseconds to read and to show a delivery with the longest bodies that are shown
# A replay is stored for seven days and costs no credit: these bound them to some 300 MB an account.
REPLAYS_AT_ONCE = 10_000  # the results of a long outage of the receiver
REPLAYS_PER_SECOND = 0.2
TOO_MANY_REPLAYS = "This account has replayed 10,000 deliveries; now one may be replayed every 5 s. Retry later."


class DeliveryObject(msgspec.Struct):
    """One post of one event, as it stands after its last attempt."""

    id: str
    event_id: str
    type: str
    message_id: str | None
    recipient_id: str | None
    url: str
    trigger: Trigger
    status: PostStatus
    attempt: Annotated[int, Meta(ge=0)]
    max_attempts: Annotated[int, Meta(ge=1)]
    request_body: str
    response_status: int | None
    response_body: str | None
    error: str | None
    duration_ms: int | None
    created_at: Time
    attempted_at: Time | None
    next_attempt_at: Time | None


class DeliveryAnswer(msgspec.Struct):
    """The delivery that a ping or a replay has begun."""

    delivery: DeliveryObject
    request_id: str


class DeliveriesAnswer(msgspec.Struct):
    """A page of the history, the newest first; `next` goes into `before` for the page that follows."""

    deliveries: list[DeliveryObject]
    next: str | None
    request_id: str


_POSTED_TYPES = (*EventType, PING_TYPE)
_HISTORY = (
    parameter("status", "query", "Only of this status.", {"type": "string", "enum": list(PostStatus)}),
    parameter("type", "query", "Only of events of this type.", {"type": "string", "enum": list(_POSTED_TYPES)}),
    parameter("message_id", "query", "Only deliveries about this message.", {"type": "string"}),
    limit_parameter(DELIVERIES_ON_PAGE),
    BEFORE_PARAMETER,
)


class WebhookDeliveryRoutes(Routes):
    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.replays = RequestRate(REPLAYS_PER_SECOND, services.env, REPLAYS_AT_ONCE, TOO_MANY_REPLAYS)

    @for_customers("GET /v1/webhook/deliveries", (200, DeliveriesAnswer, "A page of deliveries."), parameters=_HISTORY)
    async def list_webhook_deliveries(self, user: User) -> bytes:
        """List what was posted in the last 7 days, the newest first.

        With `status` or `type` a page may hold fewer deliveries than asked for while the search is not over; `next` is
        null only at its end. They are not combined with `message_id`.
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
        wanted = user.account_id, request.args.get("message_id"), request.args.get("before"), limit + 1
        off_loop = DELIVERY_COST * limit > ON_LOOP
        found = await (history.page_off_loop(*wanted) if off_loop else history.page(*wanted))
        cost, config = DELIVERY_COST * len(found), self.services.config
        return await self.services.intake.workers.run(
            user.account_id, cost, _encoded, found, limit, config, request_id()
        )

    @for_customers(
        "POST /v1/webhook/deliveries/{id}/replay",
        (202, DeliveryAnswer, "The new delivery, on its way."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        Code.RATE_LIMITED,
        parameters=(parameter("id", "path", "The `id` of the delivery.", {"type": "string"}),),
    )
    async def replay_webhook_delivery(self, user: User, delivery_id: str) -> DeliveryAnswer:
        """Post the same body once more."""
        self.replays.take(user.account_id)
        delivery = await self.store.webhook_history.replay(user.account_id, delivery_id)
        return delivery_answer(delivery, self.services.config)


def delivery_answer(delivery: WebhookDelivery, config: Config) -> DeliveryAnswer:
    return DeliveryAnswer(_delivery(delivery, config), request_id())


def _encoded(found: list[WebhookDelivery], limit: int, config: Config, request_id: str) -> bytes:
    following = found[limit - 1].id if len(found) > limit else None
    return _encoded_page(found[:limit], following, config, request_id)


def _encoded_page(found: list[WebhookDelivery], following: str | None, config: Config, request_id: str) -> bytes:
    shown = [_delivery(each, config) for each in found]
    return msgspec.json.encode(DeliveriesAnswer(shown, following, request_id))


def _delivery(post: WebhookDelivery, config: Config) -> DeliveryObject:
    most = max(len(config.webhooks.retry_delays) + 1, post.attempt)  # the schedule may have been shortened since
    event = post.id, post.event_id, post.type, post.message_id, post.recipient_id
    sent = post.url, post.trigger, post.status, post.attempt, most, excerpt(post.request_body)
    got = post.response_status, post.response_body, post.error, post.duration_ms
    times = rfc3339(post.created_at), time_or_none(post.attempted_at), time_or_none(post.next_attempt_at)
    shown = (*event, *sent, *got, *times)
    return DeliveryObject(*shown)
