"""In charge of deleting what has served its time, in slices small enough that no sender notices."""

from dataclasses import dataclass

import apsw

from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.sql import rows

SLICE = 500  # rows a transaction
WEBHOOK_LOG = 7 * 24 * 60 * 60 * 1_000_000  # microseconds, by the interface

_EXPIRED_KEYS = """
DELETE FROM idempotency_keys WHERE (scope, key) IN
    (SELECT scope, key FROM idempotency_keys WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)
RETURNING 1
"""
_EXPIRED_SESSIONS = """
DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)
RETURNING 1
"""
# A delivery that still waits for its next attempt is never too old.
_OLD_DELIVERIES = """
DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
    (SELECT webhook_id, id FROM webhook_deliveries WHERE next_attempt_at IS NULL AND created_at <= :log_since
    ORDER BY created_at LIMIT :most)
RETURNING 1
"""
# A deleted webhook's row goes last, once nothing is left that is found by it.
_LOGS_OF_DELETED = """
DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
    (SELECT d.webhook_id, d.id FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
    WHERE w.account_id IS NULL LIMIT :most)
RETURNING 1
"""
_DELETED = """
DELETE FROM webhooks WHERE account_id IS NULL
    AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.webhook_id = webhooks.id)
RETURNING 1
"""

_STEPS = (_EXPIRED_KEYS, _EXPIRED_SESSIONS, _OLD_DELIVERIES, _LOGS_OF_DELETED, _DELETED)


@dataclass(frozen=True, slots=True)
class Janitor:
    """Expired idempotency keys (24 hours), sessions that nobody has renewed in time, webhook logs (7 days)."""

    engine: Engine
    outside: Outside

    async def sweep(self) -> int:
        """Delete one slice of what has expired; how many rows went. Call again until it says 0."""
        now = self.outside.now()
        wanted = {"now": now, "log_since": now - WEBHOOK_LOG, "most": SLICE}

        def delete(c: apsw.Connection) -> int:
            return sum(len(rows(c, query, wanted)) for query in _STEPS)

        return await self.engine.write(delete)
