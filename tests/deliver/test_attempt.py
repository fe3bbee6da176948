"""An attempt at an envelope with a recipient whose stored address this version cannot read."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.deliver.simulated_delivery import one, stage
from tests.fakes.mx import FakeMx


async def test_an_unreadable_address_defers_its_recipient_alone(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other recipients of the message are delivered, and the log has one line without a traceback."""
    server = FakeMx()
    async with stage(tmp_path, *one(server), running=False) as played:
        await played.send("ada@a.test", "bob@a.test")
        await played.change("UPDATE recipients SET address = 'bob@@a.test' WHERE address = 'bob@a.test'")
        played.nursery.start_soon(played.scheduler.run)
        query = "SELECT address, status, attempt_count FROM recipients ORDER BY address"
        expected = [("ada@a.test", "delivered", 1), ("bob@@a.test", "deferred", 1)]
        await played.until(lambda: played.rows(query), lambda rows: rows == expected, within=30)
        (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert line.message == "recipient deferred: stored address cannot be read"
        assert len(server.messages) == 1
