"""A clock set back by two days (threats.md 26): what was put off by the wrong clock does not wait for two days."""

from pathlib import Path

from tests.e2e.delivery.world import CREDITS, World, delays, world
from tests.fakes.mx import FakeMx

TWO_DAYS = 2 * 86_400 * 1_000_000  # microseconds


def written_by_a_clock_ahead(made: World) -> None:
    """Make the waiting mail look as if the clock had been two days ahead when it was put off."""
    made.rows("UPDATE recipients SET next_attempt_at = next_attempt_at + ?", TWO_DAYS)


async def test_a_clock_that_was_ahead_leaves_nothing_stuck(tmp_path: Path) -> None:
    """No wait of the schedule is longer than a second: mail due in two days is not waited for, and new mail goes on."""
    async with world(tmp_path, delays("1s", "1s", "1s")) as made:
        server = FakeMx(answers={"RCPT early@later.test": [b"451 4.3.0 later\r\n", b"250 2.1.5 ok\r\n"]})
        await made.domain("later.test", server)
        early = await made.send("early@later.test")
        await made.tried(early)
        made.running.kill()
        assert made.recipient(early).status == "deferred"
        written_by_a_clock_ahead(made)
        await made.start()
        await made.final(await made.send("new@later.test"))
        await made.final(early, within=10)
        assert made.status(early) == "delivered"
        assert made.credits() == CREDITS - 2
