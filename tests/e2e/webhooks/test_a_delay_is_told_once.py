"""A server says "later" for hours: a webhook that named `email.delayed` hears of it once, and then of the end."""

from pathlib import Path

import pytest

from tests.e2e.delivery.world import delays, world
from tests.fakes import webhook_server
from tests.fakes.mx import FakeMx
from tests.set_clock import CLOCK_FILE, set_clock

LATER = b"452 4.2.2 The mailbox is full\r\n"


@pytest.mark.sqlite_only  # its clock goes ahead by hours, and a database server has one of its own
async def test_a_delay_is_told_once(tmp_path: Path) -> None:
    """Not within the first hour; after it once, also when the program is killed and started between the attempts."""
    clock = tmp_path / "clock"
    with webhook_server.hooks(tmp_path) as receiver:
        section = "[webhooks]" + receiver.settings(tmp_path)
        async with world(tmp_path, delays("1h", "1h", "1h", "1h"), section) as made:
            server = FakeMx(answers={"RCPT": LATER})
            await made.domain("full.test", server)
            wanted = {"url": receiver.url("/hook"), "events": ["email.delayed", "email.delivered"]}
            assert (await made.ask("PUT", "/v1/webhook", wanted)).status_code == 200
            message = await made.send("ada@full.test")
            await made.tried(message)
            for attempt, hours in ((2, 2), (3, 4), (4, 6)):
                if attempt == 4:
                    server.answers = {}
                made.running.kill()
                set_clock(clock, hours * 3600)
                made.running.environment[CLOCK_FILE] = str(clock)
                await made.start()
                await made.until(lambda wanted=attempt: made.recipient(message).attempts == wanted)  # type: ignore[misc]
            await made.until(lambda: any(post.json()["type"] == "email.delivered" for post in receiver.at("/hook")))
            told = {
                event["id"]: event for event in (post.json() for post in receiver.at("/hook"))
            }  # a kill may repeat one
            assert sorted(event["type"] for event in told.values()) == ["email.delayed", "email.delivered"]
            delayed, delivered = sorted(told.values(), key=lambda event: str(event["type"]))
            data = delayed["data"]
            assert (data["email_id"], data["to"]) == (message, "ada@full.test")
            assert (data["smtp_code"], data["bounce_class"]) == (452, "mailbox_full")
            assert data["smtp_response"] == "452 4.2.2 The mailbox is full"
            assert "bounce_class" not in delivered["data"]
            assert made.events(message) == ["email.delivered"]
            query = "SELECT count(*) FROM webhook_deliveries WHERE type = 'email.delayed'"
            assert made.rows(query) == [(1,)]
