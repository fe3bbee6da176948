"""In charge of how far the warm-up of sending addresses has come, so that a restart goes on where it was."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from appliance.config.settings import WarmupSettings
from appliance.model.warmup import WarmupPace, WarmupStatus, statuses
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.sql import Many, first, rows
from appliance.times import DAY

TOLD_FOR = 7 * DAY  # after the last mail: what went longer ago went from an address we may no longer have
LOOKED_AT = 1_000  # of them, the last ones: a pool is often no more than one small domain

_OF = """
SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups WHERE pool = :pool AND source = :source
"""
_AT = """
SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups
WHERE pool = :pool AND hour_at >= :since ORDER BY source
"""
_LATE = """
SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups
WHERE hour_at >= :since ORDER BY hour_at DESC LIMIT :most
"""
_KEEP = Many(
    """
INSERT INTO warmups (pool, source, day, day_at, sent, hour_at, used, rested_at) VALUES {rows}
ON CONFLICT (pool, source) DO UPDATE SET day = excluded.day, day_at = excluded.day_at, sent = excluded.sent,
    hour_at = excluded.hour_at, used = excluded.used, rested_at = excluded.rested_at
""",
    "(?, ?, ?, ?, ?, ?, ?, ?)",
)


@dataclass(frozen=True, slots=True)
class Warmups:
    """Paces, by pool and source address."""

    engine: Engine
    outside: Outside

    def of(self, pool: str, source: str) -> WarmupPace | None:
        """How far an address has come at a pool."""
        row = self.engine.read(lambda c: first(c, _OF, {"pool": pool, "source": source}))
        return None if row is None else WarmupPace(*row)

    async def keep(self, paces: Iterable[WarmupPace]) -> None:
        """Write down how far these have come."""
        values = [astuple(pace) for pace in paces]
        await self.engine.write(lambda c: _KEEP.run(c, values))

    def told(self, settings: WarmupSettings, most: int) -> list[WarmupStatus]:
        """The warm-ups under way: those that keep mail waiting first, then those with most mail in this hour."""
        found = self._told(settings, _LATE, {"most": LOOKED_AT})
        return sorted(found, key=lambda each: (each.next_at is None, -each.used, each.pool, each.source))[:most]

    def told_of(self, settings: WarmupSettings, pool: str) -> list[WarmupStatus]:
        """Those under way at one pool."""
        return self._told(settings, _AT, {"pool": pool})

    def _told(self, settings: WarmupSettings, sql: str, bindings: dict[str, Any]) -> list[WarmupStatus]:
        if not settings.enabled:
            return []
        now = self.outside.now()
        found = self.engine.read(lambda c: rows(c, sql, bindings | {"since": now - TOLD_FOR}))
        return list(statuses(settings, (WarmupPace(*row) for row in found), now))
