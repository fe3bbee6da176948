"""The fence before the final dot: mail that another node may have by now is not handed over, and waits unharmed."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.deliver.smtp.connection import BLOCK_BYTES, DeadlineWatch, LeaseLost, Progress, SmtpConnection
from appliance.deliver.smtp.sending import MailTransaction, prepare
from tests.deliver.simulated_delivery import one, stage
from tests.fakes.mx import FakeMx

SMALL = b"Subject: x\r\n\r\nhello\r\n"
LARGE = SMALL + b"0123456789abcde\r\n" * (2 * BLOCK_BYTES // 16)


class Lease:
    def __init__(self) -> None:
        self.held = True

    def holds(self) -> bool:
        return self.held

    def lost_at_data(self) -> Callable[[trio.abc.Stream], Awaitable[bytes]]:
        async def act(stream: trio.abc.Stream) -> bytes:
            self.held = False
            await stream.send_all(b"354 go on\r\n")
            return b"354"

        return act


def dots(mx: FakeMx) -> int:
    return b"".join(mx.chunks).count(b"\r\n.\r\n")


@pytest.mark.parametrize("message", [SMALL, LARGE], ids=["one block", "several blocks"])
async def test_no_dot_is_sent_without_a_lease(message: bytes) -> None:
    lease = Lease()
    mx = FakeMx(answers={"DATA": lease.lost_at_data()})
    transaction = MailTransaction("a@b.example", ("c@d.example",), prepare(message))
    async with mx.memory() as stream:
        connection = await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch())
        progress = Progress(0.0, may_hand_over=lease.holds)
        with pytest.raises(LeaseLost):
            await connection.send(transaction, progress)
        await trio.testing.wait_all_tasks_blocked()
        assert not progress.handed_over
        assert not connection.reusable
    assert mx.commands[-1] == "DATA"
    assert dots(mx) == 0
    assert mx.messages == []


async def test_with_a_lease_the_dot_is_sent() -> None:
    """The same, with the lease held: it is the fence that made the difference."""
    mx, transaction = FakeMx(), MailTransaction("a@b.example", ("c@d.example",), prepare(SMALL))
    async with mx.memory() as stream:
        connection = await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch())
        progress = Progress(0.0, may_hand_over=Lease().holds)
        assert (await connection.send(transaction, progress)).verdicts[0].code == 250
        assert progress.handed_over
    assert dots(mx) == 1


async def test_a_lease_that_is_lost_at_data_uses_no_attempt(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease()
    mx = FakeMx(answers={"DATA": [lease.lost_at_data(), b"354 go on\r\n"]})
    async with stage(tmp_path, *one(mx)) as played:
        monkeypatch.setattr(played.store.engine, "holds_lease", lease.holds)
        message = await played.send("ada@a.test")
        with trio.fail_after(60):
            while lease.held:  # noqa: ASYNC110 - the server does not tell
                await trio.sleep(0.1)
        await trio.sleep(120)
        assert dots(mx) == 0
        assert mx.commands.count("DATA") == 1
        assert len(played.dialled) == 1
        assert await played.recipient(message) == ("queued", 0)
        lease.held = True
        await played.final(message, within=600)
        assert await played.recipient(message) == ("delivered", 1)
    assert dots(mx) == 1
    assert len(mx.messages) == 1


async def test_without_a_lease_nothing_is_begun(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, mx = Lease(), FakeMx()
    lease.held = False
    async with stage(tmp_path, *one(mx), running=False) as played:
        monkeypatch.setattr(played.store.engine, "holds_lease", lease.holds)
        played.nursery.start_soon(played.scheduler.run)
        message = await played.send("ada@a.test")
        await trio.sleep(300)
        assert played.dialled == []
        assert await played.recipient(message) == ("queued", 0)
        lease.held = True
        await played.final(message, within=600)
    assert len(mx.messages) == 1
