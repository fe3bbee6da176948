"""Servers that took too long: short time-outs until they behave, or an hour is over."""

import trio
from trio.testing import MockClock

from appliance.deliver.smtp.connection import (
    SHORT_CONNECT_TIMEOUT,
    SHORT_TIMEOUT,
    SLOW_FOR,
    SLOW_SERVERS_KEPT,
    SlowServers,
    Timeouts,
)


async def test_a_slow_server_gets_short_timeouts_until_it_behaves(autojump_clock: MockClock) -> None:
    """Every wait but that for the answer to the final dot is cut, and one good session ends that."""
    slow = SlowServers(Timeouts())
    assert slow.timeouts("192.0.2.1") == Timeouts()
    slow.add("192.0.2.1")
    short = slow.timeouts("192.0.2.1")
    waits = (short.greeting, short.ehlo, short.starttls, short.auth, short.reset, short.mail, short.rcpt, short.data)
    assert set(waits) == {SHORT_TIMEOUT}
    assert (short.end_of_data, short.whole) == (Timeouts().end_of_data, Timeouts().whole)
    assert slow.timeouts("192.0.2.1").connect == SHORT_CONNECT_TIMEOUT
    assert slow.timeouts("192.0.2.2") == Timeouts()
    slow.remove("192.0.2.1")
    assert slow.timeouts("192.0.2.1") == Timeouts()


async def test_it_is_forgotten_after_an_hour(autojump_clock: MockClock) -> None:
    """A server that is merely slow gets the full time again, before a message's attempts are used up."""
    slow = SlowServers(Timeouts())
    slow.add("192.0.2.1")
    await trio.sleep(SLOW_FOR)
    assert slow.timeouts("192.0.2.1") == Timeouts()


async def test_the_memory_is_bounded(autojump_clock: MockClock) -> None:
    """The oldest are forgotten first."""
    slow = SlowServers(Timeouts())
    for number in range(SLOW_SERVERS_KEPT + 1):
        slow.add(str(number))
    assert "0" not in slow
    assert "1" in slow
    assert str(SLOW_SERVERS_KEPT) in slow
