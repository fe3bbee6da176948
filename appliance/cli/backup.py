"""In charge of the commands `appliance backup`, `verify` and `restore`."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import common
from appliance.cli.output import printable, show
from appliance.cli.progress import bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.backup.restore import Restored
    from appliance.backup.verify import Verified


class BackupFile(click.Path):
    """The name of a backup file. A pipe will not do: the file is written, and read, at several places."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what elsewhere means a pipe: nobody wants a file of that name."""
        if value == "-":
            self.fail("a backup cannot go through a pipe: name a file", param, ctx)
        return super().convert(value, param, ctx)


FILE = BackupFile(path_type=Path)


@click.command()
@click.argument("file", type=FILE)
@common
def backup(file: Path, as_json: bool) -> None:
    """Write the database and its key file to FILE, while the server goes on.

    The file holds one moment, everything that was accepted before it. It is readable by its owner only, and whoever has
    it can sign mail as your domains: keep it as safe as the machine itself.

    \b
    Examples:
      appliance backup /var/backups/appliance/$(date +%F).tar
      appliance backup /mnt/backup.tar && appliance verify /mnt/backup.tar
    """
    from appliance.backup.make import NotMade, make
    from appliance.outside import Outside

    settings = database.load_settings()
    data_dir = database.existing(settings)
    with database.explained(settings), _refusals(file), bar("backup") as on:
        try:
            made = make(data_dir, settings.server.hostname, file.absolute(), Outside(), on)
        except NotMade as reason:
            raise click.ClickException(str(reason)) from None
    size = file.stat().st_size
    answer = {"file": str(file), "bytes": size, "created_at": made.created_at, "schema": made.schema}
    show(as_json, answer, f"{file}: {_size(size)}, as of {_minute(made.created_at)}. `appliance verify` looks it over.")


@click.command()
@click.argument("file", type=FILE)
@common
def verify(file: Path, as_json: bool) -> None:
    """Say whether the backup in FILE is whole and can be restored.

    \b
    Example:
      appliance verify /var/backups/appliance/2026-11-15.tar
    """
    from appliance.backup.verify import verify as look

    with _refusals(file), bar("verify") as on:
        verified = look(file, on)
    answer = {"file": str(file), "ok": True} | _facts(verified)
    show(as_json, answer, f"{file} is whole: {_told(verified)}.")


@click.command()
@click.argument("file", type=FILE)
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
    from appliance.backup.restore import restore as put_back
    from appliance.outside import Outside

    settings = database.load_settings()
    data_dir = settings.server.data_dir
    database.check_usable(data_dir, make=True)

    async def work() -> "Restored":
        return await put_back(file, data_dir, Outside(), on, force=force)

    with database.explained(settings), _refusals(file), bar("restore") as on:
        try:
            restored = trio.run(work)
        except NotRestored as reason:
            raise click.ClickException(str(reason)) from None
    show(as_json, _answer(file, data_dir, restored), "\n".join(_lines(data_dir, restored)))


# ---- what they print


def _facts(verified: "Verified") -> dict[str, Any]:
    manifest, contents = verified.manifest, verified.contents
    return {
        "created_at": manifest.created_at,
        "hostname": manifest.hostname,
        "version": manifest.version,
        "schema": contents.schema,
        "accounts": contents.accounts,
        "messages": contents.messages,
    }


def _told(verified: "Verified") -> str:
    manifest, contents = verified.manifest, verified.contents
    made = f"made on {manifest.hostname} at {_minute(manifest.created_at)} by version {manifest.version}"
    held = f"{_count(contents.accounts, 'account')}, {_count(contents.messages, 'message')}"
    return f"{made}, schema {contents.schema}, {held}"


def _answer(file: Path, data_dir: Path, restored: "Restored") -> dict[str, Any]:
    from appliance.times import rfc3339

    waiting, kept = restored.waiting, restored.kept
    return {
        "file": str(file),
        "data_dir": str(data_dir),
        **_facts(restored.verified),
        "paused": True,
        "due": waiting.due,
        "deferred": waiting.deferred,
        "oldest_at": None if waiting.oldest_at is None else rfc3339(waiting.oldest_at),
        "kept": None if kept is None else str(kept),
    }


def _lines(data_dir: Path, restored: "Restored") -> "Iterator[str]":
    from appliance.times import rfc3339

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


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


# ---- refusals


@contextmanager
def _refusals(file: Path) -> "Iterator[None]":
    """Put what a backup file or the system refuses into one line."""
    from appliance.backup.archive import Broken

    try:
        yield
    except Broken as reason:
        raise click.ClickException(printable(f"{file} is not a backup that can be restored: {reason}")) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or file}: {(error.strerror or str(error)).lower()}") from None
