"""The queue is on disk: a restart in the middle of a schedule goes on where it was."""

from pathlib import Path

from tests.e2e.delivery.world import delays, said, world
from tests.fakes.mx import FakeMx


async def test_a_restart_continues_the_schedule(tmp_path: Path) -> None:
    """Deferred before a SIGTERM and again before a kill: the third attempt delivers, signed as at first."""
    async with world(tmp_path, delays("3s", "3s")) as made:
        later = b"451 4.3.0 later\r\n"
        server = FakeMx(answers={".": [later, later, b"250 2.0.0 queued\r\n"]})
        await made.domain("later.test", server)
        message = await made.send("ada@later.test")
        await made.tried(message)
        ((signature,),) = made.rows("SELECT signature FROM message_bodies WHERE message_id = ?", message)
        due = made.recipient(message).next_attempt_at
        assert await made.terminate() == 0
        await made.start()
        assert made.recipient(message).next_attempt_at == due
        await made.until(lambda: made.recipient(message).attempts == 2)
        made.running.kill()
        await made.start()
        await made.final(message)
        assert said(made.attempts(message)) == [(451, "deferred"), (451, "deferred"), (250, "delivered")]
        assert server.messages[0].data.startswith(signature)
        assert made.events(message) == ["email.delivered"]
