"""`appliance backup`, `verify` and `restore`."""

import os
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import common
from appliance.cli.output import printable, progress_bar, record, show, system_text
from appliance.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.backup.restore import Restored
    from appliance.backup.verify import Verified


class BackupFile(click.Path):
    """The name of a backup file; not a pipe, since it is written and read at several offsets."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-":
            self.fail("a backup cannot go through a pipe: name a file", param, ctx)
        return super().convert(value, param, ctx)


BACKUP_FILE = BackupFile(path_type=Path)


@click.command()
@click.argument("file", type=BACKUP_FILE)
@common
def backup(file: Path, as_json: bool) -> None:
    """Write the database and its key file to FILE, while the server goes on.

    The file holds one moment, everything that was accepted before it. It is readable by its owner only, and it
    is enough to sign mail as your domains: keep it as safe as the machine itself.

    \b
    Examples:
      appliance backup /var/backups/appliance/$(date +%F).tar
      appliance backup /mnt/backup.tar && appliance verify /mnt/backup.tar
    """
    from appliance.backup.make import NotMade, make
    from appliance.environment import Environment
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
    with database.explained(settings), _refusals(file), progress_bar("backup") as on:
        try:
            made = make(data_dir, settings.server.hostname, file.absolute(), Environment(), on)
        except NotMade as reason:
            raise click.ClickException(str(reason)) from None
    size = file.stat().st_size
    answer = {"file": str(file), "bytes": size, "created_at": made.created_at, "schema": made.schema}
    told = f"{file}: {size / 2**20:,.1f} MiB, as of {_minute(made.created_at)}. `appliance verify` checks it."
    show(as_json, answer, told)


@click.command()
@click.argument("file", type=BACKUP_FILE)
@common
def verify(file: Path, as_json: bool) -> None:
    """Say whether the backup in FILE is whole and can be restored.

    \b
    Example:
      appliance verify /var/backups/appliance/2026-11-15.tar
    """
    from appliance.backup.verify import verify as verify_backup

    with _refusals(file), progress_bar("verify") as on:
        verified = verify_backup(file, on)
    answer = {"file": str(file), "ok": True} | _facts(verified)
    show(as_json, answer, f"{file} is whole: {_told(verified)}.")


@click.command()
@click.argument("file", type=BACKUP_FILE)
@click.option("--force", is_flag=True, help="Also where there is a database: it is put aside, not deleted.")
@common
def restore(file: Path, force: bool, as_json: bool) -> None:
    """Put the backup in FILE into the data directory, with all delivery paused.

    What was due when the backup was made may have been sent since. So nothing goes out until `appliance resume`; new
    mail is accepted meanwhile.

    \b
    Examples:
      appliance restore /var/backups/appliance/2026-11-15.tar
      appliance restore /var/backups/appliance/2026-11-15.tar --force
    """
    import trio

    from appliance.backup.restore import NotRestored
    from appliance.backup.restore import restore as restore_backup
    from appliance.environment import Environment
    from appliance.keys.keyfile import KEY_FILE

    settings = database.load_settings()
    data_dir = settings.server.data_dir
    if settings.store.url:
        how = f"restore it with pg_restore or PITR, put the key file kept with it at {data_dir / KEY_FILE}"
        raise click.ClickException(f"store.url names a PostgreSQL: {how}, and run `appliance pause` before any node")
    database.check_usable(data_dir, make=True)
    with database.explained(settings), _refusals(file), progress_bar("restore") as on:
        try:
            restored = trio.run(partial(restore_backup, file, data_dir, Environment(), on, force=force))
        except NotRestored as reason:
            raise click.ClickException(str(reason)) from None
    kept = None if restored.kept is None else str(restored.kept)
    answer = {"file": str(file), "data_dir": str(data_dir)} | _facts(restored.verified) | {"paused": True}
    answer |= record(restored.waiting, "due", "deferred", "oldest_at") | {"kept": kept}
    show(as_json, answer, "\n".join(_lines(data_dir, restored)))


def _facts(verified: "Verified") -> dict[str, Any]:
    manifest = {"created_at": verified.manifest.created_at} | record(verified.manifest, "hostname", "version")
    return manifest | record(verified.contents, "schema", "accounts", "messages")


def _told(verified: "Verified") -> str:
    manifest, contents = verified.manifest, verified.contents
    made = f"made on {manifest.hostname} at {_minute(manifest.created_at)} by version {manifest.version}"
    held = f"{_count(contents.accounts, 'account')}, {_count(contents.messages, 'message')}"
    return f"{made}, schema {contents.schema}, {held}"


def _lines(data_dir: Path, restored: "Restored") -> "Iterator[str]":
    waiting = restored.waiting
    yield f"Restored to {data_dir}: {_told(restored.verified)}."
    if restored.kept is not None:
        yield f"What was there before is in {restored.kept}."
    if waiting.oldest_at is None:
        yield "Delivery is paused. Nothing waits to be sent: `appliance resume` lets new mail go."
        return
    due = _count(waiting.due, "recipient")
    yield (
        f"Delivery is paused. `appliance resume` would send to {due} at once and to {waiting.deferred} later; "
        f"the oldest message is of {_minute(rfc3339(waiting.oldest_at))}."
    )
    yield "Some of it may have been sent after the backup was made: `appliance queue` shows it,"
    yield "`appliance resume --cancel-old` gives up what was accepted before the backup was restored."


def _minute(moment: str) -> str:
    return f"{moment[:16].replace('T', ' ')} UTC"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@contextmanager
def _refusals(file: Path) -> "Iterator[None]":
    """Turn a broken backup file or an OSError into one line."""
    from appliance.backup.archive import BrokenBackup

    try:
        yield
    except BrokenBackup as reason:
        raise click.ClickException(printable(f"{file} is not a backup that can be restored: {reason}")) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or file}: {system_text(error)}") from None
