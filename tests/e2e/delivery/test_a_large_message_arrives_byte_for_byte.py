"""A message that is stored in parts is delivered as it was sent, also after a kill."""

from pathlib import Path

from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx

TEXT = "".join(f".{number:069d}\n" for number in range(130_000))  # 9.2 MB; each line begins with a dot


async def test_a_large_message_arrives_byte_for_byte(tmp_path: Path) -> None:
    """Deferred, read again after a kill, and then what the server gets is what is stored, with every line of it."""
    async with world(tmp_path, delays("2s")) as made:
        server = FakeMx(answers={".": [b"451 4.3.0 later\r\n", b"250 2.0.0 queued\r\n"]})
        await made.domain("later.test", server)
        message = await made.send("ada@later.test", text=TEXT)
        await made.tried(message)
        ((parts,),) = made.rows("SELECT count(*) FROM message_body_parts WHERE message_id = ?", message)
        assert parts > 10
        made.running.kill()
        await made.start()
        await made.final(message)
        assert made.status(message) == "delivered"
        ((head, signature),) = made.rows("SELECT mime, signature FROM message_bodies WHERE message_id = ?", message)
        rest = made.rows("SELECT content FROM message_body_parts WHERE message_id = ? ORDER BY number", message)
        stored = b"".join([head, *(content for (content,) in rest)])
        assert TEXT.replace("\n", "\r\n").encode() in stored
        assert server.messages[-1].data == signature + stored
