"""The history of webhook deliveries, and their replay: /v1/webhook/deliveries."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.concurrency.workers import ON_LOOP, Workers
from appliance.errors import Code
from appliance.intake.limits import RequestRate
from appliance.model.mail import User
from appliance.model.webhooks import PostStatus, Trigger, WebhookDelivery, excerpt
from appliance.outside import Outside
from appliance.times import rfc3339
from appliance.web.answer import Time, time_or_none
from appliance.web.app import ApiServices, answer, page_limit, request_id
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


_HISTORY = (
    parameter("message_id", "query", "Only deliveries about this message.", {"type": "string"}),
    limit_parameter(DELIVERIES_ON_PAGE),
    BEFORE_PARAMETER,
)


def replay_rate(outside: Outside, at_once: int = REPLAYS_AT_ONCE) -> RequestRate:
    return RequestRate(REPLAYS_PER_SECOND, outside, at_once, TOO_MANY_REPLAYS)


@dataclass(frozen=True, slots=True)
class WebhookDeliveryRoutes:
    services: ApiServices
    workers: Workers
    max_attempts: int
    replays: RequestRate

    @for_customers(
        "GET /v1/webhook/deliveries",
        "List what was posted in the last 7 days, the newest first.",
        (200, DeliveriesAnswer, "A page of deliveries."),
        parameters=_HISTORY,
    )
    async def page(self, user: User) -> Response:
        limit, message_id, before = (
            page_limit(DELIVERIES_ON_PAGE),
            request.args.get("message_id"),
            request.args.get("before"),
        )
        account_id, cost = user.account_id, DELIVERY_COST * limit
        found = (
            self.services.store.webhook_history.page(account_id, message_id, before, limit + 1)
            if cost <= ON_LOOP
            else await self.services.store.webhook_history.page_off_loop(account_id, message_id, before, limit + 1)
        )
        cost = DELIVERY_COST * len(found)
        shown = await self.workers.run(account_id, cost, _encoded, found, limit, self.max_attempts, request_id())
        return Response(shown, content_type="application/json")

    @for_customers(
        "POST /v1/webhook/deliveries/{id}/replay",
        "Post the same body once more.",
        (202, DeliveryAnswer, "The new delivery, on its way."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        Code.RATE_LIMITED,
        parameters=(parameter("id", "path", "The `id` of the delivery.", {"type": "string"}),),
    )
    async def replay(self, user: User, delivery_id: str) -> Response:
        self.replays.take(user.account_id)
        delivery = await self.services.store.webhook_history.replay(user.account_id, delivery_id)
        return answer(DeliveryAnswer(delivery_object(delivery, self.max_attempts), request_id()), 202)


def _encoded(found: list[WebhookDelivery], limit: int, max_attempts: int, request_id: str) -> bytes:
    following = found[limit - 1].id if len(found) > limit else None
    shown = [delivery_object(each, max_attempts) for each in found[:limit]]
    return msgspec.json.encode(DeliveriesAnswer(shown, following, request_id))


def delivery_object(delivery: WebhookDelivery, max_attempts: int) -> DeliveryObject:
    return DeliveryObject(
        id=delivery.id,
        event_id=delivery.event_id,
        type=delivery.type,
        message_id=delivery.message_id,
        recipient_id=delivery.recipient_id,
        url=delivery.url,
        trigger=delivery.trigger,
        status=delivery.status,
        attempt=delivery.attempt,
        max_attempts=max(max_attempts, delivery.attempt),  # the schedule may have been shortened since
        request_body=excerpt(delivery.request_body),
        response_status=delivery.response_status,
        response_body=delivery.response_body,
        error=delivery.error,
        duration_ms=delivery.duration_ms,
        created_at=rfc3339(delivery.created_at),
        attempted_at=time_or_none(delivery.attempted_at),
        next_attempt_at=time_or_none(delivery.next_attempt_at),
    )
