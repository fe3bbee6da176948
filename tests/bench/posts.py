"""Fills a database with events that wait to be posted, for benchmarks of webhooks."""

import time
from pathlib import Path

import apsw
import trio

from appliance.environment import Environment
from appliance.keys.keyfile import load_or_create
from appliance.keys.secrets import WebhookSecrets
from appliance.model.webhooks import EventType, WebhookOptions
from appliance.store import FILE_NAME, open_store

BODY = (
    b'{"id":"evt_19811c37e9c0a1d4b1a7c2f0e6d3985a","type":"email.delivered","created_at":"2026-11-15T09:30:00.123Z",'
    b'"data":{"email_id":"msg_19811c37dea64357d92fc2c378b44320","recipient_id":"rcp_19811c37dea6a1f0b2c3d4e5f60718a9",'
    b'"to":"ada@example.net","from":"orders@example.com","subject":"Your order is on its way","smtp_code":250,'
    b'"smtp_response":"250 2.0.0 OK: queued as 4F7K2S1Zqz"}}'
)
_FILL = """
INSERT INTO webhook_deliveries (webhook_id, id, event_id, type, message_id, recipient_id, url, cause, status,
    request_body, created_at, next_attempt_at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
SELECT :webhook_id, 'whd_' || printf('%032x', i), 'evt_' || printf('%032x', i), 'email.delivered',
    'msg_' || printf('%032x', i), 'rcp_' || printf('%032x', i), :url, 'event', 'pending', :body, :began + i, :began + i
FROM n
"""


def fill_posts(data_dir: Path, account_id: str, url: str, count: int) -> None:
    """Give an account a webhook, and so many events that are due now."""
    webhook_id = trio.run(_save_webhook, data_dir, account_id, url)
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    began = time.time_ns() // 1000 - count - 60_000_000
    values = {"webhook_id": webhook_id, "url": url, "count": count, "body": BODY, "began": began}
    connection.execute(_FILL, values)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


async def _save_webhook(data_dir: Path, account_id: str, url: str) -> str:
    env = Environment()
    async with open_store(data_dir, env, inline=True) as store:
        new_id = env.identifier("whk")
        _, sealed = WebhookSecrets(load_or_create(data_dir), env).fresh(new_id)
        settings = WebhookOptions(url, tuple(EventType), True)
        webhook, _ = await store.webhooks.save(account_id, settings, new_id, sealed)
    return webhook.id
