"""The account's webhook: settings, secret and test event: /v1/webhook."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from appliance.errors import Code, invalid
from appliance.model.accounts import User
from appliance.model.webhooks import RESULT_EVENTS, WEBHOOK_URL_LENGTH, EventType, WebhookOptions
from appliance.web.answer import CreatedAt, DeletedAnswer, RequestId, Time, object_from
from appliance.web.api.webhook_deliveries import DeliveryAnswer, delivery_answer
from appliance.web.app import Routes, request_id
from appliance.web.operations import Tag, for_customers


class WebhookRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The webhook's settings. It is enabled by default."""

    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=WEBHOOK_URL_LENGTH,
            examples=["https://hooks.example.net/mail"],
            description="Public `https` URL.",
        ),
    ]
    events: (
        Annotated[
            list[EventType],
            Meta(min_length=1, max_length=len(EventType), description="Default: delivered, bounced and failed."),
        ]
        | UnsetType
    ) = UNSET
    enabled: Annotated[bool, Meta(description="Whether events are posted.")] = True


class WebhookObject(msgspec.Struct):
    """The account's webhook."""

    url: Annotated[str, Meta(description="URL that receives the events.")]
    events: Annotated[tuple[EventType, ...], Meta(description="Event types to post.")]
    enabled: Annotated[bool, Meta(description="Whether events are posted.")]
    secret_hint: Annotated[str, Meta(description="Last four characters of the secret.")]
    created_at: CreatedAt
    updated_at: Annotated[Time, Meta(description="Time of the last change.")]
    last_success_at: Annotated[Time | None, Meta(description="Last successful attempt, or null.")]
    last_failure_at: Annotated[Time | None, Meta(description="Last failed attempt, or null.")]


class WebhookAnswer(msgspec.Struct):
    """The account's webhook."""

    webhook: Annotated[WebhookObject | None, Meta(description="The webhook, or null.")]
    request_id: RequestId


class SavedWebhookAnswer(msgspec.Struct):
    """The saved webhook. The secret is included only when it is new."""

    webhook: Annotated[WebhookObject, Meta(description="The webhook.")]
    request_id: RequestId
    secret: Annotated[str | UnsetType, Meta(description="Signing secret of a new webhook.")] = UNSET


class SecretAnswer(msgspec.Struct):
    """The new secret."""

    secret: Annotated[str, Meta(description="Signing secret.")]
    request_id: RequestId


class WebhookRoutes(Routes):
    tag = Tag.WEBHOOK

    @for_customers("GET /v1/webhook", WebhookAnswer)
    async def get_webhook(self, user: User) -> WebhookAnswer:
        """Read the account's webhook."""
        webhook = await self.store.webhooks.of(user.account_id)
        return WebhookAnswer(None if webhook is None else object_from(WebhookObject, webhook), request_id())

    @for_customers("PUT /v1/webhook", SavedWebhookAnswer, body=WebhookRequest, action="webhook.saved")
    async def save_webhook(self, user: User, body: WebhookRequest) -> SavedWebhookAnswer:
        """Create or change the webhook.

        An account has one webhook. The signing secret is only in the response that creates it.
        """
        chosen = set(RESULT_EVENTS if body.events is UNSET else body.events)
        options = WebhookOptions(body.url, tuple(event for event in EventType if event in chosen), body.enabled)
        if (fault := await self.services.check_webhook_url(body.url)) is not None:
            raise invalid("url", fault)
        new_id = self.services.env.identifier("whk")
        secret, sealed = self.services.webhook_secrets.fresh(new_id)
        webhook, made = await self.store.webhooks.save(user.account_id, options, new_id, sealed)
        return SavedWebhookAnswer(object_from(WebhookObject, webhook), request_id(), secret if made else UNSET)

    @for_customers("DELETE /v1/webhook", DeletedAnswer, Code.NOT_FOUND, action="webhook.deleted")
    async def delete_webhook(self, user: User) -> DeletedAnswer:
        """Delete the webhook, its pending events and its history."""
        await self.store.webhooks.delete(user.account_id)
        return DeletedAnswer(True, request_id())

    @for_customers("POST /v1/webhook/rotate-secret", SecretAnswer, Code.NOT_FOUND, action="webhook.secret_rotated")
    async def rotate_webhook_secret(self, user: User) -> SecretAnswer:
        """Replace the signing secret. The new one signs from now on."""
        webhook = await self.store.webhooks.existing(user.account_id)
        secret, sealed = self.services.webhook_secrets.fresh(webhook.id)
        await self.store.webhooks.replace_secret(webhook, sealed)
        return SecretAnswer(secret, request_id())

    @for_customers(
        "POST /v1/webhook/ping",
        (202, DeliveryAnswer, "The new delivery."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        Code.RATE_LIMITED,
    )
    async def ping_webhook(self, user: User) -> DeliveryAnswer:
        """Post a test event. Limited to one every 15 seconds."""
        delivery = await self.store.webhook_history.ping(user.account_id)
        return delivery_answer(delivery, self.services.config)
