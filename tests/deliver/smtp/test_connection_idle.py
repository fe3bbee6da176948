"""Connections that are kept for the next message: the right one, not too long, not too many."""

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

from appliance.deliver.route import Relay
from appliance.deliver.smtp.connection import (
    SHORT_CONNECT_TIMEOUT,
    SHORT_TIMEOUT,
    SLOW_FOR,
    SMTP_IDLE_LIMIT,
    ConnectionKey,
    Connections,
    DeadlineWatch,
    SlowServers,
    SmtpConnection,
    Timeouts,
)
from appliance.deliver.smtp.sending import MailTransaction, prepare
from tests.fakes.mx import FakeMx, hang_up, silence

HERE = ConnectionKey("mx.example", "192.0.2.1", 25, "none")
MAIL = MailTransaction("a@b.example", ("c@d.example",), prepare(b"Subject: x\r\n\r\nhello\r\n"))


async def opened(stack: AsyncExitStack, mx: FakeMx, transactions: int = 1) -> SmtpConnection:
    stream = await stack.enter_async_context(mx.memory())
    connection = await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch())
    for _ in range(transactions):
        await connection.send(MAIL)
    return connection


async def test_only_the_same_place_will_do() -> None:
    async with AsyncExitStack() as stack:
        kept, mine = Connections(), await opened(stack, FakeMx())
        kept.give_back(HERE, mine, 100)
        others = (
            ConnectionKey("mx2.example", "192.0.2.1", 25, "none"),
            ConnectionKey("mx.example", "192.0.2.2", 25, "none"),
            ConnectionKey("mx.example", "192.0.2.1", 26, "none"),
            ConnectionKey("mx.example", "192.0.2.1", 25, "enforced"),
            ConnectionKey("mx.example", "192.0.2.1", 25, "none", Relay("mx.example", 25, "ada", "secret")),
        )
        assert [kept.take(place) for place in others] == [None] * len(others)
        assert kept.take(HERE) is mine
        assert kept.take(HERE) is None


async def test_the_latest_is_taken_first() -> None:
    """So that those that are not needed time out."""
    async with AsyncExitStack() as stack:
        kept = Connections()
        first, second = await opened(stack, FakeMx()), await opened(stack, FakeMx())
        kept.give_back(HERE, first, 100)
        kept.give_back(HERE, second, 100)
        assert kept.take(HERE) is second
        assert kept.take(HERE) is first


async def test_one_that_has_carried_enough_leaves_with_a_goodbye() -> None:
    async with AsyncExitStack() as stack:
        mx, kept = FakeMx(), Connections()
        kept.give_back(HERE, await opened(stack, mx, transactions=3), 3)
        assert kept.take(HERE) is None
        assert mx.commands[-1] != "QUIT"
        await kept.quit_ended()
        assert mx.commands[-1] == "QUIT"


async def test_a_closed_one_is_not_kept() -> None:
    """What cannot carry another message is forgotten."""
    async with AsyncExitStack() as stack:
        kept, broken = Connections(), await opened(stack, FakeMx(answers={".": hang_up}))
        kept.give_back(HERE, broken, 100)
        assert kept.take(HERE) is None


async def test_the_idle_are_closed_after_their_time(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        old_mx, young_mx, kept = FakeMx(), FakeMx(), Connections()
        old, young = await opened(stack, old_mx), await opened(stack, young_mx)
        kept.give_back(HERE, old, 100)
        await trio.sleep(SMTP_IDLE_LIMIT - 1)
        kept.give_back(HERE, young, 100)
        await trio.sleep(1)
        await kept.close_idle()
        assert old_mx.commands[-1] == "QUIT"
        assert kept.take(HERE) is young
        assert kept.take(HERE) is None


async def test_a_server_that_ignores_quit_is_left(autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as stack:
        kept = Connections()
        for answers in ({"QUIT": silence}, {}):
            kept.give_back(HERE, await opened(stack, FakeMx(answers=answers)), 100)
        began = trio.current_time()
        await kept.close_idle(older_than=0)
        assert trio.current_time() - began == pytest.approx(5)


async def test_not_too_many_are_kept() -> None:
    async with AsyncExitStack() as stack:
        kept = Connections(most_idle=2)
        for _ in range(3):
            kept.give_back(HERE, await opened(stack, FakeMx()), 100)
        assert kept.take(HERE) is not None
        kept.give_back(HERE, await opened(stack, FakeMx()), 100)
        await kept.close_idle(older_than=0)
        for _ in range(2):
            kept.give_back(HERE, await opened(stack, FakeMx()), 100)
        assert kept.take(HERE) is not None
        assert kept.take(HERE) is not None
        assert kept.take(HERE) is None


async def test_a_slow_server_gets_short_timeouts_until_it_behaves(autojump_clock: MockClock) -> None:
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
    slow = SlowServers(Timeouts())
    slow.add("192.0.2.1")
    await trio.sleep(SLOW_FOR)
    assert slow.timeouts("192.0.2.1") == Timeouts()
