"""`appliance backup`, `verify` and `restore`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import Parsed, common, flag
from appliance.cli.output import counted, printable, progress_bar, record, show, system_text
from appliance.environment import Environment
from appliance.times import rfc3339

if TYPE_CHECKING:
    from appliance.backup.archive import Verified
    from appliance.backup.restore import Restored


def _file(value: str) -> Path:
    if value == "-":  # it is written and read at several offsets
        raise ValueError("a backup cannot go through a pipe: name a file")
    return Path(value)


file_argument = click.argument("file", type=Parsed("path", _file))


@click.command()
@file_argument
@common
def backup(file: Path) -> None:
    """Write the database and its key file to FILE; the server may keep running.

    The backup is a snapshot: it has everything accepted before that moment. Only its owner can read the file. It can
    sign mail as your domains, so protect it like the machine itself.

    Examples:
      appliance backup /var/backups/appliance/$(date +%F).tar
      appliance backup /mnt/backup.tar && appliance verify /mnt/backup.tar
    """
    from appliance.backup.make import NotMade, make
    from appliance.keys.keyfile import KEY_FILE
    from appliance.store import FILE_NAME

    settings = database.load_settings()
    data_dir = settings.server.data_dir
    if settings.store.url:
        how = "back it up with pg_dump, or by base backups and archived WAL (PITR)"
        raise click.ClickException(f"store.url names a PostgreSQL: {how}, and keep {data_dir / KEY_FILE} with that")
    database.prepare(settings)
    if not os.path.lexists(data_dir / FILE_NAME):
        raise click.ClickException(f"there is no database in {data_dir}")
    denied = "backup runs as the owner of the data directory: name a directory that this user can write to"
    with database.explained(settings), _file_errors(file, denied), progress_bar("backup") as report:
        try:
            made = make(data_dir, settings.server.hostname, file.absolute(), Environment(), report)
        except NotMade as reason:
            raise click.ClickException(str(reason)) from None
    size = file.stat().st_size
    answer = {"file": str(file), "bytes": size, "created_at": made.created_at, "schema": made.schema}
    text = f"{file}: {size / 2**20:,.1f} MiB, as of {_minute(made.created_at)}. `appliance verify` checks it."
    show(answer, text)


@click.command()
@file_argument
@common
def verify(file: Path) -> None:
    """Check that the backup in FILE is complete and can be restored."""
    from appliance.backup.archive import verify as verify_backup

    with _file_errors(file), progress_bar("verify") as report:
        verified = verify_backup(file, report)
    answer = {"file": str(file), "ok": True} | _facts(verified)
    show(answer, f"{file} is complete: {_described(verified)}.")


@click.command()
@file_argument
@flag("--force", "Replace an existing database; it is moved aside, not deleted.")
@common
def restore(file: Path, force: bool) -> None:
    """Restore the backup in FILE into the data directory, with all delivery paused.

    Mail that was queued in the backup may have been delivered since. So the server delivers nothing until
    `appliance resume`; it still accepts new mail.

    Examples:
      sudo systemctl stop appliance
      sudo appliance restore /var/backups/appliance/2026-11-15.tar --force
      sudo systemctl start appliance
    """
    import trio

    from appliance.backup.restore import NotRestored
    from appliance.backup.restore import restore as restore_backup
    from appliance.keys.keyfile import KEY_FILE

    settings = database.load_settings()
    data_dir = settings.server.data_dir
    if settings.store.url:
        how = f"restore it with pg_restore or PITR, put the key file kept with it at {data_dir / KEY_FILE}"
        raise click.ClickException(f"store.url names a PostgreSQL: {how}, and run `appliance pause` before any node")
    database.check_usable(data_dir, make=True)
    with database.explained(settings), _file_errors(file), progress_bar("restore") as report:
        try:
            restored = trio.run(partial(restore_backup, file, data_dir, Environment(), report, force=force))
        except NotRestored as reason:
            raise click.ClickException(str(reason)) from None
    kept = None if restored.kept is None else str(restored.kept)
    answer = {"file": str(file), "data_dir": str(data_dir)} | _facts(restored.verified) | {"paused": True}
    answer |= record(restored.waiting, "due", "deferred", "oldest_at") | {"kept": kept}
    show(answer, "\n".join(_lines(data_dir, restored)))


def _facts(verified: "Verified") -> dict[str, Any]:
    manifest = {"created_at": verified.manifest.created_at} | record(verified.manifest, "hostname", "version")
    return manifest | record(verified.contents, "schema", "accounts", "messages")


def _described(verified: "Verified") -> str:
    manifest, contents = verified.manifest, verified.contents
    made = f"made on {manifest.hostname} at {_minute(manifest.created_at)} by version {manifest.version}"
    counts = f"{counted(contents.accounts, 'account')}, {counted(contents.messages, 'message')}"
    return f"{made}, schema {contents.schema}, {counts}"


def _lines(data_dir: Path, restored: "Restored") -> "Iterator[str]":
    waiting = restored.waiting
    yield f"Restored to {data_dir}: {_described(restored.verified)}."
    if restored.kept is not None:
        yield f"The previous database is in {restored.kept}."
    if waiting.oldest_at is None:
        yield "Delivery is paused. The queue is empty: `appliance resume` starts delivery of new mail."
        return
    due = counted(waiting.due, "recipient")
    yield (
        f"Delivery is paused. `appliance resume` would send to {due} at once and to {waiting.deferred} later; "
        f"the oldest message is from {_minute(rfc3339(waiting.oldest_at))}."
    )
    yield "Some of it may have been delivered after the backup was made. `appliance queue` shows the queue;"
    yield "`appliance resume --cancel-old` cancels mail accepted before the restore."


def _minute(moment: str) -> str:
    return f"{moment[:16].replace('T', ' ')} UTC"


@contextmanager
def _file_errors(file: Path, denied: str = "run the command with sudo") -> "Iterator[None]":
    """Turn a broken backup file or an OSError into one line; `denied` is the remedy for missing permissions."""
    from appliance.backup.archive import BrokenBackup

    try:
        yield
    except BrokenBackup as reason:
        text = f"{file} is not a backup that can be restored: {reason}. Use another copy, or an earlier backup."
        raise click.ClickException(printable(text)) from None
    except OSError as error:
        remedy = f"; {denied}" if isinstance(error, PermissionError) else ""
        raise click.ClickException(f"{error.filename or file}: {system_text(error)}{remedy}") from None
