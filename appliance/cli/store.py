"""`appliance store copy`, `upgrade` and `node …`: moves and upgrades the database; the nodes that share it."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli import database
from appliance.cli.options import PRINTABLE, CommandGroup, common, flag, is_json, listing, named_config
from appliance.cli.output import printable, progress_bar, record, show, show_list
from appliance.environment import Environment
from appliance.system.data_directory import only_server

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.database import NodeState, PendingUpgrade
    from appliance.store.copying import Copied, CopyEndpoint, CopyProgress

LINE_EVERY = 10.0  # seconds between two progress lines of one table
UPGRADE_PENDING = 3  # exit code of --check if an upgrade would change something
NODE_COLUMNS = {"name": "NODE", "state": "STATE", "address": "ADDRESS", "version": "VERSION"}
NODE_COLUMNS |= {"started_at": "STARTED (UTC)", "lease_seconds": "LEASE", "in_flight": "IN FLIGHT"}
NODE_COLUMNS |= {"waiting": "WAITING", "skew_seconds": "SKEW"}
NO_NODES = "This installation uses an SQLite file, so it has no nodes: see docs/cluster.md."

store = CommandGroup("store", "Move the installation to another database.")
node = CommandGroup("node", "Manage the nodes of a cluster. Without a command, list them.", default="list")


@store.command("copy")
@click.option("--to", "url", metavar="URL", help="Target PostgreSQL database: postgresql://user@host/name.")
@click.option("--to-sqlite", "path", type=click.Path(path_type=Path), metavar="PATH", help="Target data directory.")
@common
def copy(url: str | None, path: Path | None) -> None:
    """Copy the whole database into an empty one, and compare every row.

    Stop the server first. Queued mail is delivered by the server on the new database. The old database is only read. If
    the copy is interrupted, run the same command again to continue. No server starts on the new database until the copy
    is complete.

    Examples:
      appliance store copy --to postgresql://appliance@db.example.com/appliance
      appliance store copy --to-sqlite /var/lib/appliance-new
    """
    from appliance.config.values import DATABASE_URL
    from appliance.store import DatabaseRefused, copied_tables
    from appliance.store.copying import NotCopied
    from appliance.store.copying import copy as copy_rows

    where = url or path
    if where is None or (url and path):
        raise click.UsageError("Use either --to URL or --to-sqlite PATH.")
    try:
        if url:
            DATABASE_URL.read(url)
    except ValueError as error:
        raise click.UsageError(f"--to {error}") from None
    settings = database.load_settings()
    database.prepare(settings)
    try:
        with (
            database.explained(settings),
            _progress() as report,
            _source(settings) as source,
            _target(settings, where) as target,
        ):
            copied = copy_rows(source, target, copied_tables(), Environment().now(), report)
    except (NotCopied, DatabaseRefused) as reason:
        raise click.ClickException(printable(str(reason))) from None
    answer = {"from": source.name, "to": target.name, "tables": copied.tables, "rows": copied.rows}
    answer |= {"resumed": copied.resumed, "replaced": copied.replaced}
    show(answer, "\n".join(_lines(settings, source, target, copied, url)))


# ---- the two databases
@contextmanager
def _source(settings: "Config") -> "Iterator[CopyEndpoint]":
    from appliance.store import FILE_NAME, copy_source

    data_dir = settings.server.data_dir
    with only_server(data_dir) if data_dir.exists() else nullcontext():
        if not settings.store.url and not os.path.lexists(data_dir / FILE_NAME):
            raise click.ClickException(f"there is no database in {data_dir}")
        with copy_source(data_dir, settings.store.url) as source:
            yield source


@contextmanager
def _target(settings: "Config", where: str | Path) -> "Iterator[CopyEndpoint]":
    from appliance.store import FILE_NAME, copy_target

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
def _progress() -> "Iterator[Callable[[CopyProgress], None]]":
    if sys.stderr.isatty():
        with progress_bar("copy") as bar:
            yield lambda progress: bar(progress.fraction)
        return
    printed_at = time.monotonic()

    def line(progress: "CopyProgress") -> None:
        nonlocal printed_at
        is_complete = progress.rows >= progress.of
        if is_json() or not (is_complete or time.monotonic() > printed_at + LINE_EVERY):
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


# ---- upgrades
@click.command()
@flag("--check", "Show the changes without making them; exit with 3 if there are any.")
@common
def upgrade(check: bool) -> None:
    """Upgrade the database of an earlier version to this one, without starting the server.

    A start of the server does the same. An SQLite file is upgraded on a copy first, and the old file is kept. Back up a
    PostgreSQL database before. With --check nothing changes: the output lists the pending schema steps, settings that
    this version removed or added, and nodes that still run an earlier version.

    Examples:
      appliance upgrade --check
      appliance upgrade
    """
    from appliance.config.load import known_keys

    settings, removed = _settings()
    if removed and not check:
        database.load_settings()  # refuses them in one line
    before = _pending(settings)
    if not check:
        database.run(_nothing, settings=settings)
        now = _pending(settings)
        done = {"version": __version__, "schema": now.schema, "steps": [*before.steps], "kept": before.kept or None}
        show(done | {"waiting": [*now.waiting]}, "\n".join(_done(done, now.waiting)))
        return
    started = before.last_start
    new = None if started is None else [key for key in known_keys() if key not in started.settings]
    answer = {
        "version": __version__,
        "last_version": None if started is None else started.version,
        "schema": before.schema,
        "newest_schema": before.newest,
        "steps": [*before.steps],
        "waiting": [*before.waiting],
        "kept": before.kept or None,
        "bytes_needed": before.space,
        "settings": {"gone": removed, "new": new},
        "nodes": [{"name": name, "version": version} for name, version in before.nodes],
        "older_nodes": [*before.older_nodes],
    }
    is_pending = bool(before.steps or before.waiting or removed)
    show(answer | {"pending": is_pending}, "\n".join(_changes(answer)))
    click.get_current_context().exit(UPGRADE_PENDING if is_pending else 0)


def _pending(settings: "Config") -> "PendingUpgrade":
    import trio

    from appliance.store import FILE_NAME, pending

    data_dir, url = settings.server.data_dir, settings.store.url
    database.prepare(settings)
    if url or os.path.lexists(data_dir / FILE_NAME):
        with database.explained(settings):
            changes = trio.run(pending, data_dir, url)
        if changes.schema:
            return changes
    raise click.ClickException(f"there is no database in {database.place(settings)} yet: nothing to upgrade")


async def _nothing(_: object) -> None:
    """Opening the database upgrades it."""


def _settings() -> "tuple[Config, list[str]]":
    from appliance.config import load

    with database.refusals():
        source = load.find(named_config(), os.environ, Path.cwd())
        return (database.load_settings(), []) if source is None else load.parse_known(source[1], source[0])


def _done(answer: dict[str, Any], waiting: "Sequence[str]") -> "Iterator[str]":
    if not answer["steps"]:
        yield f"The database is up to date, at schema {answer['schema']}."
    else:
        yield f"The database is now at schema {answer['schema']}: {', '.join(answer['steps'])}."
    if answer["kept"]:
        yield f"The old database is kept in {answer['kept']}: delete it when you no longer need it."
    if waiting:
        yield f"Steps that wait until every node runs this version: {', '.join(waiting)}."


def _changes(answer: dict[str, Any]) -> "Iterator[str]":
    before = answer["last_version"] or "unknown, an earlier one"
    yield f"This version is {answer['version']}; the last server that started: {before}."
    if answer["steps"]:
        yield f"Database: schema {answer['schema']} becomes {answer['newest_schema']}: {', '.join(answer['steps'])}."
    else:
        yield f"Database: schema {answer['schema']}, up to date."
    if answer["kept"]:
        needed = f"{answer['bytes_needed'] / 2**20:,.1f} MiB of free space"
        yield f"  The old file is kept as {answer['kept']}; the upgrade needs {needed}."
    if answer["waiting"]:
        nodes = ", ".join(answer["older_nodes"])
        yield f"  Steps that wait for nodes of earlier versions ({nodes}): {', '.join(answer['waiting'])}."
    for key in answer["settings"]["gone"]:
        yield f"Setting gone: {key}. Remove it from the file, or the server will not start."
    new = answer["settings"]["new"]
    if new is None:
        yield "New settings: unknown, because the previous version did not record its own; see docs/configuration.md."
    for key in new or ():
        yield f"Setting new: {key}. Its default is in effect; see docs/configuration.md."
    for node in answer["nodes"]:
        yield f"Node {node['name']}: version {node['version']}."


# ---- nodes
@node.command("list", reads=True)
@listing
def list_nodes() -> None:
    """List the nodes: lease in seconds, recipients in flight and waiting, clock skew in seconds."""
    settings = database.load_settings()
    if not settings.store.url:
        show({"nodes": []}, NO_NODES)
        return
    states: list[NodeState] = database.run(lambda store: store.engine.nodes(), settings=settings)
    rows, nothing = [record(state, *NODE_COLUMNS) for state in states], "No node has started yet: appliance serve"
    show_list({"nodes": rows}, NODE_COLUMNS, nothing, ("started_at", "address", "skew_seconds", "version"))


@node.command(action="node.drained")
@click.argument("name", type=PRINTABLE, metavar="NODE", **database.completed("node"))
@common
def drain(name: str) -> None:
    """Stop NODE and hand its mail over to the other nodes.

    The node finishes deliveries in flight, accepts nothing new, and exits with 0. If its service manager would restart
    it, stop the service instead.
    """
    settings = database.load_settings()
    if not settings.store.url:
        raise click.ClickException(NO_NODES)
    if not database.run(lambda store: store.engine.drain(name), settings=settings):
        raise click.ClickException(f"no running node is named {name!r}: see appliance node list")
    show({"node": name, "draining": True}, f"Node {name} hands over its mail and stops.")
