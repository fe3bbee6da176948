"""In charge of deleting what has served its time, in slices small enough that no sender notices."""

from dataclasses import dataclass

import apsw

from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.sql import rows

SLICE = 500  # rows a transaction

_EXPIRED_KEYS = """
DELETE FROM idempotency_keys WHERE (scope, key) IN
    (SELECT scope, key FROM idempotency_keys WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)
RETURNING 1
"""
_EXPIRED_TOKENS = """
DELETE FROM revoked_tokens WHERE token_id IN
    (SELECT token_id FROM revoked_tokens WHERE expires_at <= :now ORDER BY expires_at LIMIT :most)
RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class Janitor:
    """Expired idempotency keys (24 hours) and logged-out tokens that would have expired by now."""

    engine: Engine
    outside: Outside

    async def sweep(self) -> int:
        """Delete one slice of what has expired; how many rows went. Call again until it says 0."""
        wanted = {"now": self.outside.now(), "most": SLICE}

        def delete(c: apsw.Connection) -> int:
            return sum(len(rows(c, query, wanted)) for query in (_EXPIRED_KEYS, _EXPIRED_TOKENS))

        return await self.engine.write(delete)
