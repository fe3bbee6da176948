"""What an operator does from a shell, the running server obeys within about a second."""

import json
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner

from appliance.cli import main
from tests.e2e.delivery.world import CREDITS, World, delays, world
from tests.fakes.mx import FakeMx

SOON = 5.0  # seconds: about one for the server, the rest for a slow machine


async def shell(made: World, *words: str) -> Any:
    """The JSON answer of a command, which has an event loop and a database connection of its own."""
    command = [*words, "--json", "--config", str(made.running.config_file)]
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, command))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def test_a_retry_is_noticed(tmp_path: Path) -> None:
    """Mail that would be tried in an hour is tried at once, and arrives on its second attempt."""
    async with world(tmp_path, delays("1h")) as made:
        server = FakeMx(answers={"RCPT": [b"451 4.7.1 greylisted\r\n", b"250 2.1.5 ok\r\n"]})
        await made.domain("grey.test", server)
        message = await made.send("ada@grey.test")
        await made.tried(message)
        (recipient,) = (await shell(made, "explain", message))["recipients"]
        assert "because mx0.grey.test said 451 4.7.1 greylisted" in recipient["explanation"]
        assert await shell(made, "queue", "retry", "--domain", "grey.test") == {"retried": 1}
        await made.final(message, within=SOON)
        (recipient,) = (await shell(made, "explain", message))["recipients"]
        assert recipient["explanation"].startswith("delivered at ")
        assert recipient["explanation"].endswith("on attempt 2")


async def test_a_paused_pool_waits_and_what_was_cancelled_never_leaves(tmp_path: Path) -> None:
    """A hold keeps mail back without an attempt; cancelled meanwhile it is not sent once resumed, the rest is."""
    async with world(tmp_path) as made:
        server = FakeMx()
        await made.domain("shop.test", server)
        await made.final(await made.send("first@shop.test"))
        await shell(made, "queue", "pause", "shop.test", "--reason", "they move")
        await trio.sleep(1.2)  # until the server has looked at the holds
        unwanted, wanted = await made.send("unwanted@shop.test"), await made.send("wanted@shop.test")
        await trio.sleep(1.2)
        (recipient,) = (await shell(made, "explain", wanted))["recipients"]
        assert recipient["explanation"] == "waiting: pool shop.test is held: they move"
        (pool,) = (await shell(made, "queue"))["pools"]
        assert (pool["pool"], pool["waiting"], pool["held_because"]) == ("shop.test", 2, "they move")
        assert len(server.messages) == 1
        await shell(made, "queue", "cancel", unwanted)
        assert made.recipient(unwanted).billing == "released"
        await shell(made, "queue", "resume", "shop.test")
        await made.final(wanted, within=SOON)
        await trio.sleep(0.5)
        assert len(server.messages) == 2
        assert (made.recipient(unwanted).status, made.recipient(wanted).attempts) == ("failed", 1)
        assert made.events(unwanted) == ["email.failed"]
        assert made.credits() == CREDITS - 2
