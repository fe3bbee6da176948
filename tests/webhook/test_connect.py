"""Connections to receivers: the bytes of one answer are limited; idle ones are reused for the same endpoint."""

from ipaddress import ip_address

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock

from appliance.webhook.connect import (
    CONNECTION_AGE,
    IDLE_SECONDS,
    RECEIVED_LIMIT,
    IdleConnections,
    LimitedStream,
    ReceiverConnection,
    ReceiverEndpoint,
)


async def test_bytes_of_one_answer_are_limited() -> None:
    receiver = MemoryReceiveStream()
    transport = LimitedStream(trio.StapledStream(MemorySendStream(), receiver))
    receiver.put_data(bytes(RECEIVED_LIMIT))
    assert len(await transport.receive_some()) == RECEIVED_LIMIT
    receiver.put_data(b"more")
    with pytest.raises(trio.BrokenResourceError, match="over 128 KiB"):
        await transport.receive_some()
    transport.left = RECEIVED_LIMIT
    assert await transport.receive_some() == b"more"


HERE = ReceiverEndpoint("hooks.example.com", 443, ip_address("9.9.9.9"))


class Witness(trio.abc.Stream):
    """A stream that only knows whether it is closed."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True

    async def send_all(self, data: object) -> None:
        raise AssertionError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise AssertionError

    async def wait_send_all_might_not_block(self) -> None:
        raise AssertionError


def opened(endpoint: ReceiverEndpoint = HERE) -> ReceiverConnection:
    stream = Witness()
    return ReceiverConnection(endpoint, stream, LimitedStream(stream), trio.current_time())


def closed(connection: ReceiverConnection) -> bool:
    assert isinstance(connection.stream, Witness)
    return connection.stream.closed


async def take(idle: IdleConnections, endpoint: ReceiverEndpoint = HERE) -> ReceiverConnection | None:
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
    idle, first, second = IdleConnections(), opened(), opened()
    await idle.give_back(first)
    await idle.give_back(second)
    assert await take(idle) is second
    assert await take(idle) is first


async def test_idle_ones_are_closed(autojump_clock: MockClock) -> None:
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
    idle, busy = IdleConnections(), opened()
    for _ in range(int(CONNECTION_AGE) // 10 - 1):
        await trio.sleep(10)
        await idle.give_back(busy)
        assert await take(idle) is busy
    await trio.sleep(10)
    await idle.give_back(busy)
    assert closed(busy)


async def test_one_host_cannot_have_all() -> None:
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
    idle = IdleConnections(limit=3)
    each = [opened(ReceiverEndpoint(f"h{number}.example", 443, HERE.address)) for number in range(5)]
    for connection in each:
        await idle.give_back(connection)
    assert [closed(connection) for connection in each] == [True, True, False, False, False]
    assert len(idle.pool) == 3


async def test_all_to_one_endpoint_are_dropped_together() -> None:
    idle, here, there = IdleConnections(), [opened(), opened()], opened(HERE._replace(port=8443))
    for connection in (*here, there):
        await idle.give_back(connection)
    await idle.drop_all_to(HERE)
    assert [closed(connection) for connection in (*here, there)] == [True, True, False]


async def test_after_the_end_none_is_kept() -> None:
    idle, early, late = IdleConnections(), opened(), opened()
    await idle.give_back(early)
    await idle.aclose()
    await idle.give_back(late)
    assert (closed(early), closed(late), len(idle.pool)) == (True, True, 0)
