"""Loads the settings: one TOML file becomes a frozen Config, or a one-line error with file, key and reason."""

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
from appliance.config.fields import Setting, place_of
from appliance.config.settings import SECTIONS, Config, ConfigError, named_tables, settings
from appliance.config.values import DIRECTORY, FILE, PORT, Endpoint, ValueKind, is_host_name

VARIABLE = "APPLIANCE_CONFIG"
LOCAL_FILE = Path("config.toml")
SYSTEM_FILE = Path("/etc/appliance/config.toml")

# For a first look: only this machine can connect, no mail leaves it, and all state is in one directory.
EMBEDDED: dict[str, Any] = {
    "server": {"hostname": "localhost", "data_dir": "appliance-data"},
    "http": {"bind": ["127.0.0.1:8080"], "base_url": "http://127.0.0.1:8080"},
    "smtp": {"bind": ["127.0.0.1:2587"], "bind_tls": []},
    "delivery": {"mode": "sandbox"},
}
# Environment variables that change these settings.
HTTP_PORT_VARIABLE = "APPLIANCE_HTTP_PORT"
SMTP_PORT_VARIABLE = "APPLIANCE_SMTP_PORT"
DATA_DIR_VARIABLE = "APPLIANCE_DATA_DIR"
EMBEDDED_VARIABLES = {HTTP_PORT_VARIABLE: PORT, SMTP_PORT_VARIABLE: PORT, DATA_DIR_VARIABLE: DIRECTORY}
_INSTEAD = {HTTP_PORT_VARIABLE: "http.bind", SMTP_PORT_VARIABLE: "smtp.bind", DATA_DIR_VARIABLE: "server.data_dir"}
# Appended to the error about a ./config.toml.
_IF_FOREIGN = " (if this file is another program's: start in another directory, or name your own with --config)"


def parse(text: str, file: Path) -> Config:
    """Parse the content of `file`; relative paths in it start at the directory of the file."""
    return replace(_build(_tables(text, file), str(file), file.parent), source=file)


def parse_known(text: str, file: Path) -> tuple[Config, list[str]]:
    """Parse only the sections and keys that this version knows; also return the unknown ones."""
    tables, unknown = _tables(text, file), []
    known = set(known_keys())
    for name, table in list(tables.items()):
        if name not in SECTIONS:
            unknown.append(name)
            del tables[name]
            continue
        nested = {kind.key for kind in named_tables(name)}
        for key in list(_table(name, table, str(file))):
            if key in nested:
                for title, inner in _table(f"{name}.{key}", table[key], str(file)).items():
                    place = place_of(f"{name}.{key}", title)
                    for inner_key in list(_table(place, inner, str(file))):
                        if f"{name}.{key}.*.{inner_key}" not in known:
                            unknown.append(f"{place}.{inner_key}")
                            del inner[inner_key]
            elif f"{name}.{key}" not in known:
                unknown.append(f"{name}.{key}")
                del table[key]
    return replace(_build(tables, str(file), file.parent), source=file), unknown


def known_keys() -> tuple[str, ...]:
    """Return every key of this version, with its section; `*` replaces a name that the operator chooses."""
    plain = [f"{row.section}.{row.key}" for name in SECTIONS for row in settings(name)]
    nested = [
        f"{kind.place}.*.{row.key}"
        for name in SECTIONS
        for kind in named_tables(name)
        for row in kind.settings(kind.example)
    ]
    return (*plain, *nested)


def _tables(text: str, file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(str(file), "nested too deeply") from None
    except ValueError as error:
        # The text is "reason (at line 1, column 2)" or "reason (at end of document)".
        match = re.fullmatch(r"(.*) \(at (?:(line \d+, column \d+)|end of document)\)", str(error), re.DOTALL)
        last = f"line {text.rstrip().count(chr(10)) + 1}"
        place, reason = (match[2] or last, match[1]) if match else (last, str(error))
        raise ConfigError(str(file), place, reason) from None


def _build(tables: Mapping[str, Any], file: str, base: Path) -> Config:
    for name in tables:
        if name not in SECTIONS:
            raise ConfigError(file, name, _unknown("section", name, SECTIONS))
    sections = {name: _section(name, tables.get(name, {}), file, base) for name in SECTIONS}
    config = _complete(Config(**sections))
    check_together(config, file)
    return config


def _section(name: str, table: object, file: str, base: Path) -> Any:
    keys = _table(name, table, file)
    nested = {kind.key: kind for kind in named_tables(name)}
    plain = {key: value for key, value in keys.items() if key not in nested}
    values = _values(name, plain, settings(name), file, base, nested)
    for key in keys.keys() & nested.keys():
        kind, values[key] = nested[key], {}
        for title, inner in _table(kind.place, keys[key], file).items():
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
    """Read the values of one table; `also` are further names to suggest for an unknown key."""
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
    # os.path, because Path.is_file raises for a directory that may not be searched.
    if row.kind is FILE and not os.path.isfile(path):
        raise ConfigError(file, place, f"no such file: {path}")
    return path


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f'unknown {what}; did you mean "{near[0]}"?' if near else f"unknown {what}"


def _complete(config: Config) -> Config:
    """Fill in empty values whose default depends on the machine or on another key."""
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


def named_host(text: str, file: Path) -> str:
    """Return the host name in a settings file, or an empty text. Raises ConfigError if the file is not valid."""
    parse(text, file)
    return str(tomllib.loads(text).get("server", {}).get("hostname", ""))


def machine_name() -> str:
    """Return the machine's name without a DNS lookup (getfqdn makes one, and may hang)."""
    name = socket.gethostname().lower()
    return name if is_host_name(name) else "localhost"


def embedded(cwd: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Return the built-in settings, for a start without a file; state is kept in `cwd`."""
    return replace(_build(embedded_tables(environ or {}), "built-in settings", cwd), embedded=True)


def embedded_tables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the built-in settings as a file would contain them."""
    tables = {name: dict(table) for name, table in EMBEDDED.items()}
    if port := _variable(HTTP_PORT_VARIABLE, environ):
        tables["http"] = {"bind": [f"127.0.0.1:{port}"], "base_url": f"http://127.0.0.1:{port}"}
    if port := _variable(SMTP_PORT_VARIABLE, environ):
        tables["smtp"]["bind"] = [f"127.0.0.1:{port}"]
    if directory := _variable(DATA_DIR_VARIABLE, environ):
        tables["server"]["data_dir"] = directory
    return tables


def _variable(name: str, environ: Mapping[str, str]) -> str:
    """Return the checked value of a variable; "" if it is not set."""
    text = environ.get(name, "")
    kind: ValueKind[Any] = EMBEDDED_VARIABLES[name]
    try:
        if text:
            kind.read(int(text) if kind is PORT and text.isascii() and text.isdigit() else text)
    except ValueError as reason:
        raise ConfigError(f"${name}", str(reason)) from None
    return text


def find(path: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path, str] | None:
    """Return the first settings file with its text: `path` (--config), the variable's, ./config.toml, /etc.

    A named file must exist, because a fallback would start with the wrong settings. For the same reason a
    ./config.toml that cannot be read, or lacks all of these sections, is an error.
    """
    named = path or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    local = cwd / LOCAL_FILE
    for file in [cwd / named] if named else [local, SYSTEM_FILE]:
        hint = _IF_FOREIGN if file is local else ""
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            if not named and (isinstance(error, FileNotFoundError) or not _may_enter(file.parent)):
                continue
            reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is not UTF-8 text"
            raise ConfigError(str(file), reason + hint) from None
        if hint and not _has_our_section(text):
            try:
                parse(text, file)
            except ConfigError as error:
                raise ConfigError(f"{error}{hint}") from None
        return file, text
    return None


def _may_enter(directory: Path) -> bool:
    """Whether this user may search a directory; otherwise it cannot know whether a file exists."""
    return os.access(directory, os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def _has_our_section(text: str) -> bool:
    """Whether a section, or a line that starts one, has a name of ours; otherwise the file may be another program's."""
    return any(match[1] in SECTIONS for match in re.finditer(r"^[ \t]*\[{1,2}[ \t]*\"?([A-Za-z]+)", text, re.MULTILINE))


def load(path: Path | None, environ: Mapping[str, str], cwd: Path) -> Config:
    """Load the first settings file, or without any the built-in settings."""
    source = find(path, environ, cwd)
    if source is None:
        return embedded(cwd, environ)
    file, text = source
    for name in EMBEDDED_VARIABLES:
        if environ.get(name):
            reason = f"is only for a start without a settings file: set {_INSTEAD[name]} in {file} instead"
            raise ConfigError(f"${name}", reason)
    return parse(text, file)
