"""Which engine stores what the started programs of a test accept: the one place that decides.

A database belongs to a data directory. On SQLite it is the file there; on PostgreSQL it is one of a cluster that this
process starts when the first is wanted, made when its directory is first named. Whatever opens a database beside a
running program does so through here.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import apsw

from appliance.environment import Environment
from appliance.store import FILE_NAME, Store, open_store
from appliance.store.engine import Row
from appliance.store.postgresql.connection import connect, run
from appliance.store.postgresql.migrate import migrate
from tests.postgresql_server import PostgresServer, postgresql

BUSY_TIMEOUT = 5_000  # milliseconds


class Kind(Enum):
    """The engines."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


class _Databases:
    """The engine in use, and the PostgreSQL databases of this process."""

    def __init__(self) -> None:
        self.kind = Kind.SQLITE
        self._lock = threading.Lock()
        self._urls: dict[Path, str] = {}
        self._server: PostgresServer | None = None
        self._template = ""
        self._open = ExitStack()

    def url(self, data_dir: Path) -> str:
        with self._lock:
            if data_dir in self._urls:
                assert bool(self._urls[data_dir]) is (self.kind is Kind.POSTGRESQL), "a fixture must depend on `engine`"
                return self._urls[data_dir]
            if self.kind is Kind.SQLITE:
                return self._urls.setdefault(data_dir, "")
            if self._server is None:
                self._server = self._open.enter_context(postgresql(autovacuum="on"))
                url = self._server.new_database()
                with closing(connect(url, "template")) as connection:
                    migrate(connection, 0)
                    self._template = connection.info.dbname
            url = self._urls[data_dir] = self._server.new_database(self._template)
            return url

    def close(self) -> None:
        with self._lock:
            self._urls.clear()
            self._server = None
            self._open.close()


_DATABASES = _Databases()


def use(kind: Kind) -> None:
    """Let programs that are started from now on have this engine."""
    _DATABASES.kind = kind


def in_use() -> Kind:
    return _DATABASES.kind


def close() -> None:
    _DATABASES.close()


def url_of(data_dir: Path) -> str:
    """Where the database of a data directory is; empty on SQLite."""
    return _DATABASES.url(data_dir)


def settings_of(data_dir: Path) -> str:
    url = url_of(data_dir)
    return f'[store]\nurl = "{url}"\n' if url else ""


def beside(data_dir: Path, env: Environment | None = None) -> AbstractAsyncContextManager[Store]:
    """The store of a data directory, opened whether or not a server runs on it."""
    return open_store(data_dir, env or Environment(), url=url_of(data_dir), inline=True)


def rows(data_dir: Path, query: str, *bindings: Any) -> list[Row]:
    """What one statement finds or changes, read beside a running program; `?` marks a binding."""
    url = url_of(data_dir)
    if url:
        with closing(connect(url, "test")) as connection:
            return run(connection, query.replace("%", "%%").replace("?", "%s"), bindings)
    with _file(data_dir) as file:
        return file.execute(query, bindings).fetchall()


def check(data_dir: Path) -> None:
    """Whether nothing in the file is damaged; a PostgreSQL looks after its own."""
    if not url_of(data_dir):
        assert rows(data_dir, "PRAGMA integrity_check") == [("ok",)]


@contextmanager
def no_writes(data_dir: Path) -> Iterator[None]:
    """Another process in the middle of a write: whatever is to be stored meanwhile waits, and what is there is read."""
    url = url_of(data_dir)
    if url:
        with closing(connect(url, "test")) as connection, connection.transaction():
            tables = """SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
                AND relnamespace = current_schema()::regnamespace"""
            names = ", ".join(name for (name,) in run(connection, tables))
            run(connection, "SET LOCAL idle_in_transaction_session_timeout = 0")
            run(connection, f"LOCK TABLE {names} IN EXCLUSIVE MODE")
            yield
        return
    with _file(data_dir) as file:
        file.execute("BEGIN IMMEDIATE")
        yield
        file.execute("ROLLBACK")


@contextmanager
def _file(data_dir: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(data_dir / FILE_NAME), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # the files of a dead program are left as they are
        yield connection
    finally:
        connection.close()
