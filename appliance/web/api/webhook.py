"""The account's webhook: settings, secret, test event, deliveries and replays: /v1/webhook."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import request

from appliance.concurrency.fair_share import ON_LOOP
from appliance.config.settings import Config
from appliance.config.values import KIB
from appliance.errors import Code, invalid
from appliance.intake.limits import RequestRate
from appliance.model.accounts import User
from appliance.model.webhooks import (
    PING_TYPE,
    RESULT_EVENTS,
    WEBHOOK_URL_LENGTH,
    EventType,
    PostOutcome,
    PostStatus,
    Trigger,
    Webhook,
    WebhookDelivery,
    WebhookFormat,
    WebhookHour,
    WebhookOptions,
    excerpt,
)
from appliance.times import HOUR
from appliance.web.app import ApiServices, Routes, choice, page_limit, whole_number
from appliance.web.exchange import (
    ApiAnswer,
    CreatedAt,
    DeletedAnswer,
    NextPage,
    RequestId,
    Time,
    object_from,
    request_id,
    time_or_none,
)
from appliance.web.operations import (
    BEFORE_PARAMETER,
    Tag,
    choice_parameter,
    for_customers,
    limit_parameter,
    number_parameter,
    parameter,
)
from appliance.webhook.signatures import public_key

DELIVERIES_ON_PAGE = 20  # default
DEFAULT_HOURS, MAX_HOURS = 24, 168  # of the statistics; retention.webhook_logs is 7 days by default
DELIVERY_COST = 60  # microseconds to read and encode a delivery with the longest bodies
# A replay is stored for seven days and is free. These limits bound replays to about 300 MB per account.
REPLAY_BYTES = 2 * KIB  # of a body, that count as one
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


class DeliveryAnswer(ApiAnswer):
    """The delivery of a ping or a replay."""

    delivery: Annotated[DeliveryObject, Meta(description="The new delivery.")]


class DeliveriesAnswer(ApiAnswer):
    """A page of deliveries, newest first. Pass `next` as `before` to get the next page."""

    deliveries: Annotated[list[DeliveryObject], Meta(description="Deliveries, newest first.")]
    next: NextPage


_POSTED_TYPES = (*EventType, PING_TYPE)
_DELIVERY_ID = parameter("id", "path", "Delivery id.", {"type": "string"})
_NEW_DELIVERY = (202, DeliveryAnswer, "The new delivery.")
_HISTORY = (
    choice_parameter("status", "Filter by status.", PostStatus),
    choice_parameter("type", "Filter by event type.", _POSTED_TYPES),
    parameter("message_id", "query", "Filter by message.", {"type": "string"}),
    limit_parameter(DELIVERIES_ON_PAGE),
    BEFORE_PARAMETER,
)

_HOURS = number_parameter("hours", "Number of hours, up to now.", DEFAULT_HOURS, MAX_HOURS)
_URL = Meta(min_length=1, max_length=WEBHOOK_URL_LENGTH, examples=["https://hooks.example.net/mail"])
_EVENTS = Meta(min_length=1, max_length=len(EventType), description="Default: delivered, bounced and failed.")

_FORMAT = Meta(description="Shape of the posted events: ours, or that of another provider.")
_PUBLIC_KEY = Meta(
    description="Public key that verifies the signatures of the format `sendgrid`; only with that format."
)
_REPLACED = Meta(
    description="`updated_at` that you have seen, empty for a new webhook: 409 if it was changed meanwhile."
)


class WebhookRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The webhook's settings. It is enabled by default."""

    url: Annotated[str, Meta(description="Public `https` URL."), _URL]
    events: Annotated[list[EventType], _EVENTS] | UnsetType = UNSET
    enabled: Annotated[bool, Meta(description="Whether events are posted.")] = True
    format: Annotated[WebhookFormat, _FORMAT] = WebhookFormat.NATIVE
    replaces: Annotated[str, _REPLACED] | UnsetType = UNSET


class WebhookObject(msgspec.Struct):
    """The account's webhook."""

    url: Annotated[str, Meta(description="URL that receives the events.")]
    events: Annotated[tuple[EventType, ...], Meta(description="Event types to post.")]
    enabled: Annotated[bool, Meta(description="Whether events are posted.")]
    format: Annotated[WebhookFormat, _FORMAT]
    secret_hint: Annotated[str, Meta(description="Last four characters of the secret.")]
    created_at: CreatedAt
    updated_at: Annotated[Time, Meta(description="Time of the last change.")]
    last_success_at: Annotated[Time | None, Meta(description="Last successful attempt, or null.")]
    last_failure_at: Annotated[Time | None, Meta(description="Last failed attempt, or null.")]
    public_key: Annotated[str | UnsetType, _PUBLIC_KEY] = UNSET


class WebhookAnswer(ApiAnswer):
    """The account's webhook."""

    webhook: Annotated[WebhookObject | None, Meta(description="The webhook, or null.")]


class SavedWebhookAnswer(msgspec.Struct):
    """The saved webhook. The secret is included only when it is new."""

    webhook: Annotated[WebhookObject, Meta(description="The webhook.")]
    request_id: RequestId
    secret: Annotated[str | UnsetType, Meta(description="Signing secret of a new webhook.")] = UNSET


class SecretAnswer(ApiAnswer):
    """The new secret."""

    secret: Annotated[str, Meta(description="Signing secret.")]


class TestEventRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The test event to post."""

    type: Annotated[EventType, Meta(description="Event type of the example.")]


class _Attempts(msgspec.Struct):
    success: Annotated[int, Meta(ge=0, description="Attempts with a 2xx response.")]
    redirect: Annotated[int, Meta(ge=0, description="Attempts with a 3xx response, which counts as an error.")]
    client_error: Annotated[int, Meta(ge=0, description="Attempts with a 4xx response.")]
    server_error: Annotated[int, Meta(ge=0, description="Attempts with a 5xx response.")]
    no_response: Annotated[int, Meta(ge=0, description="Attempts without a complete response.")]
    mean_ms: Annotated[int | None, Meta(description="Mean duration in milliseconds; null without attempts.")]
    slowest_ms: Annotated[int | None, Meta(description="Longest duration in milliseconds; null without attempts.")]


class WebhookHourObject(_Attempts):
    """Attempts of one hour (UTC)."""

    start: Annotated[Time, Meta(description="Start of the hour.")]


class WebhookTotalsObject(_Attempts):
    """Attempts of the whole period."""

    attempts: Annotated[int, Meta(ge=0, description="Number of attempts.")]
    success_rate: Annotated[float | None, Meta(description="Share of attempts with a 2xx; null without attempts.")]


class WebhookStatisticsAnswer(ApiAnswer):
    """Attempts of the last hours, also those that were retried later."""

    totals: Annotated[WebhookTotalsObject, Meta(description="Sums of the period.")]
    hours: Annotated[list[WebhookHourObject], Meta(description="One entry per hour, oldest first.")]


class WebhookRoutes(Routes):
    tag = Tag.WEBHOOK

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.replays = RequestRate(REPLAYS_PER_SECOND, services.env, REPLAYS_AT_ONCE, TOO_MANY_REPLAYS)

    @for_customers("GET /v1/webhook", WebhookAnswer)
    async def get_webhook(self, user: User) -> WebhookAnswer:
        """Read the account's webhook."""
        webhook = await self.store.webhooks.of(user.account_id)
        return WebhookAnswer(None if webhook is None else self._shown(webhook))

    @for_customers("PUT /v1/webhook", SavedWebhookAnswer, Code.CONFLICT, action="webhook.saved")
    async def save_webhook(self, user: User, body: WebhookRequest) -> SavedWebhookAnswer:
        """Create or change the webhook.

        An account has one webhook. The signing secret is only in the response that creates it.
        """
        chosen = set(RESULT_EVENTS if body.events is UNSET else body.events)
        events = tuple(event for event in EventType if event in chosen)
        options = WebhookOptions(body.url, events, body.enabled, body.format)
        if (fault := await self.services.check_webhook_url(body.url)) is not None:
            raise invalid("url", fault)
        new_id = self.services.env.identifier("whk")
        secret, sealed = self.services.webhook_secrets.fresh(new_id)
        replaces = None if body.replaces is UNSET else body.replaces
        webhook, made = await self.store.webhooks.save(user.account_id, options, new_id, sealed, replaces)
        return SavedWebhookAnswer(self._shown(webhook), request_id(), secret if made else UNSET)

    def _shown(self, webhook: Webhook) -> WebhookObject:
        key = public_key(self.services.webhook_secrets, webhook)
        return object_from(WebhookObject, webhook, public_key=key or UNSET)

    @for_customers("DELETE /v1/webhook", DeletedAnswer, Code.NOT_FOUND, action="webhook.deleted")
    async def delete_webhook(self, user: User) -> DeletedAnswer:
        """Delete the webhook, its pending events and its history."""
        await self.store.webhooks.delete(user.account_id)
        return DeletedAnswer(True)

    @for_customers("POST /v1/webhook/rotate-secret", SecretAnswer, Code.NOT_FOUND, action="webhook.secret_rotated")
    async def rotate_webhook_secret(self, user: User) -> SecretAnswer:
        """Replace the signing secret. The new one signs from now on."""
        webhook = await self.store.webhooks.existing(user.account_id)
        secret, sealed = self.services.webhook_secrets.fresh(webhook.id)
        await self.store.webhooks.replace_secret(webhook, sealed)
        return SecretAnswer(secret)

    @for_customers("POST /v1/webhook/ping", _NEW_DELIVERY, Code.NOT_FOUND, Code.CONFLICT)
    async def ping_webhook(self, user: User) -> DeliveryAnswer:
        """Post a test event. Limited to one every 15 seconds."""
        delivery = await self.store.webhook_history.ping(user.account_id)
        return DeliveryAnswer(_delivery(delivery, self.services.config))

    @for_customers("POST /v1/webhook/test", _NEW_DELIVERY, Code.NOT_FOUND, Code.CONFLICT)
    async def send_test_event(self, user: User, body: TestEventRequest) -> DeliveryAnswer:
        """Post an example of an event, marked with `test`. Limited to one every 15 seconds, together with pings.

        The webhook need not subscribe to this type.
        """
        delivery = await self.store.webhook_history.ping(user.account_id, body.type)
        return DeliveryAnswer(_delivery(delivery, self.services.config))

    @for_customers("GET /v1/webhook/statistics", WebhookStatisticsAnswer, _HOURS)
    async def get_webhook_statistics(self, user: User) -> WebhookStatisticsAnswer:
        """Count the webhook's attempts by hour, with their outcomes and durations."""
        hours = whole_number("hours", DEFAULT_HOURS, MAX_HOURS)
        first = self.services.env.now() // HOUR - hours + 1
        counts = await self.store.webhook_history.hours(user.account_id, first)
        by_hour: dict[int, list[WebhookHour]] = {first + number: [] for number in range(hours)}
        for count in counts:
            by_hour.setdefault(count.hour, []).append(count)
        shown = [
            WebhookHourObject(**_attempts(counts), start=time_or_none(hour * HOUR) or "")
            for hour, counts in by_hour.items()
        ]
        attempts = sum(count.attempts for count in counts)
        successes = sum(count.attempts for count in counts if count.outcome is PostOutcome.SUCCESS)
        rate = successes / attempts if attempts else None
        totals = WebhookTotalsObject(**_attempts(counts), attempts=attempts, success_rate=rate)
        return WebhookStatisticsAnswer(totals, shown)

    @for_customers("GET /v1/webhook/deliveries", DeliveriesAnswer, *_HISTORY)
    async def list_webhook_deliveries(self, user: User) -> bytes:
        """List the webhook deliveries of the last 7 days, newest first.

        With `status` or `type`, a page may be incomplete while the search continues; `next` is null only at the end.
        `message_id` cannot be combined with them.
        """
        limit, history = page_limit(DELIVERIES_ON_PAGE), self.store.webhook_history
        status, kind = choice("status", PostStatus), request.args.get("type")
        if kind is not None and kind not in _POSTED_TYPES:
            raise invalid("type", f"must be one of {', '.join(_POSTED_TYPES)}")
        before, message_id = request.args.get("before"), request.args.get("message_id")
        if (status or kind) and message_id is None:
            deliveries, following = await history.search(user.account_id, status, kind, before, limit)
        else:
            query = user.account_id, message_id, before, limit + 1
            deliveries = await history.page(*query, off_loop=DELIVERY_COST * limit > ON_LOOP)
            following = deliveries[limit - 1].id if len(deliveries) > limit else None
        shown = deliveries[:limit], following, self.services.config, request_id()
        cost = DELIVERY_COST * len(deliveries)
        return await self.services.intake.workers.run(user.account_id, cost, _encoded, *shown)

    @for_customers("POST /v1/webhook/deliveries/{id}/replay", _NEW_DELIVERY, Code.CONFLICT, _DELIVERY_ID)
    async def replay_webhook_delivery(self, user: User, delivery_id: str) -> DeliveryAnswer:
        """Post the same body again."""
        size = await self.store.webhook_history.size(user.account_id, delivery_id)
        self.replays.take(user.account_id, 1 + size // REPLAY_BYTES)
        delivery = await self.store.webhook_history.replay(user.account_id, delivery_id)
        return DeliveryAnswer(_delivery(delivery, self.services.config))


def _attempts(counts: Iterable[WebhookHour]) -> dict[str, Any]:
    counts = list(counts)
    attempts = sum(count.attempts for count in counts)
    mean = round(sum(count.total_ms for count in counts) / attempts) if attempts else None
    slowest = max((count.slowest_ms for count in counts), default=None)
    numbers = {
        outcome.value: sum(count.attempts for count in counts if count.outcome is outcome) for outcome in PostOutcome
    }
    return {**numbers, "mean_ms": mean, "slowest_ms": slowest}


def _encoded(deliveries: list[WebhookDelivery], following: str | None, config: Config, request_id: str) -> bytes:
    shown = [_delivery(delivery, config) for delivery in deliveries]
    return msgspec.json.encode(DeliveriesAnswer(shown, following, request_id=request_id))


def _delivery(post: WebhookDelivery, config: Config) -> DeliveryObject:
    most = max(len(config.webhooks.retry_delays) + 1, post.attempt)  # the schedule may be shorter now
    return object_from(DeliveryObject, post, max_attempts=most, request_body=excerpt(post.request_body))
