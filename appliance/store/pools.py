"""The state of provider pools across processes: holds, what the server last published, destinations, warm-up."""

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import apsw
import msgspec

from appliance.config.settings import WarmupSettings
from appliance.model.mail import OutgoingSession
from appliance.model.queue import PoolHold, PoolState, PoolView, SlowedAccount
from appliance.model.warmup import WarmupPace, WarmupStatus, statuses
from appliance.store.engine import StorePart
from appliance.store.sql import Bindings, Many, first, run
from appliance.times import DAY

EVERY = "*"  # in the place of a pool: a hold of all mail, simulated mail too; no pool can have that name

_HOLDS = "SELECT pool, reason, held_at, probe_at, probes FROM pool_holds ORDER BY pool"
_PAUSE = "SELECT pool, reason, held_at, probe_at, probes FROM pool_holds WHERE pool = :pool"
# A hold keeps its reason, but becomes the operator's when the operator wants it, too.
_HOLD = """INSERT INTO pool_holds (pool, reason, held_at, probe_at) VALUES (:pool, :reason, :now, :probe_at)
    ON CONFLICT (pool) DO UPDATE SET probe_at = NULL WHERE excluded.probe_at IS NULL"""
_PROBED = """UPDATE pool_holds SET probe_at = :probe_at, probes = :probes
    WHERE pool = :pool AND held_at = :held_at AND probe_at IS NOT NULL"""
_RELEASE = "DELETE FROM pool_holds WHERE pool = :pool RETURNING pool"
_RELEASE_AUTOMATIC = "DELETE FROM pool_holds WHERE pool = :pool AND probe_at IS NOT NULL RETURNING pool"
_NAMES = """SELECT pool FROM destinations UNION SELECT pool FROM pool_states UNION SELECT pool FROM pool_holds
    WHERE pool <> '*' UNION SELECT pool FROM warmups ORDER BY 1"""
_STATES = """SELECT pool, in_use, allowed, slowed_until, slowed_by, updated_at, rate, slowed_accounts FROM pool_states
    ORDER BY pool"""
_SAY = """INSERT INTO pool_states (pool, in_use, allowed, slowed_until, slowed_by, updated_at, rate, slowed_accounts)
    VALUES (:pool, :in_use, :allowed, :slowed_until, :slowed_by, :updated_at, :rate, :slowed_accounts)"""
_SAY_SESSION = """INSERT INTO smtp_sessions (recipient_id, host, address, started_at, awaits, since)
    VALUES (:recipient_id, :host, :address, :started_at, :awaits, :since)"""
_DESTINATION = "SELECT pool FROM destinations WHERE domain = :domain"
_LEARN = """INSERT INTO destinations (domain, pool, updated_at) VALUES (:domain, :pool, :now)
    ON CONFLICT (domain) DO UPDATE SET pool = excluded.pool, updated_at = excluded.updated_at"""
_ANY_IS_WAITING = """SELECT 1 FROM recipients
    WHERE simulated IN (0, 1) AND account_id = :account_id AND next_attempt_at IS NOT NULL LIMIT 1"""
_IS_WAITING = """SELECT 1 FROM destinations d WHERE d.pool = :pool AND EXISTS (
        SELECT 1 FROM recipients r WHERE r.simulated = 0 AND r.account_id = :account_id AND r.domain = d.domain
            AND r.next_attempt_at IS NOT NULL
    ) LIMIT 1"""

TOLD_FOR = 7 * DAY  # after the last mail: what went longer ago went from an address we may no longer have
LOOKED_AT = 1_000  # of them, the last ones: a pool is often no more than one small domain

_slowed = msgspec.json.Decoder(list[tuple[Any, ...]])

_OF = """SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups
    WHERE pool = :pool AND source = :source"""
_AT = """SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups
    WHERE pool = :pool AND hour_at >= :since ORDER BY source"""
_LATE = """SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups
    WHERE hour_at >= :since ORDER BY hour_at DESC LIMIT :most"""
_KEEP = Many("""INSERT INTO warmups (pool, source, day, day_at, sent, hour_at, used, rested_at)
    VALUES {(?, ?, ?, ?, ?, ?, ?, ?)}
    ON CONFLICT (pool, source) DO UPDATE SET day = excluded.day, day_at = excluded.day_at, sent = excluded.sent,
        hour_at = excluded.hour_at, used = excluded.used, rested_at = excluded.rested_at""")


class WarmupStates(StorePart):
    def of(self, pool: str, source: str) -> WarmupPace | None:
        return self.engine.one(WarmupPace, _OF, {"pool": pool, "source": source})

    async def keep(self, paces: Iterable[WarmupPace]) -> None:
        values = [astuple(pace) for pace in paces]
        await self.engine.write(lambda c: _KEEP.run(c, values))

    def told(self, settings: WarmupSettings, most: int) -> list[WarmupStatus]:
        """The warm-ups under way: those that keep mail waiting first, then those with most mail in this hour."""
        found = self._told(settings, _LATE, {"most": LOOKED_AT})
        return sorted(found, key=lambda each: (each.next_at is None, -each.used, each.pool, each.source))[:most]

    def told_of(self, settings: WarmupSettings, pool: str) -> list[WarmupStatus]:
        return self._told(settings, _AT, {"pool": pool})

    def _told(self, settings: WarmupSettings, sql: str, bindings: Bindings) -> list[WarmupStatus]:
        if not settings.enabled:
            return []
        now = self.outside.now()
        paces = self.engine.all(WarmupPace, sql, {**bindings, "since": now - TOLD_FOR})
        return list(statuses(settings, paces, now))


@dataclass(frozen=True, slots=True)
class PoolStates(StorePart):
    warmups: WarmupStates

    def holds(self) -> dict[str, PoolHold]:
        return {hold.pool: hold for hold in self.engine.all(PoolHold, _HOLDS, {})}

    def paused(self) -> PoolHold | None:
        return self.engine.one(PoolHold, _PAUSE, {"pool": EVERY})

    async def hold(self, pool: str, reason: str, probe_at: int | None = None) -> None:
        """Hold a pool's mail until it is released; with `probe_at`, until a probe from then on is delivered.

        A hold that is there keeps its reason.
        """
        now = self.outside.now()
        await self.engine.change(_HOLD, {"pool": pool, "reason": reason, "now": now, "probe_at": probe_at})

    async def probed(self, hold: PoolHold) -> None:
        """A probe was not delivered: note when the next goes, if this hold is still there and no operator's."""
        row = {"pool": hold.pool, "held_at": hold.held_at, "probe_at": hold.probe_at, "probes": hold.probes}
        await self.engine.change(_PROBED, row)

    async def release(self, pool: str, *, automatic: bool = False) -> bool:
        """Let a pool's mail go again; whether it was held. `automatic`: only if no operator held it."""
        return bool(await self.engine.change(_RELEASE_AUTOMATIC if automatic else _RELEASE, {"pool": pool}))

    def names(self) -> list[str]:
        return self.engine.all(str, _NAMES, {})

    def states(self) -> list[PoolState]:
        states = []
        for *row, told in self.engine.rows(_STATES, {}):
            slowed = tuple(SlowedAccount(*each) for each in _slowed.decode(told or "[]"))
            states.append(replace(PoolState(*row), slowed_accounts=slowed))
        return states

    async def say(
        self, states: Iterable[PoolState], destinations: dict[str, str], sessions: Iterable[OutgoingSession] = ()
    ) -> None:
        """Publish how the pools stand, which sessions take long, and which pools domains were found to belong to."""
        now = self.outside.now()

        def work(c: apsw.Connection) -> None:
            run(c, "DELETE FROM pool_states", {})
            for state in states:
                accounts = [astuple(each) for each in state.slowed_accounts]
                told = msgspec.json.encode(accounts).decode() if accounts else None
                run(c, _SAY, asdict(state) | {"updated_at": now, "slowed_accounts": told})
            run(c, "DELETE FROM smtp_sessions", {})
            for session in sessions:
                run(c, _SAY_SESSION, asdict(session))
            for domain, pool in destinations.items():
                run(c, _LEARN, {"domain": domain, "pool": pool, "now": now})

        await self.engine.write(work)

    def views(self, domains: Iterable[str], warmup: WarmupSettings, account_id: str) -> dict[str, PoolView]:
        """By domain, the pool an account's mail goes through, as far as it is known, and whether all mail is paused."""
        holds, states = self.holds(), {state.pool: state for state in self.states()}
        names = {domain: self.destination(domain) for domain in domains}
        paces = {name: tuple(self.warmups.told_of(warmup, name)) for name in set(names.values()) if name is not None}

        def view(name: str | None) -> PoolView:
            hold, state, pace = holds.get(name or ""), states.get(name or ""), paces.get(name or "", ())
            slowed = [each for each in (state.slowed_accounts if state else ()) if each.account_id == account_id]
            return PoolView(name, hold, state, holds.get(EVERY), pace, slowed=slowed[0] if slowed else None)

        return {domain: view(name) for domain, name in names.items()}

    async def holding(self, account_id: str) -> list[PoolHold]:
        """The holds that keep mail of this account back; a pause of all mail is one of them."""
        holds = self.holds()
        if not holds:
            return []

        def is_waiting(c: apsw.Connection, pool: str) -> bool:
            query = _ANY_IS_WAITING if pool == EVERY else _IS_WAITING
            return first(c, query, {"account_id": account_id, "pool": pool}) is not None

        return await self.engine.scanner.read(
            lambda c: [hold for pool, hold in holds.items() if is_waiting(c, pool)], account_id
        )

    def destination(self, domain: str) -> str | None:
        return self.engine.one(str, _DESTINATION, {"domain": domain})
