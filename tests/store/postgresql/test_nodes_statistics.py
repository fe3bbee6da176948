"""The statistics of several nodes, whose clocks differ."""

import pytest
import trio

from appliance.environment import Environment
from appliance.model.dashboard import Dimension
from appliance.model.mail import RecipientStatus
from appliance.store import Store
from appliance.store.postgresql.engine import PostgresEngine
from appliance.store.postgresql.nodes import MOST_SKEW, Membership, NodeIdentity
from tests.store.samples import DAY, HASH, SECOND, Clock, Messages
from tests.store.test_statistics import send, totals


def _node(url: str, clock: Clock, name: str, skew: int) -> tuple[Store, Clock]:
    member = Membership(NodeIdentity(name, name, name, f"{name}.test", "1", 1))
    member.skew = skew
    own = Clock(clock.now + skew)
    return Store(PostgresEngine(url, member), Environment(now=own)), own


@pytest.mark.parametrize("of_counting", [0, MOST_SKEW - SECOND, SECOND - MOST_SKEW])
async def test_what_a_node_does_whose_clock_is_behind_is_counted(url: str, of_counting: int) -> None:
    (counting, ahead), (other, behind) = (
        _node(url, Clock(), "counting", of_counting),
        _node(url, Clock(), "behind", SECOND - MOST_SKEW),
    )
    try:
        account = await counting.accounts.create("demo", "demo@example.org", HASH, credit=100)
        for number in range(1, 6):
            for store, clock in ((counting, ahead), (other, behind)):
                await send(store, Messages(Environment(now=clock), account.id), clock, RecipientStatus.DELIVERED)
                for each in (ahead, behind):
                    each.now += 10 * SECOND
                await counting.statistics.count()
                await counting.breakdown.count()
            await _check(counting, account.id, 2 * number)
        ahead.now += DAY
        await counting.statistics.count()
        await counting.breakdown.count()
        await _check(counting, account.id, 10)
    finally:
        with trio.CancelScope(shield=True):
            await counting.engine.close()
            await other.engine.close()


async def _check(store: Store, account_id: str, count: int) -> None:
    assert totals(await store.statistics.of(account_id, 0)) == {"sent": count, "delivered": count}
    assert (await store.statistics.feedback(account_id, 0)).total() == count
    by_domain = (await store.breakdown.of(account_id, Dimension.DOMAIN, 0)).by_value["example.com"]
    assert by_domain == {"sent": count, "delivered": count}
