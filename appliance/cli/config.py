"""`appliance config …`: which settings file is used, whether it is right, and what is in effect."""

import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import common, config_option, named_config
from appliance.cli.output import show

if TYPE_CHECKING:
    from appliance.config.settings import Setting

MASKED = "***"  # in the place of a secret


@click.group()
@config_option
def config() -> None:
    """Settings: which file is used, whether it is right, and what is in effect."""


@config.command()
@common
def path(as_json: bool) -> None:
    """Tell which settings file is used, and where one is looked for.

    \b
    Examples:
      appliance config path
      appliance config path --json
    """
    from appliance.config import load

    used = database.load_settings().source
    places = [
        ("--config", named_config()),
        (f"${load.VARIABLE}", os.environ.get(load.VARIABLE) or None),
        ("here", Path.cwd() / load.LOCAL_FILE),
        ("the system", load.SYSTEM_FILE),
    ]
    answer = {
        "file": None if used is None else str(used),
        "looked_for": [{"by": by, "file": None if file is None else str(file)} for by, file in places],
    }
    lines = [f"  {by:<{len(load.VARIABLE) + 1}}  {'not given' if file is None else file}" for by, file in places]
    head = "No settings file is there: the built-in settings are used." if used is None else f"{used} is used."
    show(as_json, answer, "\n".join([head, "The first of these that is given, or is there, is used:", *lines]))


@config.command()
@common
def check(as_json: bool) -> None:
    """Read the settings as the server would; exits with 1 and one line if they cannot be used.

    \b
    Examples:
      appliance config check
      appliance config check --config /etc/appliance/config.toml
    """
    used = database.load_settings().source
    name = "The built-in settings" if used is None else str(used)
    verb = "are" if used is None else "is"
    show(as_json, {"file": None if used is None else str(used), "ok": True}, f"{name} {verb} right.")


@config.command("show")
@common
def show_all(as_json: bool) -> None:
    """Show all settings in effect, those left out with their defaults; passwords are hidden.

    \b
    Examples:
      appliance config show
      appliance config show --json
    """
    from appliance.config import load
    from appliance.config.settings import SECTIONS, ConfigError, named_tables, settings

    loaded = database.load_settings()
    try:
        found = load.find(named_config(), os.environ, Path.cwd())
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    given: dict[str, Any] = load.embedded_tables(os.environ) if found is None else tomllib.loads(found[1])
    tables: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for name in SECTIONS:
        table = given.get(name, {})
        values, completed = {}, getattr(loaded, name)
        lines.append(f"[{name}]")
        for row in settings(name):
            value = table.get(row.key, row.default)
            if value in ("", [], ()) and isinstance(getattr(completed, row.key), str | tuple):
                value = _plain(getattr(completed, row.key))  # what depends on the machine or on another key
            values[row.key] = _told(row, value)
            default = "" if row.key in table else "  # default"
            lines.append(f"{row.key} = {json.dumps(values[row.key], ensure_ascii=False)}{default}")
        for kind in named_tables(name):
            inner = {title: _inner(kind.settings(title), each) for title, each in table.get(kind.key, {}).items()}
            if inner:
                values[kind.key] = inner
            for title, each in inner.items():
                lines += [f"[{name}.{kind.key}.{json.dumps(title)}]"]
                lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in each.items()]
        tables[name] = values
        lines.append("")
    file = None if found is None else str(found[0])
    head = f"# {file or 'The built-in settings'}, with the defaults of what is left out."
    show(as_json, {"file": file, "settings": tables}, "\n".join([head, *lines]).rstrip())


def _inner(rows: Any, table: dict[str, Any]) -> dict[str, Any]:
    return {row.key: _told(row, table.get(row.key, row.default)) for row in rows}


def _told(row: "Setting", value: Any) -> Any:
    """A value as it is written in the file, secrets hidden."""
    from appliance.config.values import DATABASE_URL, SECRET

    if row.kind is SECRET:
        return MASKED if value else value
    if row.kind is DATABASE_URL and value:
        return _without_password(value)
    return _plain(value)


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    if "password" in parts.query.lower():
        parts = parts._replace(query=MASKED)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit(parts._replace(netloc=f"{name}{colon and ':' + MASKED}{at}{host}"))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
