"""Idle connections: reused only for the same endpoint while alive, bounded in time and number."""

from ipaddress import ip_address

import trio
from trio.testing import MockClock

from appliance.webhook.connect import (
    CONNECTION_AGE,
    IDLE_SECONDS,
    IdleConnections,
    LimitedStream,
    ReceiverConnection,
    ReceiverEndpoint,
)

HERE = ReceiverEndpoint("hooks.example.com", 443, ip_address("9.9.9.9"))


class Witness(trio.abc.Stream):
    """A stream that only knows whether it is closed."""

    closed = False

    async def aclose(self) -> None:
        """Be closed."""
        self.closed = True

    async def send_all(self, data: object) -> None:
        """Not for this test."""
        raise AssertionError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Not for this test."""
        raise AssertionError

    async def wait_send_all_might_not_block(self) -> None:
        """Not for this test."""
        raise AssertionError


def opened(endpoint: ReceiverEndpoint = HERE) -> ReceiverConnection:
    """A connection that says whether it is still open."""
    stream = Witness()
    return ReceiverConnection(endpoint, stream, LimitedStream(stream), trio.current_time())


def closed(connection: ReceiverConnection) -> bool:
    """Whether it was closed."""
    assert isinstance(connection.stream, Witness)
    return connection.stream.closed


async def take(idle: IdleConnections, endpoint: ReceiverEndpoint = HERE) -> ReceiverConnection | None:
    """An idle connection to that endpoint."""
    return await idle.take(endpoint.host, endpoint.port, (endpoint.address,))


async def test_only_the_same_endpoint_is_reused() -> None:
    """Another host, port or address is another endpoint; a connection that was taken is no longer there."""
    idle, mine = IdleConnections(), opened()
    await idle.give_back(mine)
    others = (
        ReceiverEndpoint("hooks.example.net", 443, HERE.address),
        ReceiverEndpoint("hooks.example.com", 8443, HERE.address),
        ReceiverEndpoint("hooks.example.com", 443, ip_address("9.9.9.10")),
    )
    assert [await take(idle, endpoint) for endpoint in others] == [None] * 3
    assert await take(idle) is mine
    assert await take(idle) is None
    assert len(idle.pool) == 0


async def test_the_latest_is_taken_first() -> None:
    """So that those not needed become idle and are closed."""
    idle, first, second = IdleConnections(), opened(), opened()
    await idle.give_back(first)
    await idle.give_back(second)
    assert await take(idle) is second
    assert await take(idle) is first


async def test_idle_ones_are_closed(autojump_clock: MockClock) -> None:
    """After a while without use, and not before."""
    idle, old, young = IdleConnections(), opened(), opened()
    await idle.give_back(old)
    await trio.sleep(IDLE_SECONDS - 1)
    await idle.give_back(young)
    await idle.close_idle()
    assert not closed(old)
    await trio.sleep(1)
    await idle.close_idle()
    assert (closed(old), closed(young), len(idle.pool)) == (True, False, 1)


async def test_old_ones_are_not_kept(autojump_clock: MockClock) -> None:
    """However much it is used, a connection ends some day, and the certificate is verified again."""
    idle, busy = IdleConnections(), opened()
    for _ in range(int(CONNECTION_AGE) // 10 - 1):
        await trio.sleep(10)
        await idle.give_back(busy)
        assert await take(idle) is busy
    await trio.sleep(10)
    await idle.give_back(busy)
    assert closed(busy)


async def test_one_host_cannot_have_all() -> None:
    """Of one host only so many are idle, at whichever of its addresses."""
    idle = IdleConnections(limit_per_host=3)
    all_of_it = [opened(HERE._replace(address=ip_address(f"9.9.9.{number}"))) for number in range(5)]
    for connection in all_of_it:
        await idle.give_back(connection)
    assert [closed(connection) for connection in all_of_it] == [False] * 3 + [True] * 2
    assert await take(idle, all_of_it[0].endpoint) is all_of_it[0]
    again = opened()
    await idle.give_back(again)
    assert not closed(again)


async def test_the_longest_unused_goes_first() -> None:
    """When there are too many in all, the one that has waited for longest makes room."""
    idle = IdleConnections(limit=3)
    each = [opened(ReceiverEndpoint(f"h{number}.example", 443, HERE.address)) for number in range(5)]
    for connection in each:
        await idle.give_back(connection)
    assert [closed(connection) for connection in each] == [True, True, False, False, False]
    assert len(idle.pool) == 3


async def test_all_to_one_endpoint_are_dropped_together() -> None:
    """When one of them turns out to be dead, the others there would be, too."""
    idle, here, there = IdleConnections(), [opened(), opened()], opened(HERE._replace(port=8443))
    for connection in (*here, there):
        await idle.give_back(connection)
    await idle.drop_all_to(HERE)
    assert [closed(connection) for connection in (*here, there)] == [True, True, False]


async def test_after_the_end_none_is_kept() -> None:
    """What comes back after closing is closed, too."""
    idle, early, late = IdleConnections(), opened(), opened()
    await idle.give_back(early)
    await idle.aclose()
    await idle.give_back(late)
    assert (closed(early), closed(late), len(idle.pool)) == (True, True, 0)
