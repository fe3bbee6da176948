"""The queue as operators see it: a pool that some nodes hold is told with each of them."""

from appliance.model.queue import PoolHold, WaitingMail
from appliance.report.queue import NodeHold, by_pool
from appliance.times import rfc3339


def test_a_pool_that_two_nodes_hold() -> None:
    holds = [PoolHold("google", "listed", 1, 5, 0, "mail1"), PoolHold("google", "refused", 2, 6, 0, "mail2")]
    (pool,) = by_pool([WaitingMail("google", None, 1, 0, 0, None)], holds, [])
    assert (pool.held_at, pool.held_because, pool.next_probe_at) == (rfc3339(1), "listed", rfc3339(5))
    assert pool.held_by == [
        NodeHold("mail1", rfc3339(1), "listed", rfc3339(5)),
        NodeHold("mail2", rfc3339(2), "refused", rfc3339(6)),
    ]


def test_a_pool_that_is_held_for_all() -> None:
    (pool,) = by_pool([], [PoolHold("google", "moving", 1)], [])
    assert (pool.waiting, pool.held_because, pool.next_probe_at, pool.held_by) == (0, "moving", None, [])
