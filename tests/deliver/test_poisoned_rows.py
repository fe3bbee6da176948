"""A stored value that this version cannot parse stops no other mail."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.deliver.simulated_delivery import domain_zone, one, stage
from tests.fakes.mx import FakeMx

POISON = "UPDATE recipients SET address = 'no address' WHERE message_id = :id AND address LIKE 'bob@%'"


async def test_an_unreadable_address_delays_no_other_recipient(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        mixed = await played.send("ada@a.test", "bob@a.test", "cy@a.test", delay=5)
        other = await played.send("dan@a.test", delay=5)
        await played.change(POISON, id=mixed)
        await played.final(other, within=30)

        async def states() -> list[tuple[object, ...]]:
            query = "SELECT address, status, attempt_count FROM recipients WHERE message_id = :id ORDER BY address"
            return await played.rows(query, id=mixed)

        expected = [("ada@a.test", "delivered", 1), ("cy@a.test", "delivered", 1), ("no address", "deferred", 1)]
        await played.until(states, lambda rows: rows == expected, within=100)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "recipient deferred: stored address cannot be read"
    ]
    assert sorted(address for message in server.messages for address in message.recipients) == [
        "ada@a.test",
        "cy@a.test",
        "dan@a.test",
    ]


async def test_an_unreadable_address_can_bounce(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its domain has no mail server: the recipient bounces without a suppression, and other mail goes on."""
    zone, addresses = domain_zone("good.test")
    zone["null.test"] = {"MX": ["0 ."]}
    async with stage(tmp_path, zone, {addresses["good.test"]: FakeMx()}) as played:
        bad = await played.send("bob@null.test", delay=5)
        good = await played.send("ada@good.test", delay=5)
        await played.change(POISON, id=bad)
        await played.final(bad, good, within=30)
        assert await played.recipient(bad) == ("bounced", 1)
        assert await played.recipient(good) == ("delivered", 1)


async def test_an_unreadable_sender_is_delivered(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        message = await played.send("ada@a.test", delay=5)
        await played.change("UPDATE messages SET sender = '<<>>' WHERE id = :id", id=message)
        await played.final(message, within=30)
    assert len(server.messages) == 1
