"""In charge of what is known of provider pools across processes: holds, the server's last word, who goes where."""

from collections.abc import Iterable
from dataclasses import dataclass

import apsw

from appliance.config_settings import Warmup
from appliance.explain import PoolView
from appliance.model import PoolHold, PoolState
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.scanner import Scanner
from appliance.store.sql import first, rows, run
from appliance.store.warmups import Warmups

EVERY = "*"  # in the place of a pool: a hold of all mail, simulated mail too; no pool can have that name

_HOLDS = "SELECT pool, reason, held_at FROM pool_holds ORDER BY pool"
_PAUSE = "SELECT pool, reason, held_at FROM pool_holds WHERE pool = :pool"
_HOLD = """
INSERT INTO pool_holds (pool, reason, held_at) VALUES (:pool, :reason, :now) ON CONFLICT (pool) DO NOTHING
"""
_RELEASE = "DELETE FROM pool_holds WHERE pool = :pool RETURNING pool"
_STATES = "SELECT pool, in_use, allowed, slowed_until, slowed_by, updated_at FROM pool_states ORDER BY pool"
_SAY = """
INSERT INTO pool_states (pool, in_use, allowed, slowed_until, slowed_by, updated_at)
VALUES (:pool, :in_use, :allowed, :slowed_until, :slowed_by, :updated_at)
ON CONFLICT (pool) DO UPDATE SET in_use = excluded.in_use, allowed = excluded.allowed,
    slowed_until = excluded.slowed_until, slowed_by = excluded.slowed_by, updated_at = excluded.updated_at
"""
_FORGET = "DELETE FROM pool_states"
_DESTINATION = "SELECT pool FROM destinations WHERE domain = :domain"
_LEARN = """
INSERT INTO destinations (domain, pool, updated_at) VALUES (:domain, :pool, :now)
ON CONFLICT (domain) DO UPDATE SET pool = excluded.pool, updated_at = excluded.updated_at
"""
_ANY_IS_WAITING = """
SELECT 1 FROM recipients WHERE simulated IN (0, 1) AND account_id = :account_id AND next_attempt_at IS NOT NULL LIMIT 1
"""
_IS_WAITING = """
SELECT 1 FROM destinations d WHERE d.pool = :pool AND EXISTS (
    SELECT 1 FROM recipients r WHERE r.simulated = 0 AND r.account_id = :account_id AND r.domain = d.domain
        AND r.next_attempt_at IS NOT NULL
) LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Pools:
    """Holds, states and destinations."""

    engine: Engine
    outside: Outside
    scanner: Scanner
    warmups: Warmups

    def holds(self) -> dict[str, PoolHold]:
        """The pools whose mail is held, by name."""
        found = [PoolHold(*row) for row in self.engine.read(lambda c: rows(c, _HOLDS, {}))]
        return {hold.pool: hold for hold in found}

    def paused(self) -> PoolHold | None:
        """The hold of all mail, if there is one."""
        row = self.engine.read(lambda c: first(c, _PAUSE, {"pool": EVERY}))
        return None if row is None else PoolHold(*row)

    async def hold(self, pool: str, reason: str) -> None:
        """Hold a pool's mail until somebody releases it; a hold that is there keeps its reason."""
        row = {"pool": pool, "reason": reason, "now": self.outside.now()}
        await self.engine.write(lambda c: run(c, _HOLD, row))

    async def release(self, pool: str) -> bool:
        """Let a pool's mail go again; whether it was held."""
        return bool(await self.engine.write(lambda c: rows(c, _RELEASE, {"pool": pool})))

    def states(self) -> list[PoolState]:
        """What the server last said of its pools."""
        return [PoolState(*row) for row in self.engine.read(lambda c: rows(c, _STATES, {}))]

    async def say(self, states: Iterable[PoolState], destinations: dict[str, str]) -> None:
        """Write down how the pools stand, and which pools domains were found to belong to."""
        now = self.outside.now()

        def work(c: apsw.Connection) -> None:
            run(c, _FORGET, {})
            for state in states:
                row = {"pool": state.pool, "in_use": state.in_use, "allowed": state.allowed, "updated_at": now}
                run(c, _SAY, row | {"slowed_until": state.slowed_until, "slowed_by": state.slowed_by})
            for domain, pool in destinations.items():
                run(c, _LEARN, {"domain": domain, "pool": pool, "now": now})

        await self.engine.write(work)

    def views(self, domains: Iterable[str], warmup: Warmup) -> dict[str, PoolView]:
        """By domain, the pool its mail goes through, as far as it is known, and whether all mail is paused."""
        holds, states = self.holds(), {state.pool: state for state in self.states()}
        names = {domain: self.destination(domain) for domain in domains}
        paces = {name: tuple(self.warmups.told_of(warmup, name)) for name in set(names.values()) if name is not None}
        return {
            domain: PoolView(
                name, holds.get(name or ""), states.get(name or ""), holds.get(EVERY), paces.get(name or "", ())
            )
            for domain, name in names.items()
        }

    async def holding(self, account_id: str) -> list[PoolHold]:
        """The holds that keep mail of this account back; a pause of all mail is one of them."""
        holds = self.holds()
        if not holds:
            return []
        waiting = await self.scanner.read(lambda c: [pool for pool in holds if _is_waiting(c, account_id, pool)])
        return [holds[pool] for pool in waiting]

    def destination(self, domain: str) -> str | None:
        """The pool a domain's mail went through last."""
        row = self.engine.read(lambda c: first(c, _DESTINATION, {"domain": domain}))
        return None if row is None else str(row[0])


def _is_waiting(c: apsw.Connection, account_id: str, pool: str) -> bool:
    if pool == EVERY:
        return first(c, _ANY_IS_WAITING, {"account_id": account_id}) is not None
    return first(c, _IS_WAITING, {"account_id": account_id, "pool": pool}) is not None
