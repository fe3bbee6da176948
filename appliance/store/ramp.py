"""The ramp: its stored plan, the route of each recipient, and hourly results of both routes.

Invariant: the route of a recipient under the ramp is stored before its first attempt starts, and never changes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from appliance.config.settings import WarmupSettings
from appliance.environment import Environment, identifier_time
from appliance.model.database import Feature
from appliance.model.mail import DueRecipient, Outcome, RecipientStatus
from appliance.model.ramp import OTHER_PROVIDERS, WINDOW, RampComparison, RampFigures, RampHour, RampPlan, Via, compared
from appliance.store.engine import Bulk, Row, StorePart, Tx, one, rows, run, transaction
from appliance.store.pools import PoolStates
from appliance.times import HOUR, SECOND

PLAN = "ramp"
RAMP_WARMUPS_READ = 1_000
QUICK = 60 * SECOND  # microseconds: delivered within a minute

_PLAN = "SELECT value FROM installation WHERE name = :name"
_KEEP = """INSERT INTO installation (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
_FORGET = "DELETE FROM installation WHERE name = :name"
_BIND = Bulk("""WITH new (message_id, id, route) AS (VALUES {(?, ?, ?)})
    UPDATE recipients SET route = new.route FROM new
    WHERE recipients.message_id = new.message_id AND recipients.id = new.id
        AND coalesce(recipients.route, new.route) = new.route AND recipients.status IN ('queued', 'deferred')
    RETURNING recipients.id""")
_COLUMNS = "delivered, deferred, bounced, failed, complaints, seconds, within_minute"
_NOTE = f"""INSERT INTO ramp_hours AS h (hour, provider, route, {_COLUMNS})
    VALUES (:hour, :provider, :route, {", ".join(f":{name}" for name in _COLUMNS.split(", "))})
    ON CONFLICT (hour, provider, route) DO UPDATE SET
        {", ".join(f"{name} = h.{name} + excluded.{name}" for name in _COLUMNS.split(", "))}"""
_HOURS = f"SELECT hour, provider, route, {_COLUMNS} FROM ramp_hours WHERE hour >= :since ORDER BY hour"
_ROUTE = "SELECT route FROM recipients WHERE message_id = :message_id AND id = :id AND route IS NOT NULL"
_IS_COUNTED = "SELECT 1 FROM ramp_hours WHERE provider = :provider LIMIT 1"

_plan = msgspec.json.Decoder(RampPlan)


class Ramping(Struct):
    """The plan in force in this process, for acceptance and delivery."""

    plan: RampPlan | None = None  # None: the ramp is off
    refusal: str = ""  # why it cannot start, as logged


class RampStore(StorePart):
    pools: PoolStates

    async def stored(self) -> RampPlan | None:
        """The plan that a command or `auto` stored; None: that of the settings counts."""
        value = await self.engine.one(str, _PLAN, {"name": PLAN})
        return None if value is None else _plan.decode(value)

    @transaction
    def change(self, tx: Tx, new: Callable[[RampPlan], RampPlan | None]) -> RampPlan | None:
        """Replace the stored plan, which is empty by default; None removes it."""
        value = one(tx, str, _PLAN, {"name": PLAN})
        plan = new(RampPlan() if value is None else _plan.decode(value))
        if plan is None:
            run(tx, _FORGET, {"name": PLAN})
        else:
            run(tx, _KEEP, {"name": PLAN, "value": msgspec.json.encode(plan).decode()})
        return plan

    async def fence_older_nodes(self) -> None:
        await self.engine.fence_older_nodes(Feature.RAMP)

    async def bind(self, recipients: Sequence[DueRecipient], route: Via) -> bool:
        """Store the only route that may take these recipients; False: another route or result is stored for one."""
        bindings = [(recipient.message_id, recipient.id, route.value) for recipient in recipients]
        return await self.engine.write_item(self._bind, bindings, urgent=True)

    def _bind(self, tx: Tx, several: Sequence[Sequence[Row]]) -> list[bool]:
        bound = {id_ for (id_,) in _BIND.run(tx, sorted({row for bindings in several for row in bindings}))}
        return [all(row[1] in bound for row in bindings) for bindings in several]

    async def hours(self, since: int) -> list[RampHour]:
        """The results from an hour on, by provider and route."""
        return await self.engine.scan(lambda tx: list(starmap(_hour, rows(tx, _HOURS, {"since": since // HOUR}))))

    async def comparison(self, plan: RampPlan, warmup: WarmupSettings) -> RampComparison:
        """Compare the routes over the last day, and suggest percentages."""
        now = self.env.now()
        # Held by the operator or for all nodes: not a judgement of a provider.
        held = {hold.pool: hold.reason for hold in await self.pools.all_holds() if hold.probe_at is not None}
        limits: dict[str, int] = {}
        for status in await self.pools.warmups.told(warmup, RAMP_WARMUPS_READ):
            limits[status.pool] = min(status.per_hour, limits.get(status.pool, status.per_hour))
        return compared(plan, await self.hours(now - WINDOW), held, limits, now)


def _hour(hour: int, provider: str, route: str, *counts: int) -> RampHour:
    delivered, _, bounced, failed, *_ = counts
    results = RampFigures(provider, Via(route), *counts)
    return RampHour(hour, replace(results, busiest_hour=delivered + bounced + failed))


def note_results(tx: Tx, env: Environment, outcomes: Iterable[Outcome]) -> None:
    """Count the results of recipients under the ramp, in the same order on every node, so that none deadlocks."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COLUMNS.split(", "), 0))
    for result in outcomes:
        if result.provider is None or not result.attempts or (route := result.attempts[-1].route) is None:
            continue
        count = counts[result.provider, route]
        count[result.status.value] += 1
        if result.status is RecipientStatus.DELIVERED:
            waited = result.at - (result.recipient.scheduled_at or identifier_time(result.recipient.message_id))
            count["seconds"] += max(0, waited) // SECOND
            count["within_minute"] += waited <= QUICK
    for (provider, route_name), count in sorted(counts.items()):
        run(tx, _NOTE, {"hour": env.now() // HOUR, "provider": provider, "route": route_name, **count})


def note_complaint(tx: Tx, env: Environment, message_id: str, recipient_id: str, provider: str) -> None:
    """Count a complaint of a recipient under the ramp; a provider without results is one of the others."""
    route = one(tx, str, _ROUTE, {"message_id": message_id, "id": recipient_id})
    if route is None:
        return
    if not rows(tx, _IS_COUNTED, {"provider": provider}):
        provider = OTHER_PROVIDERS
    count = dict.fromkeys(_COLUMNS.split(", "), 0) | {"complaints": 1}
    run(tx, _NOTE, {"hour": env.now() // HOUR, "provider": provider, "route": route, **count})
