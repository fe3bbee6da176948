"""A PostgreSQL database as the source or the target of a copy."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
from psycopg import errors

from appliance.model.database import UNFINISHED_COPY, DatabaseRefused
from appliance.store.copying import NotCopied, Table, check_source
from appliance.store.engine import Bindings, Row, Tx
from appliance.store.postgresql.connection import DATABASE_CLIENT, PostgresTx, connect, run, statement
from appliance.store.postgresql.migrate import check, has_table, migrate, newest_known, state

NAME = f"{DATABASE_CLIENT} copy"
PATIENCE = 5.0  # seconds until the connections of a program that was killed must have ended

# No timeouts: statements read all rows, and between them the other database works.
_UNHURRIED = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET enable_seqscan = on"
_OTHERS = f"""SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND application_name LIKE '{DATABASE_CLIENT}%%'"""


@contextmanager
def source(url: str, tables: list[Table]) -> Iterator["PostgresEndpoint"]:
    """A database to read, with its tables locked against others."""
    with _opened(url) as side:
        side.refuse_others()
        check_source(side)
        side.keep(tables)
        yield side


@contextmanager
def target(url: str) -> Iterator["PostgresEndpoint"]:
    """A database that `create` fills, or that has the schema; analyzed at the end."""
    with _opened(url) as side:
        side.refuse_others()
        yield side
        side.analyze()


@contextmanager
def _opened(url: str) -> Iterator["PostgresEndpoint"]:
    try:
        connection = connect(url, name=NAME)
    except psycopg.Error as error:
        raise NotCopied(f"the database cannot be used: {_text(error)}") from error
    with closing(connection):
        yield PostgresEndpoint(connection)


class PostgresEndpoint:
    has_nul = False

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self.name = f"the database {connection.info.dbname} on {connection.info.host}"
        self.newest = newest_known()
        with _told(self.name):
            connection.execute(_UNHURRIED)

    def refuse_others(self) -> None:
        deadline = time.monotonic() + PATIENCE
        with _told(self.name):
            while run(self._connection, _OTHERS) != [(0,)]:
                if time.monotonic() > deadline:
                    raise NotCopied(f"{self.name}: a server, or another copy, is connected to it: stop that first")
                time.sleep(0.1)

    def keep(self, tables: list[Table]) -> None:
        """Lock the tables against all other connections: a server would send the mail that it reads there."""
        names = ", ".join(table.name for table in tables)
        with _told(self.name):
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._connection.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE".encode())

    def schema(self) -> int:
        with _told(self.name):
            check(self._connection)
            return state(self._connection)[0] if has_table(self._connection, "migrations") else 0

    def has_mark(self) -> bool:
        with _told(self.name):
            return has_table(self._connection, UNFINISHED_COPY)

    def stream(self, sql: str, bindings: Bindings) -> Generator[Row, None, None]:
        with _told(self.name), self._connection.cursor() as cursor:
            yield from cursor.stream(statement(sql), bindings, binary=True)

    def create(self, now: int) -> None:
        with _told(self.name):
            migrate(self._connection, now, copying=True)

    def write(self, work: Callable[[Tx], object]) -> None:
        with _told(self.name), self._connection.transaction():
            work(PostgresTx(self._connection))

    def analyze(self) -> None:
        """Update the planner's statistics for the first queries."""
        with suppress(psycopg.Error):  # the rows are copied anyway, and the database analyzes tables later
            self._connection.execute("ANALYZE")


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except DatabaseRefused as refused:
        raise NotCopied(f"{name}: {refused}") from refused
    except errors.LockNotAvailable as error:
        raise NotCopied(f"{name}: another program is using it: stop that first") from error
    except psycopg.OperationalError as error:
        raise NotCopied(f"{name}: {_text(error)}; run the same command again to continue") from error
    except psycopg.Error as error:
        raise NotCopied(f"{name}: {_text(error)}") from error


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
