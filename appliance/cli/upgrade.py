"""`appliance upgrade`: upgrades the database of an earlier version, or shows what an upgrade would change."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli import database
from appliance.cli.options import common, flag, named_config
from appliance.cli.output import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.config.settings import Config
    from appliance.model.database import PendingUpgrade

UPGRADE_PENDING = 3  # exit code of --check if an upgrade would change something


@click.command()
@flag("--check", "Show the changes without making them; exit with 3 if there are any.")
@common
def upgrade(check: bool, as_json: bool) -> None:
    """Upgrade the database of an earlier version to this one, without starting the server.

    A start of the server does the same. An SQLite file is upgraded on a copy first, and the old file is kept. Back up a
    PostgreSQL database before. With --check nothing changes: the output lists the pending schema steps, settings that
    this version removed or added, and nodes that still run an earlier version.

    \b
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
        show(as_json, done | {"waiting": [*now.waiting]}, "\n".join(_done(done, now.waiting)))
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
    show(as_json, answer | {"pending": is_pending}, "\n".join(_changes(answer)))
    click.get_current_context().exit(UPGRADE_PENDING if is_pending else 0)


def _pending(settings: "Config") -> "PendingUpgrade":
    """Return what would change; refuse if there is no database."""
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
    """Return the settings, and the keys that this version does not know."""
    from appliance.config import load

    with database.config_errors():
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
