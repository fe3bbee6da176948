"""Loads the settings: one TOML file becomes a frozen Config, or an error of one line naming file, key and reason."""

import difflib
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from appliance.config.checks import check_together
from appliance.config.settings import SECTIONS, Config, ConfigError, Setting, named_tables, place_of, settings
from appliance.config.values import FILE, Endpoint, is_host_name

VARIABLE = "APPLIANCE_CONFIG"
LOCAL_FILE = Path("config.toml")
SYSTEM_FILE = Path("/etc/appliance/config.toml")

# To try the program: nothing listens beyond this machine, no mail leaves it, one directory has all state.
EMBEDDED: dict[str, Any] = {
    "server": {"hostname": "localhost", "data_dir": "appliance-data"},
    "http": {"bind": ["127.0.0.1:8080"], "base_url": "http://127.0.0.1:8080"},
    "smtp": {"bind": ["127.0.0.1:2587"], "bind_tls": []},
    "delivery": {"mode": "sandbox"},
}


def parse(text: str, file: Path) -> Config:
    """The settings that `text`, the content of `file`, describes; relative paths in it start where the file is."""
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(str(file), "nested too deeply") from None
    except ValueError as error:
        # tomllib says "reason (at line 1, column 2)" or "reason (at end of document)".
        match = re.fullmatch(r"(.*) \(at (?:(line \d+, column \d+)|end of document)\)", str(error), re.DOTALL)
        last = f"line {text.rstrip().count(chr(10)) + 1}"
        place, reason = (match[2] or last, match[1]) if match else (last, str(error))
        raise ConfigError(str(file), place, reason) from None
    return replace(_build(tables, str(file), file.parent), source=file)


def _build(tables: Mapping[str, Any], file: str, base: Path) -> Config:
    for name in tables:
        if name not in SECTIONS:
            raise ConfigError(file, name, _unknown("section", name, SECTIONS))
    sections = {name: _section(name, tables.get(name, {}), file, base) for name in SECTIONS}
    config = _complete(Config(**sections))
    check_together(config, file)
    return config


def _section(name: str, table: object, file: str, base: Path) -> Any:
    given = _table(name, table, file)
    nested = {kind.key: kind for kind in named_tables(name)}
    plain = {key: value for key, value in given.items() if key not in nested}
    values = _values(name, plain, settings(name), file, base, nested)
    for key in given.keys() & nested.keys():
        kind, values[key] = nested[key], {}
        for title, inner in _table(kind.place, given[key], file).items():
            place = place_of(kind.place, title)
            try:
                read = kind.name.read(title)
            except ValueError as reason:
                raise ConfigError(file, place, f"the name {reason}") from None
            inner_values = _values(place, _table(place, inner, file), kind.settings(title), file, base)
            values[key][read] = kind.record(**inner_values)
    return SECTIONS[name](**values)


def _table(place: str, table: object, file: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(file, place, f"must be a section, [{place}]")
    return table


def _values(
    place: str, table: Mapping[str, Any], rows: Iterable[Setting], file: str, base: Path, also: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of one table; `also` are further names to suggest for an unknown key."""
    known = {row.key: row for row in rows}
    for key in table:
        if key not in known:
            raise ConfigError(file, f"{place}.{key}", _unknown("key", key, [*known, *also]))
    return {key: _value(known[key], value, file, base) for key, value in table.items()}


def _value(row: Setting, value: object, file: str, base: Path) -> object:
    place = f"{row.section}.{row.key}"
    try:
        read = row.kind.read(value)
    except ValueError as reason:
        raise ConfigError(file, place, str(reason)) from None
    if not isinstance(read, Path):
        return read
    path = base / read
    # os.path, because Path.is_file raises where a directory may not be entered.
    if row.kind is FILE and not os.path.isfile(path):
        raise ConfigError(file, place, f"no such file: {path}")
    return path


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f'unknown {what}; did you mean "{near[0]}"?' if near else f"unknown {what}"


def _complete(config: Config) -> Config:
    """Fills in empty values whose default depends on the machine or on another key."""
    hostname, first = config.server.hostname or machine_name(), config.http.bind[0]
    secure = bool(config.http.tls_cert) or (config.acme.enabled and config.acme.http)
    everywhere = first.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    listening = Endpoint(hostname, first.port) if everywhere else first
    base_url = config.http.base_url or f"{'https' if secure else 'http'}://{listening}"
    # The default of acme.names: the names of this server that can be public; none while ACME is off.
    ours = (hostname, urlsplit(base_url).hostname or "") if config.acme.http else (hostname,)
    public = (name for name in ours if config.acme.enabled and "." in name and is_host_name(name))
    return replace(
        config,
        server=replace(config.server, hostname=hostname),
        http=replace(config.http, base_url=base_url),
        acme=replace(config.acme, names=config.acme.names or tuple(dict.fromkeys(public))),
    )


def machine_name() -> str:
    """The machine's own name, without a DNS lookup (getfqdn makes one, and may hang)."""
    name = socket.gethostname().lower()
    return name if is_host_name(name) else "localhost"


def embedded(cwd: Path) -> Config:
    """The settings of a start without any file; state is kept in `cwd`."""
    return replace(_build(EMBEDDED, "built-in defaults", cwd), embedded=True)


def _local(cwd: Path) -> list[Path]:
    """./config.toml, unless this user may not enter the directory, as the service's user may not enter root's home."""
    try:
        os.stat(cwd / LOCAL_FILE)
    except PermissionError:
        return []
    except OSError:
        pass  # it is not there, or reading it says why not
    return [cwd / LOCAL_FILE]


def find(path: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path, str] | None:
    """The first settings file there is, with its text: `path` (--config), the variable's, ./config.toml, /etc.

    A file that was named must exist: another one would mean a start with the wrong settings.
    """
    named = path or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    for file in [cwd / named] if named else [*_local(cwd), SYSTEM_FILE]:
        try:
            return file, file.read_text("utf-8")
        except OSError as error:
            if named or not isinstance(error, FileNotFoundError):
                raise ConfigError(str(file), f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(str(file), "is not UTF-8 text") from None
    return None


def load(path: Path | None, environ: Mapping[str, str], cwd: Path) -> Config:
    """The settings of the file that is found; without any, the embedded ones."""
    found = find(path, environ, cwd)
    return embedded(cwd) if found is None else parse(found[1], found[0])
