"""In charge of the log of posts as the account sees it, and of what it may have posted by hand: pings and replays."""

from dataclasses import dataclass
from typing import Any

import apsw

from appliance.errors import Code, Refused
from appliance.model.events import PING_TYPE, ping_envelope
from appliance.model.webhooks import PostStatus, Trigger, Webhook, WebhookDelivery
from appliance.outside import Outside
from appliance.store.background_reader import Scanner
from appliance.store.engine import Engine
from appliance.store.new_posts import Bell
from appliance.store.sql import NEWEST, Row, first, rows, run
from appliance.store.webhook_posts import INSERT_POSTS
from appliance.store.webhooks import enabled_webhook

PING_COOLDOWN = 15_000_000  # microseconds, by the interface

_COLUMNS = """d.id, d.event_id, d.type, d.message_id, d.recipient_id, d.url, d.cause, d.status, d.attempt,
    d.request_body, d.response_status, d.response_body, d.error, d.duration_ms, d.created_at, d.attempted_at,
    d.next_attempt_at"""
_OF_ACCOUNT = f"""
SELECT {_COLUMNS} FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id WHERE w.account_id = :account_id
"""  # noqa: S608 - the names of our own columns
_PAGE = f"{_OF_ACCOUNT} AND d.id < :before {{condition}} ORDER BY d.id DESC LIMIT :most"
# A list of its own, or SQLite would rather read the whole log in order.
_OF_MESSAGE = """AND d.id IN
    (SELECT m.id FROM webhook_deliveries m WHERE m.webhook_id = w.id AND m.message_id = :message_id)"""
_ONE = f"{_OF_ACCOUNT} AND d.id = :id"
_PINGED_AT = "SELECT pinged_at FROM webhook_pings WHERE account_id = :account_id"
_NOTE_PING = """
INSERT INTO webhook_pings (account_id, pinged_at) VALUES (:account_id, :now)
ON CONFLICT (account_id) DO UPDATE SET pinged_at = excluded.pinged_at
"""


@dataclass(frozen=True, slots=True)
class WebhookHistory:
    """The posts of the accounts."""

    engine: Engine
    outside: Outside
    bell: Bell
    scanner: Scanner

    def page(self, account_id: str, message_id: str | None, before: str | None, most: int) -> list[WebhookDelivery]:
        """Posts of an account, or of one of its messages, the newest first, from the one before `before`."""
        return self.engine.read(lambda c: _page(c, account_id, message_id, before, most))

    async def page_off_loop(
        self, account_id: str, message_id: str | None, before: str | None, most: int
    ) -> list[WebhookDelivery]:
        """The same, read on a thread: each post has kilobytes of what was sent and answered."""
        return await self.scanner.read(lambda c: _page(c, account_id, message_id, before, most), account_id)

    async def ping(self, account_id: str) -> WebhookDelivery:
        """Have a test event posted; refused when the last one was a moment ago."""
        delivery = await self.engine.write(lambda c: _ping(c, self.outside, account_id))
        self.bell.ring([account_id])
        return delivery

    async def replay(self, account_id: str, delivery_id: str) -> WebhookDelivery:
        """Have the body of an earlier post posted once more, under the same event id."""
        delivery = await self.engine.write(lambda c: _replay(c, self.outside, account_id, delivery_id))
        self.bell.ring([account_id])
        return delivery


def _page(
    c: apsw.Connection, account_id: str, message_id: str | None, before: str | None, most: int
) -> list[WebhookDelivery]:
    wanted = {"account_id": account_id, "message_id": message_id, "before": before or NEWEST, "most": most}
    query = _PAGE.format(condition="" if message_id is None else _OF_MESSAGE)
    return [_delivery(row) for row in rows(c, query, wanted)]


def _ping(c: apsw.Connection, outside: Outside, account_id: str) -> WebhookDelivery:
    webhook = enabled_webhook(c, account_id)
    now, event_id = outside.now(), outside.identifier("evt")
    row = first(c, _PINGED_AT, {"account_id": account_id})
    waited = PING_COOLDOWN if row is None else now - row[0]
    if 0 <= waited < PING_COOLDOWN:  # below 0 the clock was ahead then
        seconds = -((waited - PING_COOLDOWN) // 1_000_000)  # rounded up
        text = f"The webhook was pinged a moment ago. Ping it again in {seconds} s."
        raise Refused(Code.RATE_LIMITED, text, retry_after=seconds)
    run(c, _NOTE_PING, {"account_id": account_id, "now": now})
    body = ping_envelope(event_id, now)
    return _insert(c, outside, webhook, Trigger.PING, (event_id, PING_TYPE, None, None), body)


def _replay(c: apsw.Connection, outside: Outside, account_id: str, delivery_id: str) -> WebhookDelivery:
    row = first(c, _ONE, {"account_id": account_id, "id": delivery_id})
    if row is None:
        raise Refused(Code.NOT_FOUND, "There is no such delivery, or it is no longer kept.")
    webhook, earlier = enabled_webhook(c, account_id), _delivery(row)
    event = earlier.event_id, earlier.type, earlier.message_id, earlier.recipient_id
    return _insert(c, outside, webhook, Trigger.REPLAY, event, earlier.request_body)


def _insert(
    c: apsw.Connection,
    outside: Outside,
    webhook: Webhook,
    trigger: Trigger,
    event: tuple[str, str, str | None, str | None],
    body: bytes,
) -> WebhookDelivery:
    new_id, now = outside.identifier("whd"), outside.now()
    INSERT_POSTS.run(c, [(webhook.id, new_id, *event, webhook.url, trigger.value, body, now, now)])
    (row,) = rows(c, _ONE, {"account_id": webhook.account_id, "id": new_id})
    return _delivery(row)


def _delivery(row: Row) -> WebhookDelivery:
    values: list[Any] = list(row)
    values[6], values[7], values[9] = Trigger(row[6]), PostStatus(row[7]), bytes(row[9])
    return WebhookDelivery(*values)
