"""Mail in a store without a client that sends it: messages as if accepted, and outcomes as if tried."""

from appliance.environment import Environment
from appliance.keys.secrets import WebhookSecrets
from appliance.model.accounts import Role
from appliance.model.mail import (
    Attempt,
    BounceClass,
    DueRecipient,
    NewMessage,
    NewRecipient,
    Outcome,
    RecipientStatus,
    Source,
)
from appliance.model.webhooks import EventType, WebhookOptions
from appliance.store import Store
from appliance.times import SECOND

MIME = b"From: shop@example.com\r\nSubject: Hello\r\n\r\nHello.\r\n"


async def account(store: Store, name: str = "acme", balance: int | None = 100) -> str:
    return (await store.accounts.create(name, f"{name}@example.org", "no hash", Role.CUSTOMER, balance)).id


async def webhook(store: Store, env: Environment, account_id: str, key: bytes) -> None:
    """A webhook of that account, its secret sealed under this key."""
    new_id = env.identifier("whk")
    _, sealed = WebhookSecrets(key, env).fresh(new_id)
    settings = WebhookOptions("https://hooks.example.net/", tuple(EventType), True)
    await store.webhooks.save(account_id, settings, new_id, sealed)


async def accept(
    store: Store,
    env: Environment,
    account_id: str,
    *addresses: str,
    simulated: bool = False,
    tags: tuple[str, ...] = (),
    template: str | None = None,
    scheduled_at: int | None = None,
) -> NewMessage:
    message_id = env.identifier("msg")
    recipients = tuple(
        NewRecipient(env.identifier("rcp"), address, address.lower(), address.rpartition("@")[2].lower())
        for address in addresses
    )
    new = NewMessage(
        id=message_id,
        account_id=account_id,
        request_id="req_1",
        source=Source.API,
        simulated=simulated,
        sender="Shop <shop@example.com>",
        envelope_from="shop@example.com",
        subject="Hello",
        tags=tags,
        template_alias=template,
        template_version=None if template is None else 1,
        mime=MIME,
        receipt=b"{}",
        recipients=recipients,
        credits=len(recipients),
        created_at=env.now(),
        idempotency=None,
        scheduled_at=scheduled_at,
    )
    await store.messages.accept(new)
    return new


async def due(store: Store, message: NewMessage) -> list[DueRecipient]:
    """The recipients of a message as delivery would be given them."""
    return [each for each in await store.queue.due(simulated=False, most=1000) if each.message_id == message.id]


async def defer(store: Store, env: Environment, message: NewMessage, seconds: int = 300) -> None:
    """Let a server defer every recipient of a message that is due."""
    now = env.now()
    tried = Attempt(
        started_at=now - 412_000,
        finished_at=now,
        smtp_code=451,
        smtp_response="451 4.7.1 greylisted",
        pool="example.net",
        mx_host="mx.example.net",
        mx_address="192.0.2.1",
        tls="TLSv1.3, TLS_AES_256_GCM_SHA384, verified by PKIX",
        decision="deferred: attempt 2 of 12",
        dialogue='[[0,"S","220 mx.example.net ESMTP"],[3,"C","EHLO mail.example.com"]]',
    )
    outcomes = [
        Outcome(
            each, RecipientStatus.DEFERRED, (tried,), now, now + seconds * SECOND, bounce_class=BounceClass.TEMPORARY
        )
        for each in await due(store, message)
    ]
    await store.queue.record(outcomes)


async def finish(store: Store, env: Environment, recipient: DueRecipient, status: RecipientStatus, code: int) -> None:
    now = env.now()
    tried = Attempt(now, now, code, f"{code} so be it", "example.net", "mx.example.net", "192.0.2.1")
    await store.queue.record([Outcome(recipient, status, (tried,), now)])
