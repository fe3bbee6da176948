"""Webhooks for the tests of the store."""

from appliance.model.mail import RecipientStatus
from appliance.model.webhooks import (
    DuePost,
    EventType,
    Lane,
    PostResult,
    PostStatus,
    SealedSecret,
    Trigger,
    Webhook,
    WebhookOptions,
)
from appliance.store import Store
from tests.store.samples import Clock, Messages, record

URL = "https://hooks.example.net/"
SECRET = SealedSecret(b"sealed", "abcd")


async def save(store: Store, account_id: str, *events: EventType, enabled: bool = True, url: str = URL) -> Webhook:
    settings = WebhookOptions(url, events or tuple(EventType), enabled)
    webhook, _ = await store.webhooks.save(account_id, settings, store.webhooks.env.identifier("whk"), SECRET)
    return webhook


async def results(store: Store, messages: Messages, clock: Clock, *statuses: RecipientStatus) -> None:
    await store.messages.accept(messages.new(*[f"{number}@example.net" for number in range(len(statuses))]))
    await record(store, clock, statuses)


def events(webhook: Webhook) -> Lane:
    return Lane(webhook.id, Trigger.EVENT)


def attempt(post: DuePost, clock: Clock, next_attempt_at: int | None = None, *, ok: bool = False) -> PostResult:
    status = PostStatus.PENDING if next_attempt_at else PostStatus.SUCCESS if ok else PostStatus.FAILED
    code = 200 if ok else 500
    return PostResult(post, status, f"{URL}{code}", code, "answer", None, 7, clock.now, next_attempt_at)
