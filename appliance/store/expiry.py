"""In charge of deleting what has served its time, in slices small enough that no sender notices."""

from dataclasses import dataclass

import apsw

from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.slices import Slice, timed
from appliance.store.sql import changed, rows
from appliance.times import DAY

SLICE = 500  # rows a transaction
WEBHOOK_LOG = 7 * DAY  # by the interface

_EXPIRED_KEYS = """
DELETE FROM idempotency_keys WHERE (scope, key) IN
    (SELECT scope, key FROM idempotency_keys WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)
"""
_EXPIRED_SESSIONS = """
DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)
"""
# A delivery that still waits for its next attempt is never too old.
_OLD_DELIVERIES = """
DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
    (SELECT webhook_id, id FROM webhook_deliveries WHERE next_attempt_at IS NULL AND created_at <= :log_since
    ORDER BY created_at LIMIT :most)
"""
# A deleted webhook's row goes last, once nothing is left that is found by it.
_LOGS_OF_DELETED = """
DELETE FROM webhook_deliveries WHERE (webhook_id, id) IN
    (SELECT d.webhook_id, d.id FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id
    WHERE w.account_id IS NULL LIMIT :most)
"""
_DELETED = """
DELETE FROM webhooks WHERE account_id IS NULL
    AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.webhook_id = webhooks.id)
"""

_ANY = (
    "SELECT EXISTS (SELECT 1 FROM idempotency_keys WHERE expires_at <= :now)",
    "SELECT EXISTS (SELECT 1 FROM sessions WHERE expires_at <= :now)",
    "SELECT EXISTS (SELECT 1 FROM webhook_deliveries WHERE next_attempt_at IS NULL AND created_at <= :log_since)",
    "SELECT EXISTS (SELECT 1 FROM webhooks WHERE account_id IS NULL)",
)
_STEPS = (_EXPIRED_KEYS, _EXPIRED_SESSIONS, _OLD_DELIVERIES, _LOGS_OF_DELETED, _DELETED)


@dataclass(frozen=True, slots=True)
class Janitor:
    """Expired idempotency keys (24 hours), sessions that nobody has renewed in time, webhook logs (7 days)."""

    engine: Engine
    outside: Outside

    async def sweep(self) -> int:
        """Delete one slice of what has expired; how many rows went. Call again until it says 0."""
        return (await self.expired(WEBHOOK_LOG, SLICE)).deleted

    async def expired(self, webhook_logs: int, most: int) -> Slice:
        """The same, of each kind so many rows at most, with logs of webhooks kept for so many microseconds."""
        now = self.outside.now()
        wanted = {"now": now, "log_since": now - webhook_logs, "most": most}

        def delete(c: apsw.Connection) -> int:
            return sum(changed(c, query, wanted) for query in _STEPS)

        if not self.engine.read(lambda c: any(rows(c, query, wanted)[0][0] for query in _ANY)):
            return Slice(0, 0.0, more=False)  # and nothing is written: a server at rest leaves its disk alone
        deleted, seconds = await self.engine.write(timed(delete), large=True)
        return Slice(deleted, seconds, more=deleted > 0)
