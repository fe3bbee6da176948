"""The queue as the command line and the API show it: by pool, with its destinations. Pure: no I/O, no state."""

from collections.abc import Iterable

from msgspec import Struct

from appliance.model.queue import PoolHold, PoolState, WaitingMail
from appliance.model.warmup import WarmupStatus
from appliance.times import rfc3339


class PauseReport(Struct):
    """Since when all mail is paused, and why."""

    since: str
    reason: str


class WaitingDestination(Struct):
    """How much waits for one domain: `waiting` is due, `deferred` was tried and is tried again later."""

    domain: str
    waiting: int
    deferred: int
    oldest_at: str
    next_attempt_at: str | None


class NodeHold(Struct):
    """A hold of the mail that one node delivers to a pool, because servers there refuse that node as a sender."""

    node: str
    held_at: str
    held_because: str
    next_probe_at: str | None


class WaitingPool(Struct):
    """How much waits for a pool (null: for domains not looked up yet), and how the pool stands.

    A pool that the server holds by itself has `next_probe_at`: when one message goes to see whether it still has to be
    held. Of several nodes each holds its own mail: `held_by` has those that do, and what is said of the hold is said of
    the first. `slowed_accounts` are those whose mail alone waits, because servers of the pool asked that of it.
    """

    pool: str | None
    waiting: int
    deferred: int
    oldest_at: str | None
    next_attempt_at: str | None
    in_use: int | None
    allowed: int | None
    held_at: str | None
    held_because: str | None
    next_probe_at: str | None
    held_by: list[NodeHold]
    slowed_until: str | None
    slowed_because: str | None
    slowed_accounts: int
    destinations: list[WaitingDestination]


class WarmingAddress(Struct):
    """How far the warm-up of an address has come at a pool: recipients an hour, and used of this hour's.

    `day` is counted from 1. Mail waits until `next_at`; null: more may go now.
    """

    pool: str
    address: str
    day: int
    days: int
    per_hour: int
    used: int
    next_at: str | None


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
