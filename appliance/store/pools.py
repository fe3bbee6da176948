"""The state of provider pools across processes: holds, what the server last published, destinations, warm-up.

On a shared database a node's own holds keep back its own mail only; a hold by the operator replaces them, and its
release ends all. A server slows a pool down in its memory: each `resume` of a pool gets a number that servers read.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import asdict, astuple, replace

from appliance.config.settings import WarmupSettings
from appliance.model.mail import OutgoingSession
from appliance.model.queue import PoolHold, PoolState, PoolView, ResumedPool, SlowedAccount, SourceView
from appliance.model.sources import SourceTable, limits_name
from appliance.model.warmup import WarmupPace, WarmupStatus, statuses
from appliance.store.engine import Bindings, Bulk, StorePart, Tx, any_owner, first, owned, rows, run
from appliance.store.installation import note_resumed, resumed_pools
from appliance.store.sources import SourceStore
from appliance.times import DAY

EVERY = "*"  # instead of a pool: a hold of all mail, including simulated mail; no pool has this name
RESTORED = "restored"  # start of the reason of the pause after a restore

_HOLDS = "SELECT pool, reason, held_at, probe_at, probes FROM pool_holds ORDER BY pool"
_PAUSE = "SELECT pool, reason, held_at, probe_at, probes FROM pool_holds WHERE pool = :pool"
# A hold keeps its reason, but becomes the operator's if the operator also holds the pool.
_HOLD = """INSERT INTO pool_holds (pool, reason, held_at, probe_at) VALUES (:pool, :reason, :now, :probe_at)
    ON CONFLICT (pool) DO UPDATE SET probe_at = NULL WHERE excluded.probe_at IS NULL"""
_PROBED = """UPDATE pool_holds SET probe_at = :probe_at, probes = :probes
    WHERE pool = :pool AND held_at = :held_at AND probe_at IS NOT NULL"""
_RELEASE = "DELETE FROM pool_holds WHERE pool = :pool RETURNING pool"
_RELEASE_AUTOMATIC = "DELETE FROM pool_holds WHERE pool = :pool AND probe_at IS NOT NULL RETURNING pool"
# On a shared database. Holds of all nodes come last, because they override the holds of one node.
_HOLDS_OF_NODE = """SELECT pool, reason, held_at, probe_at, probes, node FROM node_holds WHERE node = :node
    UNION ALL SELECT pool, reason, held_at, probe_at, probes, '' FROM pool_holds ORDER BY node DESC, pool"""
# Holds of the installation and of live nodes, the latter with the node's name if several nodes run.
_ALL_HOLDS = """SELECT pool, reason, held_at, probe_at, probes, '' AS node FROM pool_holds UNION ALL
    SELECT h.pool, h.reason, h.held_at, h.probe_at, h.probes,
        CASE WHEN EXISTS (SELECT 1 FROM nodes n WHERE n.adopted_by IS NULL AND n.name <> h.node) THEN h.node ELSE '' END
    FROM node_holds h WHERE EXISTS (SELECT 1 FROM nodes n WHERE n.adopted_by IS NULL AND n.name = h.node)
    ORDER BY pool, held_at, node"""
_HOLD_ON_NODE = """INSERT INTO node_holds (pool, node, reason, held_at, probe_at)
    SELECT :pool, :node, :reason, :now, :probe_at WHERE NOT EXISTS (SELECT 1 FROM pool_holds WHERE pool = :pool)
    ON CONFLICT (pool, node) DO NOTHING"""
_HOLD_FOR_ALL = """INSERT INTO pool_holds (pool, reason, held_at)
    SELECT pool, reason, held_at FROM node_holds WHERE pool = :pool ORDER BY held_at, node LIMIT 1
    ON CONFLICT (pool) DO NOTHING"""
_PROBED_BY_NODE = """UPDATE node_holds SET probe_at = :probe_at, probes = :probes
    WHERE pool = :pool AND node = :node AND held_at = :held_at"""
_RELEASE_NODES = "DELETE FROM node_holds WHERE pool = :pool RETURNING pool"
_RELEASE_NODE = "DELETE FROM node_holds WHERE pool = :pool AND node = :node RETURNING pool"
_NAMES = """SELECT pool FROM destinations UNION SELECT pool FROM pool_states UNION SELECT pool FROM pool_holds
    WHERE pool <> '*' UNION SELECT pool FROM warmups ORDER BY 1"""
_STATES = """SELECT pool, in_use, allowed, slowed_until, slowed_by, updated_at, rate, slowed_accounts FROM pool_states
    ORDER BY pool"""
# A published state counts while the run that published it is a node.
_IS_NODE = "EXISTS (SELECT 1 FROM nodes n WHERE n.owner = {table}.owner AND n.adopted_by IS NULL)"
_STATES_OF_NODES = _STATES.replace("ORDER", f"WHERE {_IS_NODE.format(table='pool_states')} ORDER")
_SAID = ("pool_states", "smtp_sessions")
_ANY_LEFT = " UNION ALL ".join(f"SELECT 1 FROM {item} WHERE NOT {_IS_NODE.format(table=item)}" for item in _SAID)
_FORGET_LEFT = tuple(f"DELETE FROM {item} WHERE NOT {_IS_NODE.format(table=item)}" for item in _SAID)
_SAY = """INSERT INTO pool_states (pool, in_use, allowed, slowed_until, slowed_by, updated_at, rate, slowed_accounts)
    VALUES (:pool, :in_use, :allowed, :slowed_until, :slowed_by, :updated_at, :rate, :slowed_accounts)"""
_FORGET_STATES = f"DELETE FROM pool_states WHERE {owned('pool_states')}"
_FORGET_SESSIONS = f"DELETE FROM smtp_sessions WHERE {owned('smtp_sessions')}"
_SAY_SESSION = """INSERT INTO smtp_sessions (recipient_id, host, address, started_at, awaits, since)
    VALUES (:recipient_id, :host, :address, :started_at, :awaits, :since)"""
# A killed run leaves its rows. A node with a session for the same recipient replaces them.
_SAY_SESSION_OF_NODE = f"""{_SAY_SESSION} ON CONFLICT (recipient_id) DO UPDATE SET owner = excluded.owner,
    host = excluded.host, address = excluded.address, started_at = excluded.started_at, awaits = excluded.awaits,
    since = excluded.since"""
_DESTINATION = "SELECT pool FROM destinations WHERE domain = :domain"
_LEARN = """INSERT INTO destinations (domain, pool, updated_at) VALUES (:domain, :pool, :now)
    ON CONFLICT (domain) DO UPDATE SET pool = excluded.pool, updated_at = excluded.updated_at"""
_ANY_IS_WAITING = f"""SELECT 1 FROM recipients
    WHERE simulated IN (0, 1) AND low IN (0, 1) AND account_id = :account_id AND next_attempt_at IS NOT NULL
    AND {any_owner("recipients")} LIMIT 1"""
_IS_WAITING = """SELECT 1 FROM destinations d WHERE d.pool = :pool AND EXISTS (
        SELECT 1 FROM recipients r WHERE r.simulated = 0 AND r.low IN (0, 1) AND r.account_id = :account_id
            AND r.domain = d.domain AND r.next_attempt_at IS NOT NULL
    ) LIMIT 1"""
# On a shared database: the pools of an account's queued mail, and their nodes. Read from the queue, because a pool may
# have thousands of domains, with rows of every node.
_WAITING_AT = f"""WITH lanes AS MATERIALIZED (
        SELECT DISTINCT owner, domain FROM recipients
        WHERE simulated = 0 AND low IN (0, 1) AND account_id = :account_id AND next_attempt_at IS NOT NULL
            AND {any_owner("recipients")}
    )
    SELECT DISTINCT d.pool, coalesce(n.name, '') FROM lanes l JOIN destinations d ON d.domain = l.domain
    LEFT JOIN nodes n ON n.owner = l.owner"""

TOLD_FOR = 7 * DAY  # after the last mail: older mail may have used an address that is gone
LOOKED_AT = 1_000  # the latest warm-ups: many pools are one small domain

_slowed = msgspec.json.Decoder(list[tuple[Any, ...]])

_WARMUPS = "SELECT pool, source, day, day_at, sent, hour_at, used, rested_at FROM warmups"
_OF = f"{_WARMUPS} WHERE pool = :pool AND source = :source"
_AT = f"{_WARMUPS} WHERE pool = :pool AND hour_at >= :since ORDER BY source"
_LATE = f"{_WARMUPS} WHERE hour_at >= :since ORDER BY hour_at DESC LIMIT :most"
_KEEP = Bulk("""INSERT INTO warmups (pool, source, day, day_at, sent, hour_at, used, rested_at)
    VALUES {(?, ?, ?i, ?i, ?i, ?i, ?i, ?i)}
    ON CONFLICT (pool, source) DO UPDATE SET day = excluded.day, day_at = excluded.day_at, sent = excluded.sent,
        hour_at = excluded.hour_at, used = excluded.used, rested_at = excluded.rested_at""")


class WarmupStates(StorePart):
    async def of(self, pool: str, source: str) -> WarmupPace | None:
        return await self.engine.one(WarmupPace, _OF, {"pool": pool, "source": source})

    async def keep(self, paces: Iterable[WarmupPace]) -> None:
        values = [astuple(pace) for pace in paces]
        await self.engine.write(lambda tx: _KEEP.run(tx, values))

    async def told(self, settings: WarmupSettings, most: int) -> list[WarmupStatus]:
        """Warm-ups under way: first those that delay mail, then those with the most mail this hour."""
        results = await self._told(settings, _LATE, {"most": LOOKED_AT})
        return sorted(results, key=lambda item: (item.next_at is None, -item.used, item.pool, item.source))[:most]

    async def told_of(self, settings: WarmupSettings, pool: str) -> list[WarmupStatus]:
        return await self._told(settings, _AT, {"pool": pool})

    async def _told(self, settings: WarmupSettings, sql: str, bindings: Bindings) -> list[WarmupStatus]:
        if not settings.enabled:
            return []
        now = self.env.now()
        paces = await self.engine.all(WarmupPace, sql, {**bindings, "since": now - TOLD_FOR})
        return list(statuses(settings, paces, now))


class PoolStates(StorePart):
    warmups: WarmupStates

    async def holds(self) -> dict[str, PoolHold]:
        """The holds on this node's mail: its own, and those of all nodes."""
        query = _HOLDS_OF_NODE if self.engine.is_shared else _HOLDS
        return {hold.pool: hold for hold in await self.engine.all(PoolHold, query, {"node": self.engine.node})}

    async def all_holds(self) -> list[PoolHold]:
        """Every hold by pool, with the node's name if it is one of several."""
        return await self.engine.all(PoolHold, _ALL_HOLDS if self.engine.is_shared else _HOLDS, {})

    async def paused(self) -> PoolHold | None:
        return await self.engine.one(PoolHold, _PAUSE, {"pool": EVERY})

    async def hold(self, pool: str, reason: str, probe_at: int | None = None) -> None:
        """Hold a pool's mail until released; with `probe_at`, this node's, until a probe is delivered."""
        row = {"pool": pool, "reason": reason, "now": self.env.now(), "probe_at": probe_at}
        if probe_at is not None and self.engine.node:
            await self.engine.change(_HOLD_ON_NODE, {**row, "node": self.engine.node})
            return

        def work(tx: Tx) -> None:
            if self.engine.is_shared:
                run(tx, _HOLD_FOR_ALL, row)
                run(tx, _RELEASE_NODES, row)
            run(tx, _HOLD, row)

        await self.engine.write(work)

    async def probed(self, hold: PoolHold) -> None:
        """Record an undelivered probe and the time of the next, unless the hold is gone or an operator's."""
        await self.engine.change(_PROBED_BY_NODE if hold.node else _PROBED, asdict(hold))

    async def release(self, pool: str, *, automatic: bool = False) -> bool:
        """Release a pool on all nodes; `automatic`: this node's own hold only. Return whether it was held."""
        bindings = [_RELEASE_AUTOMATIC if automatic else _RELEASE]
        if self.engine.is_shared:
            bindings.append(_RELEASE_NODE if automatic else _RELEASE_NODES)
        whose = {"pool": pool, "node": self.engine.node}
        return await self.engine.write(lambda tx: sum(len(rows(tx, item, whose)) for item in bindings) > 0)

    async def resume(self, pool: str) -> ResumedPool:
        """Lift every hold and slow-down of a pool on all nodes; return those that were published."""
        now = self.env.now()
        holds = tuple(hold for hold in await self.all_holds() if hold.pool == pool)
        slowed = next((state for state in await self.states() if state.pool == pool and state.is_slowed(now)), None)
        if slowed is not None:  # mail waiting for a session still waits
            accounts = tuple(account for account in slowed.slowed_accounts if not account.waits_for_session)
            slowed = replace(slowed, slowed_accounts=accounts)
        if slowed is not None and (slowed.slowed_until or 0) <= now:
            slowed = replace(slowed, slowed_until=None, slowed_by=None)

        def work(tx: Tx) -> None:
            run(tx, _RELEASE, {"pool": pool})
            if self.engine.is_shared:
                run(tx, _RELEASE_NODES, {"pool": pool})
            note_resumed(tx, pool)

        await self.engine.write(work)
        return ResumedPool(holds, slowed)

    async def resumed(self) -> dict[str, int]:
        return await self.engine.read(resumed_pools)

    async def names(self) -> list[str]:
        return await self.engine.all(str, _NAMES, {})

    async def states(self) -> list[PoolState]:
        states: dict[str, PoolState] = {}
        for *row, item in await self.engine.rows(_STATES_OF_NODES if self.engine.is_shared else _STATES, {}):
            slowed = tuple(SlowedAccount(*item) for item in _slowed.decode(item or "[]"))
            state = replace(PoolState(*row), slowed_accounts=slowed)
            known = states.get(state.pool)
            states[state.pool] = state if known is None else _of_both(known, state)
        return list(states.values())

    async def say(
        self, states: Iterable[PoolState], destinations: dict[str, str], sessions: Iterable[OutgoingSession] = ()
    ) -> None:
        """Publish pool states, long sessions and the pools of domains; delete what runs that have ended published."""
        now = self.env.now()
        # A separate query: such rows are rare, and a serializable transaction must not read what other nodes publish.
        left = self.engine.is_shared and bool(await self.engine.rows(_ANY_LEFT, {}))

        def work(tx: Tx) -> None:
            for forget in _FORGET_LEFT if left else ():
                run(tx, forget, {})
            run(tx, _FORGET_STATES, {})
            for state in states:
                accounts = [astuple(slowed_account) for slowed_account in state.slowed_accounts]
                result = msgspec.json.encode(accounts).decode() if accounts else None
                run(tx, _SAY, asdict(state) | {"updated_at": now, "slowed_accounts": result})
            run(tx, _FORGET_SESSIONS, {})
            for session in sessions:
                run(tx, _SAY_SESSION_OF_NODE if self.engine.is_shared else _SAY_SESSION, asdict(session))
            for domain, pool in destinations.items():
                run(tx, _LEARN, {"domain": domain, "pool": pool, "now": now})

        await self.engine.write(work)

    async def views(
        self,
        domains: Iterable[str],
        warmup: WarmupSettings,
        account_id: str,
        stream: str = "",
        table: SourceTable | None = None,
    ) -> dict[str, PoolView]:
        """By domain: the pool that an account's mail of a stream uses, if known, and whether all mail is paused."""
        sources = SourceStore(self.engine, self.env)
        used = table.used_by(stream, await sources.own_of(account_id)) if table else ()
        out = await sources.out(used, table) if table and used else {}
        holds, states = await self.all_holds(), {state.pool: state for state in await self.states()}
        for_all = {hold.pool: hold for hold in holds if not hold.node}
        names = {domain: await self.destination(domain) for domain in domains}
        paces = {name: tuple(await self.warmups.told_of(warmup, name)) for name in set(names.values()) if name}

        def view(name: str | None) -> PoolView:
            held = {item.pool: item.reason for item in holds}
            reasons = {source: out.get(source) or held.get(limits_name(name or "", source)) for source in used}
            limits = limits_name(name or "", next((source for source, why in reasons.items() if why is None), ""))
            state, of_nodes = states.get(limits), tuple(item for item in holds if item.pool == name and item.node)
            slowed = [item for item in (state.slowed_accounts if state else ()) if item.account_id == account_id]
            hold = for_all.get(name or "")
            if used:  # an automatic hold is of mail without a source
                of_nodes, hold = (), hold if hold is not None and hold.probe_at is None else None
            known = hold, state, for_all.get(EVERY), paces.get(name or "", ())
            return PoolView(
                name,
                *known,
                slowed=slowed[0] if slowed else None,
                node_holds=of_nodes,
                sources=tuple(SourceView(source, why) for source, why in reasons.items()),
            )

        return {domain: view(name) for domain, name in names.items()}

    async def holding(self, account_id: str) -> list[PoolHold]:
        """The holds that delay this account's mail, one per pool, including a pause of all mail."""
        holds = await self.all_holds()
        if not holds:
            return []

        def waiting(tx: Tx) -> list[PoolHold]:
            bindings = {"account_id": account_id}
            at = rows(tx, _WAITING_AT, bindings) if self.engine.is_shared else []
            pools = {pool for pool, _ in at}

            def is_waiting(hold: PoolHold) -> bool:
                if hold.pool == EVERY:
                    return first(tx, _ANY_IS_WAITING, bindings) is not None
                if self.engine.is_shared:
                    return (hold.pool, hold.node) in at if hold.node else hold.pool in pools
                return first(tx, _IS_WAITING, {**bindings, "pool": hold.pool}) is not None

            return list(filter(is_waiting, holds))

        by_pool: dict[str, PoolHold] = {}
        for item in await self.engine.scan(waiting, account_id):
            by_pool.setdefault(item.pool, item)
        return list(by_pool.values())

    async def destination(self, domain: str) -> str | None:
        return await self.engine.one(str, _DESTINATION, {"domain": domain})


def _of_both(one: PoolState, other: PoolState) -> PoolState:
    longer = max(one, other, key=lambda state: state.slowed_until or 0)
    rates = [state.rate for state in (one, other) if state.rate is not None]
    return replace(
        longer,
        in_use=one.in_use + other.in_use,
        allowed=one.allowed + other.allowed,
        updated_at=max(one.updated_at, other.updated_at),
        slowed_accounts=one.slowed_accounts + other.slowed_accounts,
        rate=sum(rates) if rates else None,
    )
