"""`appliance send-test --wait` beside a running server tells what the mail server said."""

import json
import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import trio

from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx
from tests.fork_client import fork
from tests.running_appliance import Running, appliance, command, ran
from tests.terminal import open_terminal

LATER = b"451 4.7.1 Greylisted\r\n"


def sent(running: Running, to: str) -> tuple[int, dict[str, Any]]:
    # Less than the minute that the sandbox would sleep.
    words = ("send-test", "demo", "--to", to, "--wait", "--timeout", "45", "--json")
    code, output, _ = ran(running.config_file, *words)
    return code, json.loads(output)


async def test_what_a_mail_server_said_is_told(tmp_path: Path) -> None:
    """A delivery is 0, a deferral 1, each with the server's name and answer."""
    async with world(tmp_path, delays("1h", "1h")) as made:
        await made.domain("good.test", FakeMx())
        await made.domain("grey.test", FakeMx(answers={"RCPT": LATER}))
        code, answer = await trio.to_thread.run_sync(sent, made.running, "ada@good.test")
        assert (code, answer["status"], answer["server_running"]) == (0, "delivered", True)
        assert " to mx0.good.test " in answer["explanation"]
        code, answer = await trio.to_thread.run_sync(sent, made.running, "ada@grey.test")
        assert (code, answer["status"]) == (1, "deferred")
        assert "mx0.grey.test said 451 4.7.1 Greylisted" in answer["explanation"]


def test_a_running_sandbox_takes_it(tmp_path: Path) -> None:
    """What a command has queued is simulated at once, not a minute later."""
    with appliance(tmp_path) as running:
        code, answer = sent(running, "ada@example.net")
        assert (code, answer["status"]) == (0, "delivered")
        code, answer = sent(running, "bounce@example.net")
        assert (code, answer["status"]) == (1, "bounced")


def test_a_terminal_gets_a_line_for_each_step(tmp_path: Path) -> None:
    with appliance(tmp_path) as running:
        command(running.config_file, "pause")
        words = ["send-test", "--to", "ada@example.net", "--wait", "--timeout", "1"]
        ours, theirs = open_terminal()
        with (
            TemporaryFile() as stdout,
            os.fdopen(theirs, "wb", buffering=0) as terminal,
            os.fdopen(ours, "rb") as shown,
        ):
            words += ["--config", str(running.config_file)]
            process = fork(*words, directory=Path.cwd(), environment=os.environ, stdout=stdout, stderr=terminal)
            assert process.wait(150) == 1
            assert b" waiting: all mail is paused" in shown.readline()
            stdout.seek(0)
            assert b"waiting: all mail is paused" in stdout.read()
