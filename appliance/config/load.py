"""Loads the settings: one TOML file becomes a frozen Config, or a one-line error with file, key and reason.

A reload applies all settings that can change, or none. For it a service registers a function of two steps: it reads
what may fail (a certificate) and raises to refuse the reload; the function that it returns applies the new settings.
"""

import difflib
import os
import re
import socket
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field

from appliance.config import values as v
from appliance.config.checks import check_together
from appliance.config.settings import (
    SECTIONS,
    Config,
    ConfigError,
    named_tables,
    section_of,
    settings,
)

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
EMBEDDED_VARIABLES = {HTTP_PORT_VARIABLE: "http.bind", SMTP_PORT_VARIABLE: "smtp.bind"}
EMBEDDED_VARIABLES |= {DATA_DIR_VARIABLE: "server.data_dir"}
# Appended to the error about a ./config.toml.
_IF_FOREIGN = " (if this file is another program's: start in another directory, or name your own with --config)"


def parse(text: str, file: Path) -> Config:
    """Parse the content of `file`; relative paths in it start at the directory of the file."""
    return replace(_build(_tables(text, file), _Source(str(file), file.parent)), source=file)


def parse_known(text: str, file: Path) -> tuple[Config, list[str]]:
    """Parse only the sections and keys that this version knows; also return the unknown ones."""
    unknown: list[str] = []
    return replace(_build(_tables(text, file), _Source(str(file), file.parent, unknown)), source=file), unknown


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


class _Source(Struct, frozen=True):
    """The file, the directory where its relative paths start, and a list for unknown names; None: they are errors."""

    file: str
    base: Path
    unknown: list[str] | None = None

    def error(self, place: str, reason: object) -> ConfigError:
        return ConfigError(self.file, place, str(reason))

    def known(self, table: Mapping[str, Any], names: Iterable[str], kind: str, place: str = "") -> Iterator[str]:
        """Yield the names in a table that this version knows."""
        for name in table:
            if name in names:
                yield name
            elif self.unknown is None:
                near = difflib.get_close_matches(name, list(names), n=1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                raise self.error(place + name, f"unknown {kind}{hint}")
            else:
                self.unknown.append(place + name)

    def table(self, place: str, table: object) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.error(place, f"must be a section, [{place}]")
        return table


def _build(tables: Mapping[str, Any], source: _Source) -> Config:
    tables = lifted(tables)
    known = set(source.known(tables, SECTIONS, "section"))
    sections = {name: _section(name, tables[name] if name in known else {}, source) for name in SECTIONS}
    config = _complete(Config(**{name.replace(".", "_"): section for name, section in sections.items()}))
    check_together(config, source.file)
    return config


def lifted(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables with sections in sections, such as `[delivery.ramp]`, under their whole names."""
    results = dict(tables)
    for name in SECTIONS:
        outer, _, inner = name.rpartition(".")
        if outer and isinstance(table := results.get(outer), dict) and inner in table:
            results[name] = table[inner]
            results[outer] = {key: value for key, value in table.items() if key != inner}
    return results


def _section(name: str, table: object, source: _Source) -> Any:
    keys = source.table(name, table)
    nested = {kind.key: kind for kind in named_tables(name)}
    plain = {key: value for key, value in keys.items() if key not in nested}
    values = _values(name, plain, settings(name), source, nested)
    for key in keys.keys() & nested.keys():
        kind, values[key] = nested[key], {}
        for title, inner in source.table(kind.place, keys[key]).items():
            place = v.place_of(kind.place, title)
            try:
                read = kind.name.read(title)
            except ValueError as reason:
                raise source.error(place, f"the name {reason}") from None
            inner_values = _values(place, source.table(place, inner), kind.settings(title), source)
            values[key][read] = kind.record(**inner_values)
    return SECTIONS[name](**values)


def _values(
    place: str, table: Mapping[str, Any], rows: Iterable[v.Setting], source: _Source, also: Iterable[str] = ()
) -> dict[str, Any]:
    """Read the values of one table; `also` are further names to suggest for an unknown key."""
    known = {row.key: row for row in rows}
    keys = [key for key in source.known(table, [*known, *also], "key", f"{place}.") if key in known]
    return {v.field_name(key): _value(known[key], table[key], source) for key in keys}


def _value(row: v.Setting, value: object, source: _Source) -> object:
    place = f"{row.section}.{row.key}"
    try:
        read = row.kind.read(value)
    except ValueError as reason:
        raise source.error(place, reason) from None
    if not isinstance(read, Path):
        return read
    path = source.base / read
    # os.path, because Path.is_file raises for a directory that may not be searched.
    if row.kind is v.FILE and not os.path.isfile(path):
        raise source.error(place, f"no such file: {path}")
    return path


def _complete(config: Config) -> Config:
    """Fill in empty values whose default depends on the machine or on another key."""
    hostname, first = config.server.hostname or machine_name(), config.http.bind[0]
    secure = bool(config.http.tls_cert) or (config.acme.enabled and config.acme.http)
    everywhere = first.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    listening = v.Endpoint(hostname, first.port) if everywhere else first
    base_url = config.http.base_url or f"{'https' if secure else 'http'}://{listening}"
    # The default of acme.names: the names of this server that can be public; none while ACME is off.
    ours = (hostname, urlsplit(base_url).hostname or "") if config.acme.http else (hostname,)
    public = (name for name in ours if config.acme.enabled and "." in name and v.is_host_name(name))
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
    return name if v.is_host_name(name) else "localhost"


def embedded(cwd: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Return the built-in settings, for a start without a file; state is kept in `cwd`."""
    return replace(_build(embedded_tables(environ or {}), _Source("built-in settings", cwd)), embedded=True)


def embedded_tables(environ: Mapping[str, str]) -> dict[str, Any]:
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
    kind: v.ValueKind[Any] = v.DIRECTORY if name == DATA_DIR_VARIABLE else v.PORT
    try:
        if text:
            kind.read(int(text) if kind is v.PORT and text.isascii() and text.isdigit() else text)
    except ValueError as reason:
        raise ConfigError(f"${name}", str(reason)) from None
    return text


def find(path: Path | None, environ: Mapping[str, str], cwd: Path) -> tuple[Path, str] | None:
    """Return the first settings file with its text: `path` (--config), the variable's, ./config.toml, /etc.

    A named file must exist, and a ./config.toml must be ours: a fallback would start with the wrong settings.
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
    source = find(path, environ, cwd)
    if source is None:
        return embedded(cwd, environ)
    file, text = source
    for name, setting in EMBEDDED_VARIABLES.items():
        if environ.get(name):
            reason = f"is only for a start without a settings file: set {setting} in {file} instead"
            raise ConfigError(f"${name}", reason)
    return parse(text, file)


# ---- reload

# All other settings are read only at start.
_LIVE = {
    "server": "log_level",
    "http": "tls_cert tls_key trusted_proxies max_connections max_connections_per_address header_timeout body_timeout "
    "write_timeout keep_alive_timeout max_body doors",
    "smtp": "tls_cert tls_key allow_plaintext_auth max_connections max_connections_per_address "
    "max_connections_per_credential command_timeout data_timeout session_timeout",
    "inbound": "tls_cert tls_key",
    "limits": "requests_per_second min_free_disk min_free_disk_percent stored_bytes_per_account",
}
LIVE = frozenset(f"{section}.{key}" for section, keys in _LIVE.items() for key in keys.split())

Prepare = Callable[[Config], Callable[[], None]]


class Changes(Struct, frozen=True):
    """The keys that a reload changed, and the keys that need a restart."""

    adopted: tuple[str, ...]
    need_restart: tuple[str, ...]


class LiveSettings(Struct):
    config: Config
    _services: list[Prepare] = field(default_factory=list)

    def join(self, prepare: Prepare) -> None:
        self._services.append(prepare)

    def take_over(self, new: Config) -> Changes:
        """Apply the settings that can change; if a service refuses, raise and change nothing."""
        changed = tuple(_changed(self.config, new))
        adopted = tuple(key for key in changed if _can_change(key, self.config, new))
        config = _with(self.config, new, adopted)
        # The only rule between a setting that can change and one that cannot.
        if config.http.body_memory < config.http.max_body:
            reason = "is larger than the current body_memory: restart to change both"
            raise ConfigError(str(new.source), "http.max_body", reason)
        for adopt in [prepare(config) for prepare in self._services]:
            adopt()
        self.config = config
        return Changes(adopted, tuple(key for key in changed if key not in adopted))


def _changed(old: Config, new: Config) -> Iterator[str]:
    """Yield the keys whose values differ, in documentation order; for named tables only the table's key."""
    for section in SECTIONS:
        keys = [row.key for row in settings(section)] + [kind.key for kind in named_tables(section)]
        before, after = section_of(old, section), section_of(new, section)
        yield from (
            f"{section}.{key}"
            for key in keys
            if getattr(before, v.field_name(key)) != getattr(after, v.field_name(key))
        )


def _can_change(key: str, old: Config, new: Config) -> bool:
    if key in ("http.tls_cert", "http.tls_key"):
        always = old.acme.enabled and old.acme.http  # the ACME certificate replaces missing files
        # Whether a listener speaks HTTP or HTTPS is decided when it opens.
        return always or bool(old.http.tls_cert) == bool(new.http.tls_cert)
    return key in LIVE


def _with(old: Config, new: Config, keys: tuple[str, ...]) -> Config:
    for key in keys:
        section, _, name = key.partition(".")
        value = getattr(getattr(new, section), name)
        old = replace(old, **{section: replace(getattr(old, section), **{name: value})})
    return old
