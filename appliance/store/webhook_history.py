"""The history of an account's webhook: its posts with their results, pings and replays, which are made by hand."""

from time import perf_counter

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.received_event import example_received
from appliance.model.webhooks import (
    PING_TYPE,
    EventType,
    PostStatus,
    Trigger,
    Webhook,
    WebhookDelivery,
    WebhookFormat,
    WebhookHour,
    example_envelope,
)
from appliance.store.engine import NEWEST, StorePart, Tx, one, record, rows, run
from appliance.store.webhooks import INSERT_POSTS, WebhookPosts, enabled_webhook
from appliance.webhook.formats import shaped

PING_COOLDOWN = 15_000_000  # microseconds, by the interface

_POST_COLUMNS = """d.id, d.event_id, d.type, d.message_id, d.recipient_id, d.url, d.cause, d.status, d.attempt,
    d.request_body, d.response_status, d.response_body, d.error, d.duration_ms, d.created_at, d.attempted_at,
    d.next_attempt_at, d.format"""
_POSTS_OF_ACCOUNT = f"""SELECT {_POST_COLUMNS} FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
    WHERE w.account_id = :account_id"""
_PAGE = f"{_POSTS_OF_ACCOUNT} AND d.id < :before {{condition}} ORDER BY d.id DESC LIMIT :most"
# As a subquery, or SQLite would read the whole log in order.
_OF_MESSAGE = """AND d.id IN
    (SELECT m.id FROM webhook_deliveries m WHERE m.webhook_id = w.id AND m.message_id = :message_id)"""
_ONE = f"{_POSTS_OF_ACCOUNT} AND d.id = :id"
_SIZE = """SELECT octet_length(d.request_body) FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
    WHERE w.account_id = :account_id AND d.id = :id"""
_BLOCK = """SELECT d.id, d.status, d.type FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
    WHERE w.account_id = :account_id AND d.id < :before ORDER BY d.id DESC LIMIT :block"""
_HOURS = """SELECT h.hour, h.outcome, h.attempts, h.total_ms, h.slowest_ms
    FROM webhooks w JOIN webhook_hours h ON h.webhook_id = w.id
    WHERE w.account_id = :account_id AND h.hour >= :first_hour ORDER BY h.hour"""
POSTS_SEARCHED = 2_000  # between two checks of the time: a few milliseconds
POST_SEARCH_TIME = 0.05  # seconds of searching for one page
_PINGED_AT = "SELECT pinged_at FROM webhook_pings WHERE account_id = :account_id"
_NOTE_PING = """INSERT INTO webhook_pings (account_id, pinged_at) VALUES (:account_id, :now)
    ON CONFLICT (account_id) DO UPDATE SET pinged_at = excluded.pinged_at"""


class WebhookHistory(StorePart):
    posts: WebhookPosts

    async def page(
        self, account_id: str, message_id: str | None, before: str | None, most: int, *, off_loop: bool = False
    ) -> list[WebhookDelivery]:
        """Posts of an account or of one message, newest first. Read many, which may be megabytes, `off_loop`."""
        bindings = {"account_id": account_id, "message_id": message_id, "before": before or NEWEST, "most": most}
        query = _PAGE.format(condition="" if message_id is None else _OF_MESSAGE)
        if off_loop:
            results = await self.engine.scan(lambda tx: rows(tx, query, bindings), account_id)
        else:
            results = await self.engine.rows(query, bindings)
        return [_delivery(*row) for row in results]

    async def search(
        self, account_id: str, status: PostStatus | None, kind: str | None, before: str | None, most: int
    ) -> tuple[list[WebhookDelivery], str | None]:
        """Return matching posts, newest first, and where to continue (None at the end). The time is bounded."""
        bindings, end = (status, kind), perf_counter() + POST_SEARCH_TIME
        return await self.engine.scan(
            lambda tx: _search(tx, account_id, bindings, before or NEWEST, most, end), account_id
        )

    async def hours(self, account_id: str, first_hour: int) -> list[WebhookHour]:
        """Attempts by hour and outcome since an hour, of the current webhook."""
        bindings = {"account_id": account_id, "first_hour": first_hour}
        return await self.engine.scan(lambda tx: [_hour(*row) for row in rows(tx, _HOURS, bindings)], account_id)

    async def ping(self, account_id: str, kind: EventType | None = None) -> WebhookDelivery:
        """Post a test event, or an example of this kind. Refused within 15 seconds of the last one."""
        delivery = await self.engine.write(lambda tx: _ping(tx, self.env, account_id, kind))
        self.posts.add_new([account_id])
        return delivery

    async def size(self, account_id: str, delivery_id: str) -> int:
        return await self.engine.one(int, _SIZE, {"account_id": account_id, "id": delivery_id}) or 0

    async def replay(self, account_id: str, delivery_id: str) -> WebhookDelivery:
        delivery = await self.engine.write(lambda tx: _replay(tx, self.env, account_id, delivery_id))
        self.posts.add_new([account_id])
        return delivery


def _search(
    tx: Tx, account_id: str, filters: tuple[PostStatus | None, str | None], before: str, most: int, end: float
) -> tuple[list[WebhookDelivery], str | None]:
    results: list[str] = []
    following: str | None = before
    while following is not None and len(results) < most:
        block = rows(tx, _BLOCK, {"account_id": account_id, "before": following, "block": POSTS_SEARCHED})
        following = block[-1][0] if len(block) == POSTS_SEARCHED else None
        for post_id, status, kind in block:
            if filters[0] in (None, status) and filters[1] in (None, kind):
                results.append(post_id)
                if len(results) == most:
                    following = post_id
                    break
        if perf_counter() >= end:
            break
    shown = [row for post_id in results for row in rows(tx, _ONE, {"account_id": account_id, "id": post_id})]
    return [_delivery(*row) for row in shown], following


def _ping(tx: Tx, env: Environment, account_id: str, kind: EventType | None) -> WebhookDelivery:
    webhook = enabled_webhook(tx, account_id)
    now, event_id = env.now(), env.identifier("evt")
    pinged_at = one(tx, int, _PINGED_AT, {"account_id": account_id})
    waited = PING_COOLDOWN if pinged_at is None else now - pinged_at
    if 0 <= waited < PING_COOLDOWN:  # negative: the clock was ahead
        seconds = -((waited - PING_COOLDOWN) // 1_000_000)  # rounded up
        text = f"The webhook was pinged a moment ago. Ping it again in {seconds} s."
        raise Refused(Code.RATE_LIMITED, text, retry_after=seconds)
    run(tx, _NOTE_PING, {"account_id": account_id, "now": now})
    event = (event_id, kind or PING_TYPE, None, None)
    if kind is None and webhook.format is not WebhookFormat.NATIVE:  # no other provider has an event without a message
        kind = EventType.DELIVERED
    example = example_received(event_id, now) if kind is EventType.RECEIVED else example_envelope(event_id, kind, now)
    body = shaped(webhook.format, example)
    return _insert(tx, env, webhook, Trigger.PING, event, webhook.format, body)


def _replay(tx: Tx, env: Environment, account_id: str, delivery_id: str) -> WebhookDelivery:
    earlier = one(tx, _delivery, _ONE, {"account_id": account_id, "id": delivery_id})
    if earlier is None:
        raise Refused(Code.NOT_FOUND, "There is no such delivery, or it is no longer kept.")
    webhook = enabled_webhook(tx, account_id)
    event = earlier.event_id, earlier.type, earlier.message_id, earlier.recipient_id
    return _insert(tx, env, webhook, Trigger.REPLAY, event, earlier.format, earlier.request_body)


def _insert(
    tx: Tx,
    env: Environment,
    webhook: Webhook,
    trigger: Trigger,
    event: tuple[str, str, str | None, str | None],
    format: WebhookFormat,
    body: bytes,
) -> WebhookDelivery:
    new_id, now = env.identifier("whd"), env.now()
    INSERT_POSTS.run(tx, [(webhook.id, new_id, *event, webhook.url, trigger.value, body, now, now, format.value)])
    (row,) = rows(tx, _ONE, {"account_id": webhook.account_id, "id": new_id})
    return _delivery(*row)


_delivery, _hour = record(WebhookDelivery), record(WebhookHour)
