"""The queue as the command line and the API show it: by pool, with its destinations. Pure: no I/O, no state."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from appliance.model.queue import PoolHold, PoolState, WaitingMail
from appliance.model.warmup import WarmupStatus
from appliance.times import rfc3339


class PauseReport(Struct):
    """Since when all mail is paused, and why."""

    since: Annotated[str, Meta(description="Start of the pause.")]
    reason: Annotated[str, Meta(description="Reason, one line.")]


class WaitingDestination(Struct):
    """How much waits for one domain: `waiting` is due, `deferred` was tried and is tried again later."""

    domain: Annotated[str, Meta(description="Recipient domain.")]
    waiting: Annotated[int, Meta(description="Recipients due for delivery.")]
    deferred: Annotated[int, Meta(description="Recipients that were tried and will be retried.")]
    oldest_at: Annotated[str, Meta(description="Acceptance time of the oldest message in the queue.")]
    next_attempt_at: Annotated[str | None, Meta(description="Time of the next attempt, or null.")]


class NodeHold(Struct):
    """A hold of the mail that one node delivers to a pool, because servers there refuse that node as a sender."""

    node: Annotated[str, Meta(description="Node name.")]
    held_at: Annotated[str, Meta(description="Start of the hold.")]
    held_because: Annotated[str, Meta(description="Reason for the hold.")]
    next_probe_at: Annotated[str | None, Meta(description="Time of the next test message; null if none is planned.")]


class WaitingPool(Struct):
    """How much waits for a pool (null: for domains not looked up yet), and how the pool stands.

    A pool that the server holds by itself has `next_probe_at`: when one message goes to see whether it still has to be
    held. Of several nodes each holds its own mail: `held_by` has those that do, and what is said of the hold is said of
    the first. `slowed_accounts` are those whose mail alone waits, because servers of the pool asked that of it.
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
    """How far the warm-up of an address has come at a pool: recipients an hour, and used of this hour's.

    `day` is counted from 1. Mail waits until `next_at`; null: more may go now.
    """

    pool: Annotated[str, Meta(description="Provider pool.")]
    address: Annotated[str, Meta(description="Sending IP address.")]
    day: Annotated[int, Meta(description="Day of the warm-up, starting at 1.")]
    days: Annotated[int, Meta(description="Length of the warm-up in days.")]
    per_hour: Annotated[int, Meta(description="Recipients per hour that the address may send to on this day.")]
    used: Annotated[int, Meta(description="Recipients sent to in the current hour.")]
    next_at: Annotated[str | None, Meta(description="Time the address may send again; null if it may send now.")]


def warming(warmups: Iterable[WarmupStatus]) -> list[WarmingAddress]:
    return [
        WarmingAddress(each.pool, each.source, each.day, each.days, each.per_hour, each.used, _time(each.next_at))
        for each in warmups
    ]


def pause_of(hold: PoolHold | None) -> PauseReport | None:
    return None if hold is None else PauseReport(rfc3339(hold.held_at), hold.reason)


def by_pool(mail: Iterable[WaitingMail], holds: Iterable[PoolHold], states: Iterable[PoolState]) -> list[WaitingPool]:
    """Every pool with mail, the largest first, then those that are held without any; no hold is that of all mail."""
    standing = {state.pool: state for state in states}
    held: dict[str, list[PoolHold]] = {}
    for hold in holds:
        held.setdefault(hold.pool, []).append(hold)
    pools: dict[str | None, WaitingPool] = {}
    for each in mail:
        if each.domain is None:
            name = each.pool or ""
            pools[each.pool] = _pool(each.pool, _amounts(each), held.get(name, []), standing.get(name))
        else:
            pools[each.pool].destinations.append(WaitingDestination(each.domain, *_amounts(each)))
    for name in held.keys() - pools.keys():
        pools[name] = _pool(name, (0, 0, None, None), held[name], standing.get(name))
    return list(pools.values())


def _amounts(mail: WaitingMail) -> tuple[int, int, str, str | None]:
    return mail.due, mail.deferred, rfc3339(mail.oldest_at), _time(mail.next_attempt_at)


def _pool(
    name: str | None, amounts: tuple[int, int, str | None, str | None], holds: list[PoolHold], state: PoolState | None
) -> WaitingPool:
    in_use, allowed = (state.in_use, state.allowed) if state else (None, None)
    told = [NodeHold(hold.node, rfc3339(hold.held_at), hold.reason, _time(hold.probe_at)) for hold in holds]
    held: tuple[str | None, str | None, str | None] = (None, None, None)
    if told:
        held = (told[0].held_at, told[0].held_because, told[0].next_probe_at)
    by_nodes = [hold for hold in told if hold.node]
    slowed_until, slowed_by = (_time(state.slowed_until), state.slowed_by) if state else (None, None)
    slowed_accounts = sum(not each.waits_for_session for each in state.slowed_accounts) if state else 0
    return WaitingPool(name, *amounts, in_use, allowed, *held, by_nodes, slowed_until, slowed_by, slowed_accounts, [])


def _time(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)
