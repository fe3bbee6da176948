"""`appliance config …`: finds, checks and shows the settings."""

import json
import os
import tomllib
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from appliance.cli import database
from appliance.cli.options import CommandGroup, common, named_config
from appliance.cli.output import show

if TYPE_CHECKING:
    from appliance.config.values import Setting


MASKED = "***"  # instead of a secret

config = CommandGroup("config", "Find, check and show the settings.")


@config.command()
@common
def path() -> None:
    """Show which settings file is used, and the search order."""
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
    lines = [f"  {by:<{len(load.VARIABLE) + 1}}  {'not set' if file is None else file}" for by, file in places]
    head = "No settings file exists: the built-in settings are used." if used is None else f"{used} is used."
    show(answer, "\n".join([head, "The first of these that is set, or exists, is used:", *lines]))


@config.command()
@common
def check() -> None:
    """Check the settings as the server does; on an error, print one line and exit with 1.

    Examples:
      appliance config check
      appliance config check --config /etc/appliance/config.toml
    """
    used = database.load_settings().source
    text = "The built-in settings are valid." if used is None else f"{used} is valid."
    show({"file": None if used is None else str(used), "ok": True}, text)


@config.command("show")
@common
def show_all() -> None:
    """Show all settings in effect, including defaults; passwords are masked."""
    from appliance.config import load
    from appliance.config.settings import SECTIONS, named_tables, section_of, settings
    from appliance.config.values import field_name

    loaded = database.load_settings()
    with database.refusals():
        source = load.find(named_config(), os.environ, Path.cwd())
    document: dict[str, Any] = load.embedded_tables(os.environ) if source is None else tomllib.loads(source[1])
    document = load.lifted(document)
    tables: dict[str, Any] = {}
    lines: list[str] = []
    for name in SECTIONS:
        table = document.get(name, {})
        values, completed = {}, section_of(loaded, name)
        lines.append(f"[{name}]")
        for row in settings(name):
            value = table.get(row.key, row.default)
            in_force = getattr(completed, field_name(row.key))
            if value in ("", [], ()) and isinstance(in_force, str | tuple):
                value = _plain(in_force)  # depends on the machine or on another key
            values[row.key] = _masked(row, value)
            default = "" if row.key in table else "  # default"
            lines.append(f"{row.key} = {json.dumps(values[row.key], ensure_ascii=False)}{default}")
        for kind in named_tables(name):
            inner = {
                title: {row.key: _masked(row, keys.get(row.key, row.default)) for row in kind.settings(title)}
                for title, keys in table.get(kind.key, {}).items()
            }
            if inner:
                values[kind.key] = inner
            for title, keys in inner.items():
                lines += [f"[{name}.{kind.key}.{json.dumps(title)}]"]
                lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()]
        *outer, last = name.split(".")
        reduce(getitem, outer, tables)[last] = values
        lines.append("")
    file = None if source is None else str(source[0])
    head = f"# {file or 'The built-in settings'}, with the defaults of omitted keys."
    show({"file": file, "settings": tables}, "\n".join([head, *lines]).rstrip())


def _masked(row: "Setting", value: Any) -> Any:
    from appliance.config.values import DATABASE_URL, SECRET

    if row.kind is SECRET:
        return MASKED if value else value
    if row.kind is DATABASE_URL and value:
        return _without_password(value)
    return _plain(value)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if "password" in parts.query.lower():
        parts = parts._replace(query=MASKED)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit(parts._replace(netloc=f"{name}{colon and ':' + MASKED}{at}{host}"))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) else str(value)
