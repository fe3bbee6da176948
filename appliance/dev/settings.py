"""The settings of `appliance dev`, and where it keeps its data. Only this machine may reach it."""

import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from appliance.config.load import embedded
from appliance.config.settings import Config, ConfigError, LogLevel
from appliance.config.values import MIB, Endpoint, Share
from appliance.system.data_directory import is_running

LOCAL_IPV4, LOCAL_IPV6 = "127.0.0.1", "::1"
# A resolver that does not answer: no DNS query leaves the machine.
NOWHERE = Endpoint(LOCAL_IPV4, 9)
LOCAL_CONNECTIONS = 500  # from one address: all clients are on this machine
KEPT_SECONDS = 30 * 86400.0
STOP_SECONDS = 15.0
STARTING = 60  # seconds in which a directory may not be locked yet
MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is created in it
MEMORY_NEEDED = 256 * MIB  # free space; Docker's default is 64 MiB
MEMORY_PREFIX = "appliance-dev-"


def dev_settings(http_port: int, smtp_port: int, data_dir: Path) -> Config:
    """Settings of a server that only this machine can reach and that connects to no other machine."""
    base = embedded(data_dir)
    hosts = [LOCAL_IPV4, LOCAL_IPV6] if _has_ipv6() else [LOCAL_IPV4]
    http_port, smtp_port = http_port or _free_port(), smtp_port or _free_port()
    http_binds, smtp_binds = (tuple(Endpoint(host, port) for host in hosts) for port in (http_port, smtp_port))
    return replace(
        base,
        server=replace(base.server, data_dir=data_dir, shutdown_timeout=STOP_SECONDS, log_level=LogLevel.WARNING),
        http=replace(
            base.http,
            bind=http_binds,
            base_url=f"http://localhost:{http_port}",
            max_connections_per_address=LOCAL_CONNECTIONS,
        ),
        smtp=replace(
            base.smtp, bind=smtp_binds, allow_plaintext_auth=True, max_connections_per_address=LOCAL_CONNECTIONS
        ),
        dns=replace(base.dns, resolvers=(NOWHERE,)),
        webhooks=replace(base.webhooks, ports=()),  # none but plain http to this machine
        limits=replace(
            base.limits,
            requests_per_second=0,
            min_free_disk=16 * MIB,
            min_free_disk_percent=0,
            stored_bytes_per_account=Share(),
        ),
        retention=replace(base.retention, bodies=KEPT_SECONDS, metadata=KEPT_SECONDS),
        log=replace(base.log, messages=False),
        local_webhooks=True,
    )


def check_loopback(config: Config) -> None:
    """Raise ConfigError if a listener could be reached from another machine: no client needs a login."""
    for key, binds in (("http.bind", config.http.bind), ("smtp.bind", config.smtp.bind)):
        for bind in binds:
            if not is_loopback(bind.host):
                raise ConfigError("appliance dev", key, f"{bind} is not a loopback address")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def data_directory(named: Path | None) -> Iterator[Path]:
    """The named directory, or one on a memory file system that is deleted at the end."""
    if named is not None:
        yield named.absolute()
        return
    parent = _memory()
    _delete_leftovers(parent)
    directory = Path(tempfile.mkdtemp(prefix=MEMORY_PREFIX, dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _memory() -> Path:
    """A memory file system with enough room, or the directory for temporary files."""
    with suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED:
            return MEMORY
    return Path(tempfile.gettempdir())


def _delete_leftovers(parent: Path) -> None:
    """Delete this user's directories of servers that were killed."""
    for directory in parent.glob(f"{MEMORY_PREFIX}*"):
        with suppress(OSError):
            facts = directory.lstat()
            is_own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            if is_own and facts.st_mtime < time.time() - STARTING and not is_running(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind((LOCAL_IPV6, 0))
        return True
    return False


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind((LOCAL_IPV4, 0))
        return int(chosen.getsockname()[1])
