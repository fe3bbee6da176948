"""Reads of the database fail (EIO) while a message waits for its retry: the log has lines and no traceback."""

import json
from pathlib import Path

import pytest
import trio

from appliance.store import FILE_NAME
from tests.e2e.delivery.world import delays, world
from tests.e2e.storms.failing_disk import READS, failing
from tests.fakes.mx import FakeMx

pytestmark = pytest.mark.sqlite_only

LARGE = "x" * 5_000_000  # its pages are in the database's own file, and in no cache


async def test_a_failed_read_is_one_line(tmp_path: Path) -> None:
    """SQLite calls the database damaged, so the program ends with 1; a start on a good disk delivers the message."""
    server = FakeMx(answers={"RCPT": [b"450 4.2.1 busy\r\n", b"250 2.1.5 ok\r\n"]})
    async with world(tmp_path, delays("2s")) as made:
        await made.domain("a.test", server)
        sent = await made.send("ada@a.test", text=LARGE)
        with trio.fail_after(30):
            while made.recipient(sent).attempts == 0:  # noqa: ASYNC110 - of another process
                await trio.sleep(0.1)
        with failing(made.running, READS, "EIO", "1+", only=made.running.data_dir / FILE_NAME):
            assert await trio.to_thread.run_sync(made.running.wait) == 1
        events = [json.loads(line) for line in made.running.log_lines()]
        assert [event for event in events if "traceback" in event] == []
        assert "the database is damaged" in events[-1]["event"]
        await trio.to_thread.run_sync(made.running.start)
        await made.final(sent)
        assert [message.recipients for message in server.messages] == [("ada@a.test",)]
