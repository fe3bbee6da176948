"""A PostgreSQL of the tests' own: Debian's programs, a cluster in a temporary directory, reached by a socket there."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

from tests.programs import find

USER = "postgres"  # the programs refuse to run as root
STANDBY_WITHIN = 60.0  # seconds until a standby follows its primary


def _as_user(*command: str) -> list[str]:
    return ["runuser", "-u", USER, "--", *command] if os.geteuid() == 0 else list(command)


@dataclass(slots=True)
class PostgresServer:
    """A cluster that can be started, stopped, and killed."""

    directory: Path
    programs: Path
    settings: dict[str, str] = field(default_factory=dict)  # empty: as PostgreSQL has it by itself
    _numbers: Iterator[int] = field(default_factory=count)

    def url(self, database: str = "postgres") -> str:
        port = f"&port={self.settings['port']}" if "port" in self.settings else ""
        return f"postgresql:///{database}?host={self.directory}&user={USER}{port}"

    def create(self) -> None:
        self._run("initdb", "-D", str(self.directory / "data"), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")

    def follow(self, primary: "PostgresServer") -> None:
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self._run("pg_basebackup", "-D", str(self.directory / "data"), "-d", primary.url(), *options)

    def start(self) -> None:
        settings = {
            "listen_addresses": "''",
            "unix_socket_directories": f"'{self.directory}'",
            "max_connections": "200",
            "fsync": "off",
            "autovacuum": "off",  # it would change what `Engine.version` tells
            "dynamic_shared_memory_type": "mmap",  # in its directory, so that nothing stays of one that was killed
        } | self.settings
        options = " ".join(f"-c {name}={value}" for name, value in settings.items() if value)
        self._run(
            "pg_ctl",
            "-D",
            str(self.directory / "data"),
            "-l",
            str(self.directory / "log"),
            "-w",
            "-o",
            options,
            "start",
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it; `immediate` is as a crash."""
        self._control("-m", mode, "stop")

    def kill(self) -> None:
        """`kill -9` of all its processes, as if its machine were lost."""
        file = self.directory / "data" / "postmaster.pid"
        lines = file.read_text().splitlines()
        main, (_, memory) = int(lines[0]), lines[6].split()
        os.kill(main, signal.SIGSTOP)  # so that it starts no more of them
        for child in Path(f"/proc/{main}/task/{main}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        os.kill(main, signal.SIGKILL)
        file.unlink()
        subprocess.run(_as_user("ipcrm", "-m", memory), check=True)  # what it would have removed itself

    def is_running(self) -> bool:
        return (self.directory / "data" / "postmaster.pid").exists()

    def promote(self) -> None:
        self._control("promote")

    def new_database(self, template: str = "template1") -> str:
        """The URL of a new database, a copy of another one of this name."""
        name = f"test{next(self._numbers)}_{os.getpid()}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-w", *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        command = _as_user(str(self.programs / program), *arguments)
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/")
        assert ended.returncode == 0, ended.stdout + ended.stderr


_EMPTY = """DO $$ DECLARE name text; BEGIN
    SET LOCAL session_replication_role = replica;  -- no foreign keys
    FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
            AND NOT relispartition AND relname <> 'migrations' LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
END $$"""


def empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_EMPTY)


@contextmanager
def postgresql(**settings: str) -> Iterator[PostgresServer]:
    with _running(PostgresServer.create, settings) as server:
        yield server


@contextmanager
def standby(primary: PostgresServer, **settings: str) -> Iterator[PostgresServer]:
    """A running standby, without which the primary acknowledges no commit from now on; gone afterwards."""
    with _running(lambda server: server.follow(primary), settings) as server:
        with psycopg.connect(primary.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + STANDBY_WITHIN
            while connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() != [("sync",)]:
                assert time.monotonic() < deadline, (server.directory / "log").read_text()
                time.sleep(0.05)
        yield server


@contextmanager
def _running(make: Callable[[PostgresServer], None], settings: dict[str, str]) -> Iterator[PostgresServer]:
    initdb = find("postgresql")
    assert initdb is not None
    directory = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))
    directory.chmod(0o755)
    try:
        if os.geteuid() == 0:
            shutil.chown(directory, USER)
        server = PostgresServer(directory, Path(initdb).parent, settings)
        make(server)
        server.start()
        try:
            yield server
        finally:
            if server.is_running():
                server.stop("immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
