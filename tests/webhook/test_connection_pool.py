"""Connections that are kept for the next event: the right one, alive, not too long, not too many."""

from ipaddress import ip_address

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, MockClock

from appliance.webhook import connection_pool as kept_module
from appliance.webhook.connection_pool import AGE_LIMIT, IDLE_LIMIT, Connection, KeptConnections, Place
from appliance.webhook.limited_stream import RECEIVED_LIMIT, Transport

HERE = Place("hooks.example.com", 443, ip_address("9.9.9.9"))


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


def opened(place: Place = HERE) -> Connection:
    """A connection that says whether it is still open."""
    stream = Witness()
    return Connection(place, stream, Transport(stream), trio.current_time())


def closed(connection: Connection) -> bool:
    """Whether it was closed."""
    assert isinstance(connection.stream, Witness)
    return connection.stream.closed


async def test_only_the_same_place_will_do() -> None:
    """Another host, port or address is another place; what was taken is no longer there."""
    kept, mine = KeptConnections(), opened()
    await kept.give_back(mine)
    others = (
        Place("hooks.example.net", 443, HERE.address),
        Place("hooks.example.com", 8443, HERE.address),
        Place("hooks.example.com", 443, ip_address("9.9.9.10")),
    )
    assert [await kept.take(place) for place in others] == [None] * 3
    assert await kept.take(HERE) is mine
    assert await kept.take(HERE) is None
    assert len(kept) == 0


async def test_the_latest_is_taken_first() -> None:
    """So that those nobody needs grow old."""
    kept, first, second = KeptConnections(), opened(), opened()
    await kept.give_back(first)
    await kept.give_back(second)
    assert await kept.take(HERE) is second
    assert await kept.take(HERE) is first


async def test_idle_ones_are_closed(autojump_clock: MockClock) -> None:
    """After a while without use, and not before."""
    kept, old, young = KeptConnections(), opened(), opened()
    await kept.give_back(old)
    await trio.sleep(IDLE_LIMIT - 1)
    await kept.give_back(young)
    await kept.close_idle()
    assert not closed(old)
    await trio.sleep(1)
    await kept.close_idle()
    assert (closed(old), closed(young), len(kept)) == (True, False, 1)


async def test_old_ones_are_not_kept(autojump_clock: MockClock) -> None:
    """However much it is used, a connection ends some day, and the certificate is looked at again."""
    kept, busy = KeptConnections(), opened()
    for _ in range(int(AGE_LIMIT) // 10 - 1):
        await trio.sleep(10)
        await kept.give_back(busy)
        assert await kept.take(HERE) is busy
    await trio.sleep(10)
    await kept.give_back(busy)
    assert closed(busy)


async def test_one_host_cannot_have_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one host only so many are kept, at whichever of its addresses."""
    monkeypatch.setattr(kept_module, "KEPT_FOR_HOST", 3)
    kept = KeptConnections()
    all_of_it = [opened(HERE._replace(address=ip_address(f"9.9.9.{number}"))) for number in range(5)]
    for connection in all_of_it:
        await kept.give_back(connection)
    assert [closed(connection) for connection in all_of_it] == [False] * 3 + [True] * 2
    assert await kept.take(all_of_it[0].place) is all_of_it[0]
    again = opened()
    await kept.give_back(again)
    assert not closed(again)


async def test_the_longest_unused_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """When there are too many in all, the one that has waited for longest makes room."""
    monkeypatch.setattr(kept_module, "KEPT", 3)
    kept = KeptConnections()
    each = [opened(Place(f"h{number}.example", 443, HERE.address)) for number in range(5)]
    for connection in each:
        await kept.give_back(connection)
    assert [closed(connection) for connection in each] == [True, True, False, False, False]
    assert len(kept) == 3


async def test_all_to_one_place_go_together() -> None:
    """When one of them turns out to be dead, the others there would be, too."""
    kept, here, there = KeptConnections(), [opened(), opened()], opened(HERE._replace(port=8443))
    for connection in (*here, there):
        await kept.give_back(connection)
    await kept.drop_all_to(HERE)
    assert [closed(connection) for connection in (*here, there)] == [True, True, False]


async def test_after_the_end_none_is_kept() -> None:
    """What comes back after closing is closed, too."""
    kept, early, late = KeptConnections(), opened(), opened()
    await kept.give_back(early)
    await kept.aclose()
    await kept.give_back(late)
    assert (closed(early), closed(late), len(kept)) == (True, True, 0)


async def test_a_transport_counts() -> None:
    """A transport gives up after its allowance, and has it anew for the next answer."""
    receiver = MemoryReceiveStream()
    transport = Transport(trio.StapledStream(MemorySendStream(), receiver))
    receiver.put_data(bytes(RECEIVED_LIMIT))
    assert len(await transport.receive_some()) == RECEIVED_LIMIT
    receiver.put_data(b"more")
    with pytest.raises(trio.BrokenResourceError, match="over 128 KiB"):
        await transport.receive_some()
    transport.begin()
    assert await transport.receive_some() == b"more"
