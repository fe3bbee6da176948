"""Reloads settings while the program runs: all that can change do so together, or none.

A service registers a function of two steps: it reads what may fail (a certificate) and raises to refuse the reload; the
function that it returns applies the new settings and cannot fail.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from appliance.config.settings import SECTIONS, Config, ConfigError, named_tables, settings

# All other settings are read only at start.
_LIVE = {
    "server": "log_level",
    "http": "tls_cert tls_key trusted_proxies max_connections max_connections_per_address header_timeout body_timeout "
    "write_timeout keep_alive_timeout max_body",
    "smtp": "tls_cert tls_key allow_plaintext_auth max_connections max_connections_per_address "
    "max_connections_per_credential command_timeout data_timeout session_timeout",
    "inbound": "tls_cert tls_key",
    "limits": "requests_per_second min_free_disk min_free_disk_percent stored_bytes_per_account",
}
LIVE = frozenset(f"{section}.{key}" for section, keys in _LIVE.items() for key in keys.split())

Prepare = Callable[[Config], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class Changes:
    """The keys that a reload changed, and the keys that need a restart."""

    adopted: tuple[str, ...]
    need_restart: tuple[str, ...]


@dataclass(slots=True)
class LiveSettings:
    """The settings in force, and the services that adopt new ones."""

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
        before, after = getattr(old, section), getattr(new, section)
        yield from (f"{section}.{key}" for key in keys if getattr(before, key) != getattr(after, key))


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
