"""A restored installation holds everything until an operator lets it go, and says so wherever one looks."""

from pathlib import Path

import pytest
import trio

from tests.e2e.delivery.test_the_shell_steers_a_running_server import SOON, shell
from tests.e2e.delivery.world import world
from tests.fakes.mx import FakeMx

pytestmark = pytest.mark.sqlite_only


async def test_a_restored_backup_sends_nothing_until_resumed(tmp_path: Path) -> None:
    """Neither what was due then nor what is accepted since is sent; after `resume` each goes once."""
    async with world(tmp_path) as made:
        server = FakeMx()
        await made.domain("shop.test", server)
        await made.final(await made.send("first@shop.test"))
        await shell(made, "pause", "--reason", "a backup")
        await trio.sleep(1.2)  # until the server has seen it
        waiting = await made.send("waiting@shop.test")
        file = str(tmp_path / "backup.tar")
        await shell(made, "backup", file)
        assert len(server.messages) == 1
        await shell(made, "resume")
        await made.final(waiting, within=SOON)
        assert await made.terminate() == 0

        restored = await shell(made, "restore", file, "--force")
        assert (restored["due"], restored["deferred"]) == (1, 0)
        await made.start()
        fresh = await made.send("fresh@shop.test")
        await trio.sleep(1.5)
        assert len(server.messages) == 2
        assert {made.recipient(each).attempts for each in (waiting, fresh)} == {0}
        assert (await shell(made, "queue"))["paused"]["reason"].startswith("restored from a backup of ")
        (told,) = (await shell(made, "explain", fresh))["recipients"]
        assert told["explanation"].startswith("waiting: all mail is paused: ")
        paused = [line for line in made.complaints() if line["event"].startswith("delivery paused")]
        assert len(paused) == 2  # once in each life of the server

        await shell(made, "resume")
        await made.final(waiting, fresh, within=SOON)
        assert len(server.messages) == 4  # the one that had been sent since is sent again: that is what was asked for
        await made.logged('"event": "delivery resumed"')
