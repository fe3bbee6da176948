"""A schedule that comes to its end: the recipient has failed, its credit is spent, and the customer is told."""

from pathlib import Path

from tests.e2e.delivery.world import CREDITS, delays, said, world
from tests.fakes.mx import FakeMx


async def test_used_up_retries_fail(tmp_path: Path) -> None:
    """Two delays are three attempts, then email.failed; a recipient that was served meanwhile makes it partial."""
    async with world(tmp_path, delays("1s", "1s")) as made:
        server = FakeMx(answers={"RCPT never@later.test": b"451 4.3.0 later\r\n"})
        await made.domain("later.test", server)
        message = await made.send("never@later.test")
        mixed = await made.send("never@later.test", "ada@later.test")
        await made.final(message, mixed)
        found = made.recipient(message)
        assert (found.status, found.billing, found.attempts, found.code) == ("failed", "settled", 3, 451)
        assert said(made.attempts(message)) == [(451, "deferred"), (451, "deferred"), (451, "failed")]
        assert made.events(message) == ["email.failed"]
        assert made.status(message) == "failed"
        assert made.status(mixed) == "partial"
        assert made.credits() == CREDITS - 3
        assert made.rows("SELECT * FROM suppressions") == []
