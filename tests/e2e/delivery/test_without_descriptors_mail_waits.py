"""A process out of file descriptors: mail waits, no attempt is used up, and one line of the log tells why."""

import os
import resource
from pathlib import Path

import trio

from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx, wait_and_say

MESSAGES = 60


def descriptors(made: World) -> int:
    """How many the program has open."""
    assert made.running.process is not None
    return len(os.listdir(f"/proc/{made.running.process.pid}/fd"))


def limit(made: World, count: int) -> None:
    """Let the program have so many descriptors at most."""
    assert made.running.process is not None
    resource.prlimit(made.running.process.pid, resource.RLIMIT_NOFILE, (count, 20_000))


async def test_mail_waits_for_descriptors(tmp_path: Path) -> None:
    """With none left nothing is tried; with a few, mail goes in a few sessions; each message has one attempt."""
    async with world(tmp_path) as made:
        server = FakeMx(answers={"greeting": wait_and_say(0.2, b"220 hello\r\n")})
        address = await made.host("mx.test", server.serve)
        for number in range(MESSAGES):
            made.publish(f"d{number}.test", MX=[f"10 mx.d{number}.test."])
            made.publish(f"mx.d{number}.test", A=[address])
        await made.final(await made.send("ada@d0.test"))  # so that all that is opened once is open
        open_now = descriptors(made)
        limit(made, open_now + 3)  # enough for a request, too few for its mail
        sent = [await made.send(f"eve@d{number}.test") for number in range(MESSAGES)]
        await trio.sleep(3)
        limit(made, open_now + 12)
        await made.final(*sent, within=60)
        limit(made, 20_000)
        assert {made.recipient(each).status for each in sent} == {"delivered"}
        assert made.rows("SELECT count(*) FROM attempts") == [(1 + MESSAGES,)]
        told = [each["event"] for each in made.complaints() if each["logger"].endswith("deliver")]
        assert told == ["delivery paused: out of local resources"]
        assert not [each for each in made.complaints() if "traceback" in each]
