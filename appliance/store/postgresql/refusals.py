"""Says in one line why a database cannot be used. The password, which a URL often has, is never in it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from appliance.store.faults import DatabaseRefused
from appliance.store.postgresql.migrate import READ_ONLY

_UNSAID = "***"
NO_URL = (
    'this is no URL of a database, such as "postgresql://appliance:PASSWORD@db.example.com/appliance"; '
    "@, /, % and the like in a password are written as %40, %2F, %25"
)

_WRAPPING = re.compile(r".*All failures were: |connection failed: |connection is bad: ")
_PORTS = re.compile(r"[\d,]*")


@contextmanager
def refusals(url: str) -> Iterator[None]:
    """Turn every error of the database into DatabaseRefused."""
    try:
        yield
    except psycopg.Error as error:
        raise DatabaseRefused(reason(url, error)) from error


def reason(url: str, error: psycopg.Error) -> str:
    """One line: what is wrong, and what to do where that is known."""
    result = _parts(url)
    if result is None:
        return NO_URL
    text = _WRAPPING.sub("", " ".join(str(error).split()))
    if password := result.get("password"):
        text = re.sub(rf"(?<!\w){re.escape(password)}(?!\w)", _UNSAID, text)
    if text.endswith("session is read-only") or isinstance(error, errors.ReadOnlySqlTransaction):
        return READ_ONLY
    if isinstance(error, errors.InsufficientPrivilege):
        return f"{text}: let the user of the URL own the database, or grant it the right to create tables there"
    return f"the database cannot be used: {text}"


def place(url: str) -> str:
    """Where the database is, without user and password."""
    result = _parts(url)
    if result is None:
        return "store.url"
    return f"{result.get('dbname') or result.get('user') or 'database'} at {result.get('host') or 'this machine'}"


def _parts(url: str) -> dict[str, str] | None:
    """The parts of a URL; None if it is none, or if a password was taken for one of them."""
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.Error:
        return None
    misread = "@" in parts.get("host", "") + parts.get("dbname", "") or not _PORTS.fullmatch(parts.get("port", ""))
    return None if misread else parts
