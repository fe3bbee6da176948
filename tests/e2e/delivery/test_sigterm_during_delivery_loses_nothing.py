"""SIGTERM while mail is on its way: what is in flight is finished, the rest waits on disk, nothing is sent twice."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import FakeMx, wait_and_say
from tests.running_appliance import STOP_TIMEOUT
from tests.stopwatch import Stopwatch

MESSAGES = 60
SHORT, LONG = 'shutdown_timeout = "3s"', 'shutdown_timeout = "2m"'
LONGEST = 60  # seconds that a stop takes on a busy machine, if it waits for nothing more


async def stop(made: World) -> float:
    process, watch = made.running.process, Stopwatch(made.running.pid)
    assert process is not None
    process.terminate()
    assert await trio.to_thread.run_sync(watch.exit_code, process, STOP_TIMEOUT) == 0
    return watch.taken


async def test_sigterm_during_delivery_loses_nothing(tmp_path: Path) -> None:
    """Stopped with slow answers outstanding, it records those, and a restart delivers the rest: each exactly once."""
    async with world(tmp_path, delays("1s", "1s"), server=LONG) as made:
        server = FakeMx(answers={".": wait_and_say(1.5, b"250 2.0.0 queued\r\n")})
        await made.domain("slow.test", server)
        sent = [await made.send(f"user{number}@slow.test") for number in range(MESSAGES)]
        await made.until(lambda: sum(command == "DATA" for command in server.commands) > 15)
        assert await stop(made) < LONGEST
        in_store = made.rows("SELECT count(*) FROM recipients WHERE status = 'delivered'")[0][0]
        accepted = sum(command == "DATA" for command in server.commands)
        assert in_store == accepted < MESSAGES
        server.answers = {}
        await made.start()
        await made.final(*sent)
        assert sum(command == "DATA" for command in server.commands) == MESSAGES
        assert made.complaints() == []
