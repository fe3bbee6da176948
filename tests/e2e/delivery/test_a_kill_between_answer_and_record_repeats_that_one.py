"""The server has said 250 and we have not written it down: that one delivery is repeated, and no other."""

from pathlib import Path

import trio

from tests import engines
from tests.e2e.delivery.telling import polled, polled_recipient
from tests.e2e.delivery.witness import Witness
from tests.e2e.delivery.world import CREDITS, delays, world

EARLIER = 5


async def test_a_kill_between_answer_and_record_repeats_that_one(tmp_path: Path) -> None:
    """Killed there, it delivers that message once more, with the same Message-ID, and what was recorded never again."""
    answered = trio.Event()
    answered.set()

    async def wait() -> None:
        await answered.wait()

    server = Witness(wait)
    async with world(tmp_path, delays("1h")) as made:
        await made.host("mx0.slow.test", server.serve)
        made.publish("slow.test", MX=["10 mx0.slow.test."])
        earlier = [await made.send(f"user{number}@slow.test") for number in range(EARLIER)]
        await made.final(*earlier)
        answered = trio.Event()
        unlucky = await made.send("unlucky@slow.test", text=".\nOnce or twice.\n")
        await made.until(lambda: any(each.data for each in server.open))
        with engines.no_writes(made.running.data_dir):
            answered.set()
            await made.until(lambda: not server.open)
            await trio.sleep(0.3)  # for the program to hear it: there is nothing from which one could see that
            made.running.kill()
        assert (made.recipient(unlucky).status, made.recipient(unlucky).attempts) == ("queued", 0)
        await made.start()
        await made.final(unlucky)
        first, second = (each for each in server.taken if each.recipients == ("unlucky@slow.test",))
        assert first.answered_at is not None
        assert first.message_id == second.message_id
        assert first.unsigned == second.unsigned
        assert first.data.endswith(b"\r\n\r\n.\r\nOnce or twice.\r\n")
        assert len(server.transactions) == EARLIER + 2
        assert (await polled(made, unlucky))["status"] == "delivered"
        assert (await polled_recipient(made, unlucky))["attempt_count"] == 1
        assert made.events(unlucky) == ["email.delivered"]
        assert made.credits() == CREDITS - EARLIER - 1
