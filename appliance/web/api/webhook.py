"""In charge of webhook settings over HTTP: /v1/webhook, its secret and its ping."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import Blueprint, Response

from appliance.errors import Code, invalid
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.model.webhooks import EventType, Webhook, WebhookSettings
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.templates import DeletedAnswer
from appliance.web.api.webhook_deliveries import DeliveryAnswer, delivery_object, optional_time
from appliance.web.app import Services, answer, json_request, request_id
from appliance.web.operations import for_customers

URL_LENGTH = 2048  # characters

CheckUrl = Callable[[str], Awaitable[str | None]]  # why a URL may not be saved, in words


class WebhookRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT; without `events` all of them, enabled unless it says otherwise."""

    url: Annotated[str, Meta(min_length=1, max_length=URL_LENGTH, examples=["https://hooks.example.net/mail"])]
    events: Annotated[list[EventType], Meta(min_length=1, max_length=len(EventType))] | UnsetType = UNSET
    enabled: bool = True


class WebhookObject(msgspec.Struct):
    """The account's webhook."""

    url: str
    events: list[EventType]
    enabled: bool
    secret_hint: str
    created_at: Time
    updated_at: Time
    last_success_at: Time | None
    last_failure_at: Time | None


class WebhookAnswer(msgspec.Struct):
    """The answer to a GET; null when the account has none."""

    webhook: WebhookObject | None
    request_id: str


class SavedWebhookAnswer(msgspec.Struct):
    """The answer to a PUT; the secret is there only when it made the webhook."""

    webhook: WebhookObject
    request_id: str
    secret: str | UnsetType = UNSET


class SecretAnswer(msgspec.Struct):
    """The answer to a rotation."""

    secret: str
    request_id: str


@dataclass(frozen=True, slots=True)
class WebhookParts:
    """What the routes of webhooks need besides what all need."""

    secrets: WebhookSecrets
    check_url: CheckUrl
    max_attempts: int


BODY = msgspec.json.Decoder(WebhookRequest)


def blueprint(services: Services, parts: WebhookParts) -> Blueprint:
    """The routes."""
    routes, store = Blueprint("webhook", __name__), services.store

    @routes.get("/v1/webhook")
    async def show() -> Response:
        user, _ = await services.user()
        webhook = store.webhooks.of(user.account_id)
        return answer(WebhookAnswer(None if webhook is None else _object(webhook), request_id()))

    @routes.put("/v1/webhook")
    async def save() -> Response:
        user, _ = await services.user()
        settings = _settings(await json_request(BODY))
        if (fault := await parts.check_url(settings.url)) is not None:
            raise invalid("url", fault)
        new_id = services.outside.identifier("whk")
        secret, sealed = parts.secrets.fresh(new_id)
        webhook, made = await store.webhooks.save(user.account_id, settings, new_id, sealed)
        return answer(SavedWebhookAnswer(_object(webhook), request_id(), secret if made else UNSET))

    @routes.delete("/v1/webhook")
    async def delete() -> Response:
        user, _ = await services.user()
        await store.webhooks.delete(user.account_id)
        return answer(DeletedAnswer(True, request_id()))

    @routes.post("/v1/webhook/rotate-secret")
    async def rotate_secret() -> Response:
        user, _ = await services.user()
        webhook = store.webhooks.existing(user.account_id)
        secret, sealed = parts.secrets.fresh(webhook.id)
        await store.webhooks.replace_secret(webhook, sealed)
        return answer(SecretAnswer(secret, request_id()))

    @routes.post("/v1/webhook/ping")
    async def ping() -> Response:
        user, _ = await services.user()
        delivery = await store.webhook_history.ping(user.account_id)
        return answer(DeliveryAnswer(delivery_object(delivery, parts.max_attempts), request_id()), 202)

    return routes


def _settings(body: WebhookRequest) -> WebhookSettings:
    wanted = set(EventType) if body.events is UNSET else set(body.events)
    return WebhookSettings(body.url, tuple(event for event in EventType if event in wanted), body.enabled)


def _object(webhook: Webhook) -> WebhookObject:
    return WebhookObject(
        url=webhook.url,
        events=list(webhook.events),
        enabled=webhook.enabled,
        secret_hint=webhook.secret_hint,
        created_at=rfc3339(webhook.created_at),
        updated_at=rfc3339(webhook.updated_at),
        last_success_at=optional_time(webhook.last_success_at),
        last_failure_at=optional_time(webhook.last_failure_at),
    )


OPERATIONS = (
    for_customers("get", "/v1/webhook", "Read the account's webhook.", (200, WebhookAnswer, "The webhook, or null.")),
    for_customers(
        "put",
        "/v1/webhook",
        "Save where events are posted, which ones, and whether.",
        (200, SavedWebhookAnswer, "The webhook as saved, with its `secret` if it is new."),
        body=WebhookRequest,
    ),
    for_customers(
        "delete",
        "/v1/webhook",
        "Delete the webhook, what waits for it, and its history.",
        (200, DeletedAnswer, "Deleted."),
        Code.NOT_FOUND,
    ),
    for_customers(
        "post",
        "/v1/webhook/rotate-secret",
        "Get a new secret, which signs from now on.",
        (200, SecretAnswer, "The secret, shown only now."),
        Code.NOT_FOUND,
    ),
    for_customers(
        "post",
        "/v1/webhook/ping",
        "Have a test event posted; at most every 15 seconds.",
        (202, DeliveryAnswer, "The delivery, on its way."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        Code.RATE_LIMITED,
    ),
)
