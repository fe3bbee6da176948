"""The queue as the command line and the API show it: by pool, with its destinations. No I/O."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from appliance.model.queue import PoolHold, PoolState, WaitingMail
from appliance.model.warmup import WarmupStatus
from appliance.times import rfc3339


class PauseReport(Struct):
    """Start and reason of a pause of all mail."""

    since: Annotated[str, Meta(description="Start of the pause.")]
    reason: Annotated[str, Meta(description="Reason, one line.")]


class WaitingDestination(Struct):
    """The queued recipients of one domain."""

    domain: Annotated[str, Meta(description="Recipient domain.")]
    waiting: Annotated[int, Meta(description="Recipients due for delivery.")]
    deferred: Annotated[int, Meta(description="Recipients that were tried and will be retried.")]
    oldest_at: Annotated[str, Meta(description="Acceptance time of the oldest message in the queue.")]
    next_attempt_at: Annotated[str | None, Meta(description="Time of the next attempt, or null.")]


class NodeHold(Struct):
    """A hold of the mail of one node to a pool, because servers of the pool refuse mail from that node."""

    node: Annotated[str, Meta(description="Node name.")]
    held_at: Annotated[str, Meta(description="Start of the hold.")]
    held_because: Annotated[str, Meta(description="Reason for the hold.")]
    next_probe_at: Annotated[str | None, Meta(description="Time of the next test message; null if none is planned.")]


class WaitingPool(Struct):
    """The queued recipients of a pool, and the state of the pool.

    `next_probe_at` is set if the server itself holds the pool: it then sends one message to test whether servers accept
    mail again. If several nodes hold their own mail, `held_at`, `held_because` and `next_probe_at` describe the first
    node in `held_by`.
    """

    pool: Annotated[str | None, Meta(description="Provider pool; null until the domain has been looked up.")]
    waiting: Annotated[int, Meta(description="Recipients due for delivery.")]
    deferred: Annotated[int, Meta(description="Recipients that were tried and will be retried.")]
    oldest_at: Annotated[
        str | None, Meta(description="Acceptance time of the oldest message; null if the queue is empty.")
    ]
    next_attempt_at: Annotated[str | None, Meta(description="Time of the next attempt, or null.")]
    in_use: Annotated[int | None, Meta(description="Open sessions; null while the pool is idle.")]
    allowed: Annotated[int | None, Meta(description="Maximum number of open sessions; null while the pool is idle.")]
    held_at: Annotated[str | None, Meta(description="Start of the hold; null if the pool is not held.")]
    held_because: Annotated[str | None, Meta(description="Reason for the hold; null if the pool is not held.")]
    next_probe_at: Annotated[str | None, Meta(description="Time of the next test message; null if none is planned.")]
    held_by: Annotated[
        list[NodeHold], Meta(description="Nodes that hold their own mail; empty if all nodes or no nodes do.")
    ]
    slowed_until: Annotated[str | None, Meta(description="End of the slow-down; null if the pool is not slowed.")]
    slowed_because: Annotated[str | None, Meta(description="Server reply that slowed the pool; null if not slowed.")]
    slowed_accounts: Annotated[int, Meta(description="Number of accounts that servers of the pool have rate limited.")]
    destinations: Annotated[list[WaitingDestination], Meta(description="The five domains with the most mail.")]


class WarmingAddress(Struct):
    """The warm-up of a sending address at a pool. Further mail stays queued until `next_at`."""

    pool: Annotated[str, Meta(description="Provider pool.")]
    address: Annotated[str, Meta(description="Sending IP address.")]
    day: Annotated[int, Meta(description="Day of the warm-up, starting at 1.")]
    days: Annotated[int, Meta(description="Length of the warm-up in days.")]
    per_hour: Annotated[int, Meta(description="Recipients per hour that the address may send to on this day.")]
    used: Annotated[int, Meta(description="Recipients sent to in the current hour.")]
    next_at: Annotated[str | None, Meta(description="Time the address may send again; null if it may send now.")]


def warming(warmups: Iterable[WarmupStatus]) -> list[WarmingAddress]:
    return [
        WarmingAddress(now.pool, now.source, now.day, now.days, now.per_hour, now.used, _time(now.next_at))
        for now in warmups
    ]


def pause_of(hold: PoolHold | None) -> PauseReport | None:
    return None if hold is None else PauseReport(rfc3339(hold.held_at), hold.reason)


def by_pool(mail: Iterable[WaitingMail], holds: Iterable[PoolHold], states: Iterable[PoolState]) -> list[WaitingPool]:
    """Return every pool with mail, the largest first, then held pools without mail. The pause is not one of `holds`."""
    state_of = {state.pool: state for state in states}
    held: dict[str, list[PoolHold]] = {}
    for hold in holds:
        held.setdefault(hold.pool, []).append(hold)
    pools: dict[str | None, WaitingPool] = {}
    for row in mail:
        amounts = row.due, row.deferred, rfc3339(row.oldest_at), _time(row.next_attempt_at)
        if row.domain is None:
            name = row.pool or ""
            pools[row.pool] = _pool(row.pool, amounts, held.get(name, []), state_of.get(name))
        else:
            pools[row.pool].destinations.append(WaitingDestination(row.domain, *amounts))
    for name in held.keys() - pools.keys():
        pools[name] = _pool(name, (0, 0, None, None), held[name], state_of.get(name))
    return list(pools.values())


def _pool(
    name: str | None, amounts: tuple[int, int, str | None, str | None], holds: list[PoolHold], state: PoolState | None
) -> WaitingPool:
    in_use, allowed = (state.in_use, state.allowed) if state else (None, None)
    nodes = [NodeHold(hold.node, rfc3339(hold.held_at), hold.reason, _time(hold.probe_at)) for hold in holds]
    held: tuple[str | None, str | None, str | None] = (None, None, None)
    if nodes:
        held = nodes[0].held_at, nodes[0].held_because, nodes[0].next_probe_at
    by_nodes = [hold for hold in nodes if hold.node]
    slowed_until, slowed_by = (_time(state.slowed_until), state.slowed_by) if state else (None, None)
    slowed_accounts = sum(not account.waits_for_session for account in state.slowed_accounts) if state else 0
    return WaitingPool(name, *amounts, in_use, allowed, *held, by_nodes, slowed_until, slowed_by, slowed_accounts, [])


def _time(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)
