"""`appliance store copy`: copies an installation to another database."""

import os
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import common, config_option
from appliance.cli.output import printable, progress_bar, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from appliance.config.settings import Config
    from appliance.store.copying import Copied, CopyEndpoint, CopyProgress

LINE_EVERY = 10.0  # seconds between two progress lines of one table


@click.group()
@config_option
def store() -> None:
    """Move the installation to another database."""


@store.command("copy")
@click.option("--to", "url", metavar="URL", help="Target PostgreSQL database: postgresql://user@host/name.")
@click.option("--to-sqlite", "path", type=click.Path(path_type=Path), metavar="PATH", help="Target data directory.")
@common
def copy(url: str | None, path: Path | None, as_json: bool) -> None:
    """Copy the whole database into an empty one, and compare every row.

    Stop the server first. Queued mail is delivered by the server on the new database. The old database is only read. If
    the copy is interrupted, run the same command again to continue. No server starts on the new database until the copy
    is complete.

    \b
    Examples:
      appliance store copy --to postgresql://appliance@db.example.com/appliance
      appliance store copy --to-sqlite /var/lib/appliance-new
    """
    from appliance.environment import Environment
    from appliance.store import DatabaseRefused, copied_tables
    from appliance.store.copying import NotCopied
    from appliance.store.copying import copy as copy_rows

    where = url or path
    if where is None or (url and path):
        raise click.UsageError("Use either --to URL or --to-sqlite PATH.")
    if url:
        _check_url(url)
    settings = database.load_settings()
    database.prepare(settings)
    try:
        with (
            database.explained(settings),
            _progress(as_json) as report,
            _source(settings) as source,
            _target(settings, where) as target,
        ):
            copied = copy_rows(source, target, copied_tables(), Environment().now(), report)
    except (NotCopied, DatabaseRefused) as reason:
        raise click.ClickException(printable(str(reason))) from None
    answer = {"from": source.name, "to": target.name, "tables": copied.tables, "rows": copied.rows}
    answer |= {"resumed": copied.resumed, "replaced": copied.replaced}
    show(as_json, answer, "\n".join(_lines(settings, source, target, copied, url)))


def _check_url(url: str) -> None:
    from appliance.config.values import DATABASE_URL

    try:
        DATABASE_URL.read(url)
    except ValueError as error:
        raise click.UsageError(f"--to {error}") from None


# ---- the two databases


@contextmanager
def _source(settings: "Config") -> "Iterator[CopyEndpoint]":
    """Open the database of the settings; no server may run on it."""
    from appliance.store import FILE_NAME, copy_source
    from appliance.system.data_directory import only_server

    data_dir = settings.server.data_dir
    with only_server(data_dir) if data_dir.exists() else nullcontext():
        if not settings.store.url and not os.path.lexists(data_dir / FILE_NAME):
            raise click.ClickException(f"there is no database in {data_dir}")
        with copy_source(data_dir, settings.store.url) as source:
            yield source


@contextmanager
def _target(settings: "Config", where: str | Path) -> "Iterator[CopyEndpoint]":
    """Open the empty database that the options name; no server may run on it."""
    from appliance.store import FILE_NAME, copy_target
    from appliance.system.data_directory import only_server

    if isinstance(where, str):
        with copy_target(where) as target:
            yield target
        return
    directory = (where.parent if where.name == FILE_NAME else where).absolute()
    database.check_usable(directory, make=True)
    # The source's own directory is locked already.
    is_source = directory.resolve() == settings.server.data_dir.resolve()
    with nullcontext() if is_source else only_server(directory), copy_target(directory) as target:
        yield target


# ---- output


@contextmanager
def _progress(as_json: bool) -> "Iterator[Callable[[CopyProgress], None]]":
    """Show a bar on a terminal, otherwise lines; both on stderr."""
    if sys.stderr.isatty():
        with progress_bar("copy") as bar:
            yield lambda progress: bar(progress.fraction)
        return
    printed_at = time.monotonic()

    def line(progress: "CopyProgress") -> None:
        nonlocal printed_at
        is_complete = progress.rows >= progress.of
        if as_json or not (is_complete or time.monotonic() > printed_at + LINE_EVERY):
            return
        printed_at = time.monotonic()
        rows = f"{progress.rows:,}" if is_complete else f"{progress.rows:,} of {progress.of:,}"
        click.echo(f"{progress.table}: {rows} rows {'compared' if progress.verifying else 'copied'}", err=True)

    yield line


def _lines(
    settings: "Config", source: "CopyEndpoint", target: "CopyEndpoint", copied: "Copied", url: str | None
) -> "Iterator[str]":
    from appliance.keys.keyfile import KEY_FILE

    yield f"Copied {copied.rows:,} rows of {copied.tables} tables to {target.name}, and compared each one."
    if copied.replaced:
        yield f"In {copied.replaced:,} texts U+FFFD replaces the character NUL, which PostgreSQL cannot store."
    key = settings.server.data_dir / KEY_FILE
    if url:
        yield "Next: set `url` in [store] to the new database,"
        yield f"copy {key} into the data_dir of every node (secrets cannot be read without it), and start."
    else:
        directory = Path(target.name).parent
        yield f'Next: set `data_dir` in [server] to "{directory}", remove `url` from [store],'
        yield f"copy {key} there unless it exists (secrets cannot be read without it), and start."
    yield f"{source.name} is unchanged. Do not start a server on it again: it would send queued mail a second time."
