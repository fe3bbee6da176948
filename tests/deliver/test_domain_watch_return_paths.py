"""A return path in use is the sender of every recipient's transaction."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from appliance.feedback.return_path import RecipientIds, ReturnPaths, read_address
from tests.deliver.simulated_delivery import INSTALLATION_KEY, Stage, message, one, stage
from tests.fakes.mx import FakeMx

NAME = "bounces.example.com"
LATER = b"451 4.3.0 later\r\n"


async def senders(played: Stage, server: FakeMx) -> dict[str, str]:
    found = [(received.recipients, received.mail.partition(" ")[0].strip("<>")) for received in server.messages]
    assert all(len(recipients) == 1 for recipients, _ in found)
    return {recipients[0].strip("<>"): sender for recipients, sender in found}


async def recipient_of(played: Stage, address: str) -> str:
    read = read_address(address)
    assert read is not None
    assert read.token is not None
    ids = ReturnPaths(INSTALLATION_KEY).check(read.token, NAME, played.env.now())
    assert isinstance(ids, RecipientIds)
    query = "SELECT address FROM recipients WHERE id BETWEEN :first AND :last"
    ((found,),) = await played.rows(query, first=ids.first, last=ids.last)
    return str(found)


async def test_every_recipient_has_a_transaction_and_a_token(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        addresses = [f"{name}@a.test" for name in ("ada", "grace", "linus")]
        sent = await played.send(*addresses)
        await played.final(sent)
        found = await senders(played, server)
        assert {address: await recipient_of(played, sender) for address, sender in found.items()} == {
            address: address for address in addresses
        }
        assert len({received.data for received in server.messages}) == 1
        assert played.signer.signed == 1
        assert await played.rows("SELECT status, envelope_from FROM messages") == [("delivered", "shop@example.com")]
        bodies = await played.rows("SELECT body FROM events")
        assert len(bodies) == 3
        assert all(b'"from":"shop@example.com"' in bytes(body) for (body,) in bodies)


async def test_without_a_return_path_recipients_go_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        await played.final(await played.send("ada@a.test", "grace@a.test"))
    assert [(len(each.recipients), each.mail.partition(" ")[0]) for each in server.messages] == [
        (2, "<shop@example.com>")
    ]


async def test_a_retry_has_the_same_token(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"RCPT": [LATER, b"250 ok\r\n"]})
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        await played.final(await played.send("ada@a.test"))
        said = [line.split()[1] for line in server.commands if line.startswith("MAIL FROM:")]
        assert len(said) == 2
        assert len(set(said)) == 1
        sender = said[0].removeprefix("FROM:").strip("<>")
        assert await recipient_of(played, sender) == "ada@a.test"
        dialogues = await played.rows("SELECT dialogue FROM attempts ORDER BY number")
        assert [sender in dialogue for (dialogue,) in dialogues] == [False, False]
        assert [f"b+\\u2026@{NAME}" in dialogue or f"b+…@{NAME}" in dialogue for (dialogue,) in dialogues] == [
            True,
            True,
        ]


@pytest.mark.parametrize("sender", ["bounce@other.example", "bounce@sub.example.com", ""])
async def test_a_sender_elsewhere_is_kept(tmp_path: Path, autojump_clock: MockClock, sender: str) -> None:
    server = FakeMx()
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        new = message(played.env, played.accounts["demo"], "ada@a.test", "grace@a.test")
        values = {name: getattr(new, name) for name in new.__struct_fields__}
        await played.store.messages.accept(type(new)(**{**values, "envelope_from": sender}))
        played.scheduler.new_mail.request_poll()
        await played.final(new.id)
    assert [(len(each.recipients), each.mail.partition(" ")[0]) for each in server.messages] == [(2, f"<{sender}>")]


async def test_one_refused_recipient_leaves_the_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={"RCPT grace@a.test": b"550 5.1.1 no such user\r\n"})
    async with stage(tmp_path, *one(server)) as played:
        played.signer.return_path = NAME
        sent = await played.send("ada@a.test", "grace@a.test", "linus@a.test")
        await played.final(sent)
        rows = await played.rows("SELECT address, status FROM recipients")
        assert dict(rows) == {"ada@a.test": "delivered", "grace@a.test": "bounced", "linus@a.test": "delivered"}
        assert await played.rows("SELECT status FROM messages") == [("partial",)]
