"""5.1.1: the address does not exist, and the account sends to it no more."""

from pathlib import Path

from tests.e2e.delivery.world import CREDITS, delays, world
from tests.fakes.mx import FakeMx


async def test_unknown_users_are_suppressed(tmp_path: Path) -> None:
    """The first message bounces at the server, the next one at once and without a connection; both credits are back."""
    async with world(tmp_path, delays("1h")) as made:
        server = FakeMx(answers={"RCPT Unknown@users.test": b"550 5.1.1 User unknown\r\n"})
        await made.domain("users.test", server)
        first = await made.send("Unknown@users.test")
        await made.final(first)
        found = made.recipient(first)
        assert (found.status, found.code, found.attempts) == ("bounced", 550, 1)
        assert made.rows("SELECT address, reason FROM suppressions") == [
            ("unknown@users.test", "bounced: 550 5.1.1 User unknown")
        ]
        commands = len(server.commands)
        second = await made.send("unknown@USERS.test")
        found = made.recipient(second)
        assert (found.status, found.code, found.attempts) == ("bounced", None, 0)
        assert (found.response or "").startswith("suppressed: ")
        assert made.events(second) == ["email.bounced"]
        assert made.credits() == CREDITS
        assert len([line for line in server.commands[commands:] if line != "QUIT"]) == 0
        third = await made.send("unknown@users.test", "ada@users.test")
        await made.final(third)
        assert made.status(third) == "partial"
        assert made.credits() == CREDITS - 1
