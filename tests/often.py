"""The real program, started often: one process reads all the code, and forks a server whenever one is wanted.

Reading the code is most of what a start costs, and thirty starts of it are a minute and a half.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from tests.running import Running

# For each line, a configuration: forks a server for it, and tells when the one before has ended.
PARENT = """
import os, sys
import appliance.first_start, appliance.supervisor  # what the command reads when it is run
from appliance.cli import main
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "start":
        config, log = rest.split("|")
        child = os.fork()
        if not child:
            output = os.open(log, os.O_WRONLY | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            main(["serve", "--config", config])
            os._exit(0)
        print(child, flush=True)
    else:
        os.waitpid(child, 0)
        print("ended", flush=True)
"""


@dataclass
class Often(Running):
    """A server whose starts are forks."""

    parent: subprocess.Popen[str] | None = None
    server: int = 0

    def spawn(self, log: IO[bytes]) -> None:
        """Fork one."""
        self.server = int(self._ask(f"start {self.config_file}|{self.log_file}"))

    def is_alive(self) -> bool:
        """Whether it has not been killed; one that fails by itself is found out by its silence."""
        return self.server != 0

    def kill(self) -> None:
        """`kill -9`, if it still runs."""
        if self.server:
            os.kill(self.server, signal.SIGKILL)
            assert self._ask("wait") == "ended"
            self.server = 0

    def _ask(self, line: str) -> str:
        assert self.parent is not None
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        print(line, file=self.parent.stdin, flush=True)
        return self.parent.stdout.readline().strip()


@contextmanager
def often_started(running: Running) -> Iterator[Often]:
    """The same appliance, which must not run now, to be started and killed again and again."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=running.directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **running.environment},
        text=True,
    ) as parent:
        often = Often(**{field.name: getattr(running, field.name) for field in fields(Running)}, parent=parent)
        try:
            yield often
        finally:
            often.kill()
