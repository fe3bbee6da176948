"""Greylisting: a server that wants to see a message twice sees it twice."""

from pathlib import Path

import pytest

from tests.e2e.delivery.world import CREDITS, delays, said, world
from tests.fakes.mx import Answer, FakeMx

pytestmark = pytest.mark.both_engines

LATER = b"450 4.2.0 Greylisted, see you in a minute\r\n"
REFUSED = b"451 4.7.1 Greylisting in action, please come back later\r\n"


async def test_greylisted_mail_is_delivered_later(tmp_path: Path) -> None:
    """Deferred by 450 or by 451 4.7.1, then delivered: two attempts, the same bytes, one event, no slowed pool."""
    async with world(tmp_path, delays("1s", "1s")) as made:
        for name, answer in (("one", LATER), ("two", REFUSED)):
            script: list[Answer] = [answer, b"250 2.1.5 ok\r\n"]
            server = FakeMx(answers={"RCPT": script})
            await made.domain(f"{name}.test", server)
            message = await made.send(f"ada@{name}.test")
            await made.tried(message)
            deferred = made.recipient(message)
            assert (deferred.status, deferred.billing) == ("deferred", "reserved")
            assert made.events(message) == []
            assert made.status(message) == "queued"
            await made.final(message)
            assert said(made.attempts(message)) == [(int(answer[:3]), "deferred"), (250, "delivered")]
            assert made.recipient(message).billing == "settled"
            assert made.events(message) == ["email.delivered"]
            assert made.status(message) == "delivered"
            assert len(server.messages) == 1
        assert made.credits() == CREDITS - 2
        assert made.rows("SELECT slowed_by FROM pool_states WHERE slowed_by IS NOT NULL") == []
