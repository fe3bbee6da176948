"""Reads of the database fail (EIO) while messages are being retried: the log has lines and no traceback."""

import json
from pathlib import Path

import pytest
import trio

from appliance.store import FILE_NAME
from tests.e2e.delivery.world import delays, world
from tests.e2e.storms.failing_disk import READS, failing
from tests.fakes.mx import FakeMx

pytestmark = pytest.mark.sqlite_only

MESSAGES = 30  # each retried every second, so that most reads are of messages
LARGE = "x" * 400_000  # all of them together fit in no cache


async def test_a_failed_read_is_one_line(tmp_path: Path) -> None:
    """SQLite calls the database damaged, so the program ends with 1; a start on a good disk delivers the messages."""
    server = FakeMx(answers={"RCPT": b"450 4.2.1 busy\r\n"})
    async with world(tmp_path, delays(*["1s"] * 100)) as made:
        for number in range(MESSAGES):
            await made.domain(f"d{number}.test", server)
        sent = [await made.send(f"ada@d{number}.test", text=LARGE) for number in range(MESSAGES)]
        with trio.fail_after(60):
            while any(made.recipient(each).attempts == 0 for each in sent):  # noqa: ASYNC110 - of another process
                await trio.sleep(0.1)
        with failing(made.running, READS, "EIO", "1+", only=made.running.data_dir / FILE_NAME):
            assert await trio.to_thread.run_sync(made.running.wait) == 1
        events = [json.loads(line) for line in made.running.log_lines()]
        assert [event for event in events if "traceback" in event] == []
        assert "the database is damaged" in events[-1]["event"]
        server.answers = {}
        await trio.to_thread.run_sync(made.running.start)
        await made.final(*sent)
        assert len(server.messages) == MESSAGES
