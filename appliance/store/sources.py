"""Sources: those that accounts have of their own, where they are, and the results of their attempts by pool and day."""

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import astuple

from appliance.config.settings import Config
from appliance.model.sources import OutgoingSource, PoolDay, SourceState, SourceTable, configured_sources
from appliance.store.engine import Bulk, StorePart, Tx, one, rows, run

OwnSources = dict[str, dict[str, tuple[str, ...]]]  # by account and stream

# Changes with every change of an account's sources, even within a microsecond: rows are never deleted.
_VERSION = "SELECT count(*) || ' ' || coalesce(max(updated_at), 0) FROM account_sources"
_LAST = "SELECT coalesce(max(updated_at), 0) FROM account_sources"
_OWN = "SELECT account_id, stream, sources FROM account_sources WHERE sources <> '' ORDER BY account_id, stream"
_OWN_OF = "SELECT stream, sources FROM account_sources WHERE account_id = :account_id AND sources <> '' ORDER BY stream"
_SET_OWN = """INSERT INTO account_sources (account_id, stream, sources, updated_at)
    VALUES (:account_id, :stream, :sources, :now)
    ON CONFLICT (account_id, stream) DO UPDATE SET sources = excluded.sources, updated_at = excluded.updated_at"""
_STATES = "SELECT source, node, is_here, detail, changed_at FROM source_states ORDER BY source, node"
_SAY_STATES = Bulk("""INSERT INTO source_states (source, node, is_here, detail, changed_at) VALUES {(?, ?, ?i, ?, ?i)}
    ON CONFLICT (source, node) DO UPDATE SET is_here = excluded.is_here, detail = excluded.detail,
        changed_at = excluded.changed_at""")
_FORGET_STATES = "DELETE FROM source_states WHERE node = :node"
_DAYS = """SELECT source, pool, day, node, delivered, deferred, blocked, reply, reply_at FROM source_days
    WHERE day >= :since ORDER BY source, pool, day, node"""
_ADD_DAYS = Bulk("""INSERT INTO source_days AS d
        (source, pool, day, node, delivered, deferred, blocked, reply, reply_at)
    VALUES {(?, ?, ?i, ?, ?i, ?i, ?i, ?, ?i)}
    ON CONFLICT (source, pool, day, node) DO UPDATE SET delivered = d.delivered + excluded.delivered,
        deferred = d.deferred + excluded.deferred, blocked = d.blocked + excluded.blocked,
        reply = coalesce(excluded.reply, d.reply), reply_at = coalesce(excluded.reply_at, d.reply_at)""")


class SourceStore(StorePart):
    async def version(self) -> str:
        return str((await self.engine.rows(_VERSION, {}))[0][0])

    async def own(self) -> OwnSources:
        """The sources of every account that has its own."""
        every: OwnSources = {}
        for account_id, stream, names in await self.engine.rows(_OWN, {}):
            every.setdefault(account_id, {})[stream] = tuple(names.split(","))
        return every

    async def own_of(self, account_id: str) -> dict[str, tuple[str, ...]]:
        """An account's own sources, by stream."""
        selected = await self.engine.rows(_OWN_OF, {"account_id": account_id})
        return {stream: tuple(names.split(",")) for stream, names in selected}

    async def of_account(self, account_id: str, config: Config) -> tuple[OutgoingSource, ...]:
        """The sources that an account's mail may leave from."""
        table = configured_sources(config)
        return tuple(table.of_account(await self.own_of(account_id))) if table.by_name else ()

    async def set_own(self, account_id: str, stream: str, names: Collection[str]) -> None:
        """Set an account's sources of a stream; none: it has the stream's."""

        def work(tx: Tx) -> None:
            now = max(self.env.now(), (one(tx, int, _LAST, {}) or 0) + 1)
            run(tx, _SET_OWN, {"account_id": account_id, "stream": stream, "sources": ",".join(names), "now": now})

        await self.engine.write(work)

    async def states(self) -> list[SourceState]:
        """What running nodes last selected."""
        live = {state.name for state in await self.engine.nodes() if not state.ended} if self.engine.is_shared else {""}
        selected = [SourceState(*row) for row in await self.engine.rows(_STATES, {})]
        return [state for state in selected if state.node in live]

    async def out(self, names: Iterable[str], table: SourceTable) -> dict[str, str]:
        """Why sources are out on every running node; a source that a node can use has no entry."""
        by_name: dict[str, list[SourceState]] = {}
        for state in await self.states():
            by_name.setdefault(state.source, []).append(state)
        reasons = {name: "is not in the settings" for name in names if name not in table.by_name}
        for name in names:
            states = by_name.get(name, [])
            if states and name not in reasons and not any(state.is_here for state in states):
                reasons[name] = states[0].detail
        return reasons

    async def say(self, states: Iterable[SourceState], days: Mapping[tuple[str, str, int], PoolDay]) -> None:
        """Publish what this node selected, and add results to the counts."""
        node = self.engine.node
        said = [astuple(state) for state in states]
        counts = [(*key, node, *astuple(day)) for key, day in sorted(days.items())]

        def work(tx: Tx) -> None:
            run(tx, _FORGET_STATES, {"node": node})
            _SAY_STATES.run(tx, said)
            _ADD_DAYS.run(tx, counts)

        await self.engine.write(work)

    async def days(self, since: int) -> dict[tuple[str, str], dict[int, PoolDay]]:
        """The results by source and pool, then by day, of all nodes."""
        every: dict[tuple[str, str], dict[int, PoolDay]] = {}
        selected = await self.engine.scan(lambda tx: rows(tx, _DAYS, {"since": since}))
        for source, pool, day, _, *counts in selected:
            by_day = every.setdefault((source, pool), {})
            by_day[day] = by_day.get(day, PoolDay()).plus(PoolDay(*counts))
        return every
