"""A server that greylists without saying so: what it puts off is tried again, and holds up no other mail."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from appliance.deliver.pool_limiter import FIRST_PAUSE
from appliance.times import SECOND
from tests.deliver.simulated_delivery import DELAYS, Stage, one, stage
from tests.fakes.mx import FakeMx

LATER = b"451 4.7.1 Try again later\r\n"  # rspamd's default
RATE = b"451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation.\r\n"
OK = b"250 2.1.5 ok\r\n"
GREYLIST = 300.0  # seconds that a new recipient is put off

Accounts = pytest.mark.parametrize("names", [("demo",), ("demo", "other")], ids=["one account", "two accounts"])


def greylisting() -> Callable[[trio.abc.Stream], Awaitable[bytes]]:
    first: list[float] = []

    async def answer(stream: trio.abc.Stream) -> bytes:
        first.append(trio.current_time())
        said = LATER if trio.current_time() < first[0] + GREYLIST else OK
        await stream.send_all(said)
        return said

    return answer


async def delivered(played: Stage) -> int:
    ((count,),) = await played.rows("SELECT count(*) FROM recipients WHERE status = 'delivered'")
    return int(count)


@Accounts
async def test_forty_greylisted_recipients_hold_up_neither_themselves_nor_eight_others(
    tmp_path: Path, autojump_clock: MockClock, names: tuple[str, ...]
) -> None:
    new = [f"new{number}@a.test" for number in range(40)]
    known = [f"known{number}@a.test" for number in range(8)]
    server = FakeMx(answers={f"RCPT {address}": greylisting() for address in new})
    async with stage(tmp_path, *one(server), names=names) as played:
        sent = [await played.send(address) for address in (*new, *known)]
        await played.final(*sent[40:], within=5)
        assert await delivered(played) == 8
        await played.final(*sent, within=1.2 * DELAYS[0] + 10)
        assert await delivered(played) == 48
        assert {await played.recipient(message) for message in sent[:40]} == {("delivered", 2)}
        assert await played.rows("SELECT count(*) FROM attempts WHERE smtp_code = 451") == [(40,)]
        decisions = await played.rows("SELECT decision FROM attempts WHERE smtp_code = 451")
        assert not any("slows down" in decision for (decision,) in decisions)


async def tried_once(played: Stage, message: str) -> None:
    await played.until(lambda: played.recipient(message), lambda found: found[1] == 1, within=5)


async def repeat(played: Stage, server: FakeMx, answer: bytes, *addresses: str) -> None:
    """Deliver to these recipients, and then have the server put them off."""
    await played.final(*[await played.send(address) for address in addresses], within=5)
    server.answers = {"RCPT": answer}
    again = [await played.send(address) for address in addresses]
    for message in again:
        await tried_once(played, message)


def slowed_until(played: Stage) -> int:
    return played.scheduler.deliverer.limiters._limiters["a.test"].throttle.slowed_until


async def test_the_same_verdict_to_recipients_accepted_before_slows_the_pool(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), names=("demo",)) as played:
        await repeat(played, server, LATER, "ada@a.test", "bob@a.test")
        assert played.env.now() < slowed_until(played) <= played.env.now() + FIRST_PAUSE
        server.answers = {}
        began = trio.current_time()
        await played.final(await played.send("new@a.test"), within=60)
        assert trio.current_time() - began > FIRST_PAUSE / SECOND / 2


async def test_one_recipient_accepted_before_slows_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), names=("demo",)) as played:
        await repeat(played, server, LATER, "ada@a.test")
        assert slowed_until(played) == 0


async def test_a_message_to_two_known_recipients_that_is_put_off_counts_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server), names=("demo",)) as played:
        await played.final(await played.send("ada@a.test", "bob@a.test", "eve@a.test"), within=5)
        server.answers = {".": LATER}
        await tried_once(played, await played.send("ada@a.test", "bob@a.test"))
        assert slowed_until(played) == 0
        await tried_once(played, await played.send("eve@a.test"))  # either of the others may have been counted
        assert slowed_until(played) > played.env.now()


async def test_a_known_rate_verdict_slows_the_pool_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"RCPT": RATE})
    async with stage(tmp_path, *one(server), names=("demo",)) as played:
        message = await played.send("ada@a.test")
        await tried_once(played, message)
        assert slowed_until(played) > played.env.now()


@Accounts
async def test_an_operator_lifts_a_slow_down(tmp_path: Path, autojump_clock: MockClock, names: tuple[str, ...]) -> None:
    server = FakeMx(answers={"RCPT": RATE})
    async with stage(tmp_path, *one(server), names=names) as played:
        first = await played.send("ada@a.test")
        await tried_once(played, first)
        server.answers = {}
        waiting = await played.send("bob@a.test")
        await trio.sleep(3)  # the server publishes its state every second
        assert await played.recipient(waiting) == ("queued", 0)
        resumed = await played.store.pools.resume("a.test")
        assert resumed.was_held
        assert resumed.holds == ()
        assert resumed.slowed is not None
        reasons = [resumed.slowed.slowed_by, *(each.reason for each in resumed.slowed.slowed_accounts)]
        assert any("rate limited" in (reason or "") for reason in reasons)
        await played.final(waiting, within=3)
        await trio.sleep(3)
        assert not (await played.store.pools.resume("a.test")).was_held


async def test_a_lifted_slow_down_of_another_pool_is_left_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"RCPT": RATE})
    async with stage(tmp_path, *one(server), names=("demo",)) as played:
        message = await played.send("ada@a.test")
        await tried_once(played, message)
        await played.store.pools.resume("b.test")
        await trio.sleep(3)
        assert slowed_until(played) > played.env.now()
