"""A real PgBouncer of the tests' own, in front of a PostgreSQL of the tests' own."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.ports import free_port
from tests.postgresql_server import USER, PostgresServer
from tests.programs import find

START_TIMEOUT = 20.0  # seconds
CONFIG = """
[databases]
* = host={host} port={server_port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
logfile = {directory}/log
pidfile = {directory}/pid
pool_mode = {mode}

{settings}
"""


@dataclass(slots=True)
class PgBouncer:
    """A pooler that can be started and stopped. Clients connect by TCP, without a password."""

    server: PostgresServer
    directory: Path  # in that of the server, which has the same user
    mode: str
    settings: str = ""
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def url(self, direct_url: str) -> str:
        """The URL of a database through the pooler, by its URL without it."""
        name = direct_url.removeprefix("postgresql:///").partition("?")[0]
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        program = find("pgbouncer")
        assert program is not None
        file = self.directory / "pgbouncer.ini"
        file.write_text(
            CONFIG.format(
                host=self.server.directory,
                server_port=self.server.settings.get("port", "5432"),
                user=USER,
                port=self.port,
                directory=self.directory,
                mode=self.mode,
                settings=self.settings,
            )
        )
        user = ("--user", USER) if os.geteuid() == 0 else ()  # it refuses to run as root
        self.process = subprocess.Popen([program, "--quiet", *user, str(file)], cwd=self.directory)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                psycopg.connect(self.url(self.server.url()), connect_timeout=2).close()
            except psycopg.OperationalError:
                failed = self.process.poll() is not None or time.monotonic() > deadline
                assert not failed, (self.directory / "log").read_text()[-2_000:]
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def pgbouncer(server: PostgresServer, mode: str, settings: str = "") -> Iterator[PgBouncer]:
    directory = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir=server.directory))
    if os.geteuid() == 0:
        shutil.chown(directory, USER)
    pooler = PgBouncer(server, directory, mode, settings)
    try:
        pooler.start()
        yield pooler
    finally:
        pooler.stop()
