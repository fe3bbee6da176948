"""`appliance upgrade`: what this version would change in an installation of an earlier one, and the change itself."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance import __version__
from appliance.cli import database
from appliance.cli.options import common, named_config
from appliance.cli.output import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.config.settings import Config
    from appliance.model.database import PendingUpgrade

UPGRADE_PENDING = 3  # exit code of --check: something would change


@click.command()
@click.option("--check", is_flag=True, help="Only tell what would change; exits with 3 if anything would.")
@common
def upgrade(check: bool, as_json: bool) -> None:
    """Bring the database of an earlier version to this one, without starting the server.

    A start of the server does the same. A database file is kept as it was, beside the new one, and takes the steps on a
    copy first; of a PostgreSQL make a backup before. With --check nothing is changed: it tells the steps that the
    database lacks, settings that this version no longer has or has besides, and the nodes that still run an
    earlier one.

    \b
    Examples:
      appliance upgrade --check
      appliance upgrade
    """
    from appliance.config.load import known_keys

    settings, gone = _settings()
    if gone and not check:
        database.load_settings()  # which refuses them in one line
    found = _pending(settings)
    if not check:
        database.run(_nothing, settings=settings)
        now = _pending(settings)
        done = {"version": __version__, "schema": now.schema, "steps": [*found.steps], "kept": found.kept or None}
        show(as_json, done | {"waiting": [*now.waiting]}, "\n".join(_done(done, now.waiting)))
        return
    started = found.last_start
    answer = {
        "version": __version__,
        "last_version": None if started is None else started.version,
        "schema": found.schema,
        "newest_schema": found.newest,
        "steps": [*found.steps],
        "waiting": [*found.waiting],
        "kept": found.kept or None,
        "bytes_needed": found.space,
        "settings": {
            "gone": gone,
            "new": None if started is None else [key for key in known_keys() if key not in started.settings],
        },
        "nodes": [{"name": name, "version": version} for name, version in found.nodes],
        "older_nodes": [*found.older_nodes],
    }
    is_pending = bool(found.steps or found.waiting or gone)
    show(as_json, answer | {"pending": is_pending}, "\n".join(_told(answer)))
    click.get_current_context().exit(UPGRADE_PENDING if is_pending else 0)


def _pending(settings: "Config") -> "PendingUpgrade":
    """What would change; refused where there is no database."""
    import trio

    from appliance.store import FILE_NAME, pending

    data_dir, url = settings.server.data_dir, settings.store.url
    database.prepare(settings)
    if url or os.path.lexists(data_dir / FILE_NAME):
        with database.explained(settings):
            found = trio.run(pending, data_dir, url)
        if found.schema:
            return found
    where = "the PostgreSQL of store.url" if url else data_dir
    raise click.ClickException(f"there is no database in {where} yet: there is nothing to upgrade")


async def _nothing(_: object) -> None:
    """Opening the database is all that there is to do."""


def _settings() -> "tuple[Config, list[str]]":
    """The settings without those that this version does not know, and what these are."""
    from appliance.config import load
    from appliance.config.settings import ConfigError

    try:
        found = load.find(named_config(), os.environ, Path.cwd())
        if found is None:
            return database.load_settings(), []
        return load.parse_known(found[1], found[0])
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def _done(answer: dict[str, Any], waiting: "Sequence[str]") -> "Iterator[str]":
    if not answer["steps"]:
        yield f"The database is up to date, at schema {answer['schema']}."
    else:
        yield f"The database is at schema {answer['schema']} now: {', '.join(answer['steps'])}."
    if answer["kept"]:
        yield f"As it was before, it is kept in {answer['kept']}: delete that when you are content."
    if waiting:
        yield f"Steps that wait until every node runs this version: {', '.join(waiting)}."


def _told(answer: dict[str, Any]) -> "Iterator[str]":
    before = answer["last_version"] or "not noted, an earlier one"
    yield f"This version is {answer['version']}; the server that started last: {before}."
    if answer["steps"]:
        yield f"Database: schema {answer['schema']} becomes {answer['newest_schema']}: {', '.join(answer['steps'])}."
    else:
        yield f"Database: schema {answer['schema']}, nothing is to be done."
    if answer["kept"]:
        needed = f"{answer['bytes_needed'] / 2**20:,.1f} MiB of free space meanwhile"
        yield f"  It is kept as it was in {answer['kept']}, and the upgrade needs {needed}."
    if answer["waiting"]:
        nodes = ", ".join(answer["older_nodes"])
        yield f"  Steps that wait for nodes of earlier versions ({nodes}): {', '.join(answer['waiting'])}."
    for key in answer["settings"]["gone"]:
        yield f"Setting gone: {key}. Take it out of the file, or the server will not start."
    new = answer["settings"]["new"]
    if new is None:
        yield "New settings: not known, because the version before did not note its own; see docs/configuration.md."
    for key in new or ():
        yield f"Setting new: {key}. Its default is in effect; see docs/configuration.md."
    for node in answer["nodes"]:
        yield f"Node {node['name']}: version {node['version']}."
