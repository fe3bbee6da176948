"""Upgrades a database file: keeps a copy of it, tries the new steps on another copy, then applies them.

The whole upgrade holds the write lock, so no message accepted meanwhile can get lost. A failure leaves the database
unchanged.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import apsw
from msgspec.structs import replace

from appliance.model.database import (
    UNFINISHED_COPY,
    NewerDatabase,
    NoDatabase,
    OlderDatabase,
    PendingUpgrade,
    UnfinishedCopy,
)
from appliance.store.installation import last_start
from appliance.store.sqlite.connection import Connection, open_reader, open_writer
from appliance.store.sqlite.faults import Damaged
from appliance.store.sqlite.file_care import copy_beside
from appliance.store.sqlite.integrity import check, refuse_damaged, schema_of
from appliance.store.sqlite.migrate import has_table, migrate, newest_known, steps_after
from appliance.system.data_directory import AlreadyRunning, only_server
from appliance.telemetry.log import get_logger

START_CHECK = 1.0  # seconds a start may search for damage; a large database is not checked to its end
_SCHEMA = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_SIDE_FILES = ("", "-wal", "-shm")

log = get_logger("store")


class UpgradeRefused(Exception):
    """The database could not be upgraded and is unchanged; the text says why."""


def bring_up_to_date(path: Path, now: int, *, is_server: bool, may_upgrade: bool = True) -> None:
    """Apply missing steps; a command only while no server runs. Without `may_upgrade` raise instead."""
    with ExitStack() as until_done:

        def before(schema: int) -> None:
            if not is_server:
                try:
                    until_done.enter_context(only_server(path.parent))
                except AlreadyRunning:
                    why = "it is of an earlier version, and a server of that version runs on it"
                    raise UpgradeRefused(f"{why}: stop it, then start this one") from None
            rehearse(path, schema, now)

        connection = open_writer(path)
        until_done.callback(connection.close)
        if not may_upgrade and (results := schema_of(connection)) < newest_known():
            raise OlderDatabase(results, newest_known()) if results else NoDatabase
        if is_server:
            refuse_damaged(connection, START_CHECK)
        if has_table(connection, UNFINISHED_COPY):
            raise UnfinishedCopy
        migrate(connection, now, before)


def pending_upgrade(path: Path) -> PendingUpgrade:
    """What the next start would change. Raises NewerDatabase."""
    with closing(open_reader(path)) as connection:
        schema, newest = schema_of(connection), newest_known()
        if schema > newest:
            raise NewerDatabase(schema, newest)
        steps = steps_after(schema)
        started = last_start(connection) if has_table(connection, "installation") else None
    changes = PendingUpgrade(schema=schema, newest=newest, steps=steps, last_start=started)
    if not (schema and steps):
        return changes
    return replace(changes, kept=str(kept_file(path, schema)), space=_space_needed(path))


def rehearse(path: Path, schema: int, now: int) -> None:
    """Keep a copy of the database and apply the steps to another copy. Raises UpgradeRefused if they fail."""
    kept = kept_file(path, schema)
    needed, free = _space_needed(path), shutil.disk_usage(path.parent).free
    if free < needed:
        text = f"the upgrade keeps the old database and tries the new one on a copy: that takes {needed >> 20} MiB"
        raise UpgradeRefused(f"{text}, and {path.parent} has {free >> 20} MiB free")
    log.info("the database is upgraded; its old form is kept", schema=schema, kept=str(kept))
    with _gone_afterwards(path.with_name(f"{path.name}.unfinished")) as unfinished:
        copy_beside(path, unfinished)
        with closing(open_writer(unfinished)) as connection:
            _examine(connection, "before the upgrade")
        unfinished.replace(kept)
    with _gone_afterwards(path.with_name(f"{path.name}.rehearsal")) as rehearsal:
        copy_beside(path, rehearsal)
        with closing(open_writer(rehearsal)) as connection:
            try:
                migrate(connection, now)
            except apsw.Error as error:
                raise UpgradeRefused(f"a copy of the database could not be upgraded: {error}") from error
            _examine(connection, "after the upgrade of a copy")
            _compare_schema(connection)


def kept_file(path: Path, schema: int) -> Path:
    return path.with_name(f"{path.name}.schema-{schema}")


def _space_needed(path: Path) -> int:
    return 2 * path.stat().st_size


def _examine(connection: Connection, when: str) -> None:
    try:
        check(connection)
    except Damaged as error:
        raise UpgradeRefused(f"{when}: {error}") from error


def _compare_schema(connection: Connection) -> None:
    """Raise UpgradeRefused unless the copy has the schema of a new database; extra objects do no harm."""
    with closing(Connection(":memory:")) as new:
        migrate(new, 0)
        results, bindings = _definitions(connection), _definitions(new)
    if wrong := sorted(name for name, sql in bindings.items() if results.get(name) != sql):
        raise UpgradeRefused(
            f"it would not have this version's schema after the upgrade ({', '.join(wrong)}): an early version made "
            "it, whose steps were changed later. It is as it was. Run the version that made it, or move it away to "
            "start with an empty one"
        )


def _definitions(connection: Connection) -> dict[str, str]:
    bare = {}
    for name, sql in connection.execute(_SCHEMA):
        lines = " ".join(line.partition("--")[0] for line in str(sql).splitlines())
        bare[str(name)] = " ".join(re.sub(r"([(),])", r" \1 ", lines).split())
    return bare


@contextmanager
def _gone_afterwards(path: Path) -> Iterator[Path]:
    files = [path.with_name(path.name + end) for end in _SIDE_FILES]
    for file in files:
        file.unlink(missing_ok=True)
    try:
        yield path
    finally:
        for file in files:
            file.unlink(missing_ok=True)
