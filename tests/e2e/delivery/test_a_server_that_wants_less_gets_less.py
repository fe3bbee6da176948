"""421 and 4.7.x: the pool slows down, which costs only the recipient that was answered an attempt."""

from pathlib import Path

import pytest

from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx

MESSAGES = 30


@pytest.mark.parametrize("answer", [b"421 4.7.0 Too fast, slow down\r\n", b"450 4.7.28 Rate limited\r\n"])
async def test_a_server_that_wants_less_gets_less(tmp_path: Path, answer: bytes) -> None:
    """One session at a time, one 421: one attempt is used, all others wait unchanged, and the shell can tell why."""
    async with world(tmp_path, delays("1h"), "[delivery.pools.default]", "concurrency = 1") as made:
        server = FakeMx(answers={"MAIL": answer})
        await made.domain("slow.test", server)
        sent = [await made.send(f"user{number}@slow.test") for number in range(MESSAGES)]
        await made.until(lambda: bool(made.rows("SELECT 1 FROM pool_states WHERE slowed_by IS NOT NULL")))
        others, elsewhere = FakeMx(), "ada@quick.test"
        await made.domain("quick.test", others)
        await made.final(await made.send(elsewhere))  # no other mail is kept waiting
        found = [made.recipient(message) for message in sent]
        assert [each.status for each in found].count("deferred") == 1
        assert [each.attempts for each in found].count(0) == MESSAGES - 1
        assert all(made.events(message) == [] for message in sent)
        ((slots, reason),) = made.rows("SELECT allowed, slowed_by FROM pool_states WHERE pool = 'slow.test'")
        assert slots == 1
        assert reason == answer.decode().strip()
        assert sum(command.startswith("MAIL") for command in server.commands) == 1
