"""Many recipients of one message at one domain go in one transaction, and each has an outcome of its own."""

from pathlib import Path

from tests.e2e.delivery.world import CREDITS, delays, world
from tests.fakes.mx import FakeMx


async def test_recipients_of_one_message_each_get_their_own_answer(tmp_path: Path) -> None:
    """Accepted, unknown and deferred in one transaction: delivered, bounced and delivered later; message partial."""
    async with world(tmp_path, delays(*["1s"] * 60)) as made:
        script = {
            "RCPT unknown@mixed.test": b"550 5.1.1 No such user\r\n",
            "RCPT later@mixed.test": b"452 4.2.2 Mailbox full\r\n",
        }
        server = FakeMx(answers=script)
        await made.domain("mixed.test", server)
        message = await made.send("ada@mixed.test", "unknown@mixed.test", "bob@mixed.test", "later@mixed.test")
        await made.tried(message)
        found = made.recipients(message)
        assert {address.partition("@")[0]: one.status for address, one in found.items()} == {
            "ada": "delivered",
            "unknown": "bounced",
            "bob": "delivered",
            "later": "deferred",
        }
        assert [got.recipients for got in server.messages] == [("ada@mixed.test", "bob@mixed.test")]
        assert made.status(message) == "queued"
        del script["RCPT later@mixed.test"]
        await made.final(message)
        assert [got.recipients for got in server.messages[1:]] == [("later@mixed.test",)]
        assert server.messages[0].data == server.messages[1].data  # signature and all
        assert made.status(message) == "partial"
        assert made.credits() == CREDITS - 3
        assert sorted(made.events(message)) == ["email.bounced", *["email.delivered"] * 3]
