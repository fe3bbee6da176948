"""The webhook of an account: its settings, its secret, and a test event: /v1/webhook."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from appliance.errors import Code, invalid
from appliance.model.accounts import User
from appliance.model.webhooks import RESULT_EVENTS, WEBHOOK_URL_LENGTH, EventType, WebhookOptions
from appliance.web.answer import DeletedAnswer, Time, object_from
from appliance.web.api.webhook_deliveries import DeliveryAnswer, delivery_answer
from appliance.web.app import Routes, request_id
from appliance.web.operations import for_customers


class WebhookRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT; without `events` those of final results, enabled unless it says otherwise."""

    url: Annotated[str, Meta(min_length=1, max_length=WEBHOOK_URL_LENGTH, examples=["https://hooks.example.net/mail"])]
    events: Annotated[list[EventType], Meta(min_length=1, max_length=len(EventType))] | UnsetType = UNSET
    enabled: bool = True


class WebhookObject(msgspec.Struct):
    """The account's webhook."""

    url: str
    events: tuple[EventType, ...]
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


class WebhookRoutes(Routes):
    @for_customers("GET /v1/webhook", (200, WebhookAnswer, "The webhook, or null."))
    async def get_webhook(self, user: User) -> WebhookAnswer:
        """Read the account's webhook."""
        webhook = await self.store.webhooks.of(user.account_id)
        return WebhookAnswer(None if webhook is None else object_from(WebhookObject, webhook), request_id())

    @for_customers(
        "PUT /v1/webhook",
        (200, SavedWebhookAnswer, "The webhook as saved, with its `secret` if it is new."),
        body=WebhookRequest,
        action="webhook.saved",
    )
    async def save_webhook(self, user: User, body: WebhookRequest) -> SavedWebhookAnswer:
        """Save where events are posted, which ones, and whether.

        An account has one webhook. The signing secret is in the answer that creates it, and in no other.
        """
        wanted = set(RESULT_EVENTS if body.events is UNSET else body.events)
        options = WebhookOptions(body.url, tuple(event for event in EventType if event in wanted), body.enabled)
        if (fault := await self.services.check_webhook_url(body.url)) is not None:
            raise invalid("url", fault)
        new_id = self.services.env.identifier("whk")
        secret, sealed = self.services.webhook_secrets.fresh(new_id)
        webhook, made = await self.store.webhooks.save(user.account_id, options, new_id, sealed)
        return SavedWebhookAnswer(object_from(WebhookObject, webhook), request_id(), secret if made else UNSET)

    @for_customers("DELETE /v1/webhook", (200, DeletedAnswer, "Deleted."), Code.NOT_FOUND, action="webhook.deleted")
    async def delete_webhook(self, user: User) -> DeletedAnswer:
        """Delete the webhook, what waits for it, and its history."""
        await self.store.webhooks.delete(user.account_id)
        return DeletedAnswer(True, request_id())

    @for_customers(
        "POST /v1/webhook/rotate-secret",
        (200, SecretAnswer, "The secret, shown only now."),
        Code.NOT_FOUND,
        action="webhook.secret_rotated",
    )
    async def rotate_webhook_secret(self, user: User) -> SecretAnswer:
        """Get a new secret, which signs from now on."""
        webhook = await self.store.webhooks.existing(user.account_id)
        secret, sealed = self.services.webhook_secrets.fresh(webhook.id)
        await self.store.webhooks.replace_secret(webhook, sealed)
        return SecretAnswer(secret, request_id())

    @for_customers(
        "POST /v1/webhook/ping",
        (202, DeliveryAnswer, "The delivery, on its way."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        Code.RATE_LIMITED,
    )
    async def ping_webhook(self, user: User) -> DeliveryAnswer:
        """Have a test event posted; at most every 15 seconds."""
        delivery = await self.store.webhook_history.ping(user.account_id)
        return delivery_answer(delivery, self.services.config)
