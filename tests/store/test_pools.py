"""The holds of pools, and the paces of those that are being warmed up: kept, and told."""

from appliance.config.settings import WarmupSettings
from appliance.model.queue import PoolHold
from appliance.model.warmup import WarmupPace, begin
from appliance.store import Store
from appliance.store.installation import RESUMED_KEPT
from appliance.times import DAY
from tests.store.samples import Clock

ON = WarmupSettings(enabled=True)


# ---- holds
async def test_a_hold_is_kept_until_it_is_released(store: Store, clock: Clock) -> None:
    await store.pools.hold("google", "refused", clock() + DAY)
    await store.pools.hold("google", "again", clock() + 2 * DAY)
    (hold,) = await store.pools.all_holds()
    assert (hold.reason, hold.probes, hold.node, hold.by_node) == ("refused", 0, "", "")
    later = PoolHold("google", "refused", hold.held_at, clock() + 3 * DAY, 1)
    await store.pools.probed(later)
    assert await store.pools.holds() == {"google": later}
    await store.pools.hold("google", "by the operator")
    await store.pools.probed(later)
    assert await store.pools.all_holds() == [PoolHold("google", "refused", hold.held_at, None, 1)]
    assert not await store.pools.release("google", automatic=True)
    assert await store.pools.release("google")
    assert not await store.pools.release("google")
    assert await store.pools.holds() == {}


async def test_a_delivered_probe_ends_an_automatic_hold(store: Store, clock: Clock) -> None:
    for pool in ("google", "yahoo"):
        await store.pools.hold(pool, "refused", clock() + DAY)
    assert await store.pools.release("google", automatic=True)
    assert list(await store.pools.holds()) == ["yahoo"]


async def test_an_operator_lifts_holds_and_slow_downs(store: Store, clock: Clock) -> None:
    assert await store.pools.resumed() == {}
    await store.pools.hold("google", "refused", clock() + DAY)
    resumed = await store.pools.resume("google")
    assert ([hold.reason for hold in resumed.holds], resumed.slowed) == (["refused"], None)
    assert await store.pools.holds() == {}
    assert not (await store.pools.resume("google")).was_held
    assert not (await store.pools.resume("yahoo")).was_held
    resumed_pools = await store.pools.resumed()
    assert list(resumed_pools) == ["google", "yahoo"]
    assert resumed_pools["google"] < resumed_pools["yahoo"]
    await store.pools.resume("google")
    assert (await store.pools.resumed())["google"] > resumed_pools["yahoo"]


async def test_the_pools_that_were_resumed_are_bounded(store: Store) -> None:
    for number in range(RESUMED_KEPT + 5):
        await store.pools.resume(f"pool{number}")
    kept = await store.pools.resumed()
    assert len(kept) == RESUMED_KEPT
    assert list(kept)[-1] == f"pool{RESUMED_KEPT + 4}"


# ---- warm-up
async def test_a_pace_is_kept_as_it_is(store: Store, clock: Clock) -> None:
    first = begin("google", "192.0.2.1", clock()).take(ON, clock(), 2)
    other = begin("google", "2001:db8::1", clock())
    await store.warmups.keep([first, other])
    later = first.take(ON, clock() + DAY, 1)
    await store.warmups.keep([later])
    assert await store.warmups.of("google", "192.0.2.1") == later
    assert await store.warmups.of("google", "2001:db8::1") == other
    assert await store.warmups.of("yahoo", "192.0.2.1") is None


async def test_those_that_keep_mail_waiting_are_told_first(store: Store, clock: Clock) -> None:
    now = clock()
    fast = WarmupPace("fast", "192.0.2.1", 10, now, 40, now, 40, now)
    busy = WarmupPace("busy", "192.0.2.1", 10, now, 50, now, 50, now)
    waits = begin("waits", "192.0.2.1", now).take(ON, now, 2)
    await store.warmups.keep([fast, busy, waits])
    assert [each.pool for each in await store.warmups.told(ON, 10)] == ["waits", "busy", "fast"]
    assert [each.pool for each in await store.warmups.told(ON, 1)] == ["waits"]
    assert [each.used for each in await store.warmups.told_of(ON, "busy")] == [50]
    assert await store.warmups.told(WarmupSettings(), 10) == await store.warmups.told_of(WarmupSettings(), "busy") == []


async def test_addresses_that_send_no_more_are_not_told(store: Store, clock: Clock) -> None:
    now = clock()
    old = begin("google", "192.0.2.1", now - 8 * DAY).take(ON, now - 8 * DAY, 2)
    await store.warmups.keep([old])
    assert await store.warmups.told(ON, 10) == await store.warmups.told_of(ON, "google") == []
    assert await store.warmups.of("google", "192.0.2.1") == old
