"""In charge of the first account of an installation: all of it in one transaction, or nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from appliance.model import Account, Scope
from appliance.outside import Outside
from appliance.store import FILE_NAME
from appliance.store.access import Access
from appliance.store.accounts import Accounts
from appliance.store.connection import BUSY_TIMEOUT, open_reader
from appliance.store.engine import Engine, T, Work
from appliance.store.sql import first

_ANY_ACCOUNT = "SELECT name FROM accounts ORDER BY created_at LIMIT 1"
_SETTINGS = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT}",
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = FULL",
)


@dataclass(frozen=True, slots=True)
class FirstAccount:
    """An account with one of everything; its secrets are known only now."""

    account: Account
    domain: str
    username: str
    smtp_password: str = field(repr=False)
    key_id: str
    key: str = field(repr=False)


def any_account(data_dir: Path) -> str | None:
    """The name of the oldest account, None when there is none yet. The database must exist."""
    connection = open_reader(data_dir / FILE_NAME)
    try:
        return _any_account(connection)
    finally:
        connection.close()


async def create_first(
    data_dir: Path, outside: Outside, *, name: str, email: str, password_hash: str, domain: str
) -> FirstAccount | None:
    """Create an account with a user, a domain, an SMTP credential and an API key; None when there is an account."""
    path = data_dir / FILE_NAME
    with _transaction(path) as connection:
        if _any_account(connection) is not None:
            return None
        engine = Engine(path, _Joined(connection))
        try:
            accounts, access = Accounts(engine, outside), Access(engine, outside)
            account = await accounts.create(name, email, password_hash)
            await access.add_domain(account.id, domain, usable=True)
            username, password = await access.create_credential(account.id)
            key_id, key = await access.create_key(account.id, scope=Scope.FULL, test=False)
        finally:
            await engine.close()
    return FirstAccount(account, domain, username, password, key_id, key)


def _any_account(connection: apsw.Connection) -> str | None:
    row = first(connection, _ANY_ACCOUNT, {})
    return None if row is None else str(row[0])


class _Joined:
    """A writer whose functions all belong to the transaction that is open already."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def write(self, work: Work[T], *, urgent: bool = False, large: bool = False) -> T:
        """Run `work`; it is on disk once the transaction has been committed."""
        return work(self._connection)

    async def close(self) -> None:
        """Leave the connection to whoever opened it."""


@contextmanager
def _transaction(path: Path) -> Iterator[apsw.Connection]:
    """A connection of its own, beside the running server's: everything inside is committed together at the end.

    Not `open_writer`: that opens and closes the file itself, which in a process that already has the database open
    would drop SQLite's locks on it (POSIX: closing any descriptor of a file ends all of the process's locks).
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        for setting in _SETTINGS:
            connection.execute(setting).fetchall()
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()  # which rolls back what was not committed
