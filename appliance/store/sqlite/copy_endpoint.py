"""A database file as the source or the target of a copy, and the tables of the schema."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from graphlib import TopologicalSorter
from pathlib import Path

import apsw

from appliance.model.database import UNFINISHED_COPY
from appliance.store.copying import NotCopied, Table, check_source
from appliance.store.engine import Bindings, Row, Tx
from appliance.store.sqlite.connection import Connection, open_fixed, open_reader, open_writer
from appliance.store.sqlite.integrity import schema_of
from appliance.store.sqlite.migrate import has_table, migrate, newest_known

# Tables of one database only; running servers publish the last two.
NOT_COPIED = {"migrations", "pool_states", "smtp_sessions"}

_KINDS = {"TEXT": "", "INTEGER": "i", "BLOB": "b"}
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"


def tables() -> list[Table]:
    """All tables to copy, each after those that it references."""
    with closing(Connection(":memory:")) as new:
        migrate(new, 0)
        names = [str(name) for (name,) in new.execute(_TABLES) if name not in NOT_COPIED]
        parents = {name: [row[2] for row in new.execute(f"PRAGMA foreign_key_list({name})")] for name in names}
        return [_table(new, name) for name in TopologicalSorter(parents).static_order()]


def _table(connection: Connection, name: str) -> Table:
    selected: list[Row] = connection.execute(f"PRAGMA table_info({name})").fetchall()
    key = sorted((place, column) for _, column, _, _, _, place in selected if place)
    return Table(
        name,
        columns=tuple(column for _, column, *_ in selected),
        kinds=tuple(_KINDS[kind] for _, _, kind, *_ in selected),
        key=tuple(column for _, column in key),
    )


@contextmanager
def source(path: Path) -> Iterator["SqliteEndpoint"]:
    """A file to read, locked against writers."""
    with _told(path):
        connection = open_fixed(path)
    with closing(SqliteEndpoint(path, connection)) as side:
        check_source(side)
        yield side


@contextmanager
def target(path: Path) -> Iterator["SqliteEndpoint"]:
    """A file that exists, or that `create` makes."""
    with _told(path):
        is_there = path.exists() and path.stat().st_size
        connection = open_reader(path) if is_there else Connection(":memory:")
    with closing(SqliteEndpoint(path, connection)) as side:
        yield side


class SqliteEndpoint:
    has_nul = True

    def __init__(self, path: Path, connection: Connection) -> None:
        self.name, self.newest = str(path), newest_known()
        self._path, self._connection = path, connection

    def schema(self) -> int:
        with _told(self._path):
            schema = schema_of(self._connection)
            if schema == 0 and self._connection.execute(_TABLES).fetchall():
                raise NotCopied(f"{self.name}: it is no database of the appliance")
        return schema

    def has_mark(self) -> bool:
        with _told(self._path):
            return has_table(self._connection, UNFINISHED_COPY)

    def stream(self, sql: str, bindings: Bindings) -> Generator[Row, None, None]:
        with _told(self._path):
            yield from self._connection.execute(sql, bindings)

    def create(self, now: int) -> None:
        self.close()
        with _told(self._path):
            self._connection = open_writer(self._path)
            migrate(self._connection, now)

    def write(self, work: Callable[[Tx], object]) -> None:
        with _told(self._path), self._connection:
            work(self._connection)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except apsw.BusyError as error:
        raise NotCopied(f"{path}: another program is using it: stop that first") from error
    except apsw.Error as error:
        raise NotCopied(f"{path}: {error}") from error
