"""One line for every failure of a command: what an operator can repair, or where the details of a bug are.

SQLite reports "unable to open database file" for any file. So every command and the server first check the data
directory, its parent if it must be created, and each file in it.
"""

import errno
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from appliance.backup.unfinished import RestoreInterrupted
from appliance.cli.output import printable
from appliance.config.settings import Config, ConfigError
from appliance.environment import Environment
from appliance.errors import error_text
from appliance.keys.keyfile import KEY_FILE, KeyFileError
from appliance.net.local_addresses import bind_error, binds
from appliance.store import (
    FILE_NAME,
    NO_SPACE_ERRNOS,
    DamagedDatabase,
    DatabaseFault,
    DatabaseRefused,
    DiskFault,
    FilesMissed,
    NewerDatabase,
    OlderDatabase,
    UnfinishedCopy,
    UpgradeRefused,
)
from appliance.system.data_directory import LOCK_FILE, AlreadyRunning, system_user, user_argument
from appliance.system.service import start_command
from appliance.times import rfc3339

# Errors of bind(2), which do not name the address.
ADDRESS_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
_ADVICE = {
    errno.EADDRINUSE: "change {key}, or stop the program that listens there",
    errno.EADDRNOTAVAIL: "change {key} to an address of this machine",
    errno.EACCES: "ports below 1024 need a privilege, which the systemd service has; otherwise change {key}",
}

_NO_THREAD = "can't start new thread"  # Python's text when there is no memory for the stack

FAILURES_FILE = "failures.log"  # in the data directory
FAILURES_KEPT = 1024 * 1024  # bytes; a longer file is truncated first
SHOWN = 300  # characters of an exception's text
LITTLE = 1024 * 1024  # bytes; a start writes a few pages


def explain(error: BaseException, config: Config) -> str | None:
    """Return the line for this failure; None if it is a bug."""
    lines = [_line(leaf, config) for leaf in leaves(error)]
    return lines[0] if lines and None not in lines else None


def unexpected(error: BaseException, data_dir: Path | None) -> str:
    """Return the line for a bug, and write its details into a file that the line names."""
    reference = secrets.token_hex(4)
    details = "".join(traceback.format_exception(error))
    first = next(leaves(error), error)
    text = " ".join(f"{type(first).__name__}: {first}".split())[:SHOWN]
    entry = f"---- {rfc3339(Environment().now())} {reference} {sys.argv[1:3]}\n{details}"
    try:
        file = str(_write_details(data_dir, entry))
    except OSError as cause:
        file = f"nowhere ({error_text(cause)})"
    return f"unexpected failure, which is a bug: {printable(text)}; details in {file}, reference {reference}"


def _write_details(data_dir: Path | None, entry: str) -> Path:
    """Write into the data directory if this user owns it, otherwise into a new temporary file."""
    try:
        if data_dir is not None and data_dir.stat().st_uid == os.geteuid():
            file = data_dir / FAILURES_FILE
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            is_long = file.exists() and file.stat().st_size > FAILURES_KEPT
            with open(os.open(file, flags | (os.O_TRUNC if is_long else 0), 0o600), "w", errors="replace") as opened:
                opened.write(entry)
            return file
    except OSError:
        pass  # use a temporary file
    descriptor, name = tempfile.mkstemp(prefix="appliance-failure-", suffix=".log")
    with open(descriptor, "w", errors="replace") as opened:
        opened.write(entry)
    return Path(name)


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _line(error: BaseException, config: Config) -> str | None:
    file = config.server.data_dir / FILE_NAME
    if isinstance(error, KeyFileError | ConfigError | AlreadyRunning | RestoreInterrupted):
        return str(error)
    if isinstance(error, DatabaseRefused) or (
        isinstance(error, NewerDatabase | OlderDatabase | UnfinishedCopy) and config.store.url
    ):
        return f"store.url: {error}"
    if isinstance(error, NewerDatabase | OlderDatabase | UpgradeRefused | FilesMissed | UnfinishedCopy):
        return f"{file}: {error}"
    if isinstance(error, DamagedDatabase):
        return f"{file}: {damaged(error)}"
    if isinstance(error, DatabaseFault):
        room = _room(config) if isinstance(error, DiskFault) else ""
        return f"{file}: the database cannot be used: {error}{room}"
    if isinstance(error, OSError):
        return _system_line(error, config)
    if isinstance(error, MemoryError) or str(error) == _NO_THREAD:
        return "out of memory: give the process more; no accepted mail is lost"
    return None


def _with_free_ports(config: Config) -> str:
    """Return the command as the operator typed it, with free ports instead of those in use."""
    context, free = click.get_current_context(), dict(_free_ports(config))
    words = [f"appliance {context.info_name}"]
    for option in context.command.params:
        typed = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if typed and option.opts[0] not in free:
            value = context.params.get(option.name or "")  # None: a flag that another function reads
            words += option.opts if value in (None, True) else (option.opts[0], shlex.quote(str(value)))
    return " ".join(words + [f"{option} {port}" for option, port in free.items()])


def _free_ports(config: Config) -> Iterator[tuple[str, int]]:
    """Yield the options whose port is in use, each with the next free port."""
    for option, addresses in (("--port", config.http.bind), ("--smtp-port", config.smtp.bind)):
        ports = range(addresses[0].port, 65536)
        free = (port for port in ports if not any(bind_error(one._replace(port=port)) for one in addresses))
        if (port := next(free, 0)) != addresses[0].port:
            yield option, port


def damaged(error: BaseException) -> str:
    what = str(error).removeprefix("the database is damaged: ")
    return (
        f"the database is damaged ({what}). Keep a copy of the data directory, "
        "then restore the last good backup: appliance restore FILE --force"
    )


def _room(config: Config) -> str:
    """Return the advice for a full disk, if it is full: SQLite often reports only that a write failed."""
    data_dir = config.server.data_dir
    try:
        if shutil.disk_usage(data_dir).free < LITTLE:
            return f"; the disk is full: free space on the disk of {data_dir}"
        with tempfile.TemporaryFile(dir=data_dir) as probe:  # the only way to detect a quota
            probe.write(bytes(LITTLE))
    except OSError as error:
        return f"; {_make_room(error, config)}" if error.errno in NO_SPACE_ERRNOS else ""
    return ""


def _make_room(error: OSError, config: Config) -> str:
    advice = "raise the quota, or free space" if error.errno == errno.EDQUOT else "free space"
    return f"{error_text(error)}: {advice} on the disk of {config.server.data_dir}"


def _system_line(error: OSError, config: Config) -> str:
    reason = error_text(error)
    if error.errno in NO_SPACE_ERRNOS:
        return _make_room(error, config)
    if error.filename is not None:
        return f"{error.filename}: {reason} (server.data_dir is {config.server.data_dir})"
    if error.errno in ADDRESS_ERRORS:
        for key, address in binds(config):
            if bind_error(address) == error.errno:
                advice = _ADVICE[error.errno].format(key=key)
                if config.embedded and error.errno == errno.EADDRINUSE:
                    advice = f"use another port: {_with_free_ports(config)}"
                return f"cannot listen on {address}: {reason}; {advice}"
    return f"operating system error: {reason}"


# ---- the data directory
def why_unusable(data_dir: Path, *, make: bool) -> str | None:
    """Return the fault with its remedy, or None. A missing directory is a fault only if `make` cannot create it."""
    if not os.path.lexists(data_dir):
        return _why_not_made(data_dir) if make else None
    if data_dir.is_symlink() and not data_dir.exists():
        return f"{data_dir} is a link to {os.readlink(data_dir)}, which does not exist: repair the link"
    if not data_dir.is_dir():
        return f"{data_dir} is a file, but server.data_dir must be a directory: move the file or change the setting"
    if not _may(data_dir, os.R_OK | os.X_OK):
        return _refused(data_dir, "700")
    if _is_read_only(data_dir):
        return f"{data_dir} is on a read-only file system: mount it writable"
    written = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", LOCK_FILE)
    files = [(name, os.R_OK | os.W_OK, "600") for name in written]
    for name, access, mode in (("", os.W_OK, "700"), *files, (KEY_FILE, os.R_OK, "400")):
        if os.path.lexists(data_dir / name) and not _may(data_dir / name, access):
            return _refused(data_dir / name, mode)
    return None


def why_not_served(settings: Config) -> str | None:
    """Return why root must not run the server on it: its owner could not open the files that root writes there."""
    data_dir = settings.server.data_dir
    if os.geteuid() != 0 or not data_dir.is_dir() or data_dir.stat().st_uid == 0:
        return None
    command = start_command(settings, by_root=True)
    return f"{data_dir} belongs to {_owner(data_dir)}: start the server as that user, with `{command}`"


def _why_not_made(data_dir: Path) -> str | None:
    above = data_dir.parent
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        return f"{data_dir} cannot be created: {above} is not a directory; change server.data_dir"
    if _may(above, os.W_OK | os.X_OK):
        return None
    if _is_read_only(above):
        return f"{data_dir} cannot be created: {above} is on a read-only file system; mount it writable"
    made = f"`install -d -m 700 -o {user_argument(os.geteuid())} {data_dir}`, as root"
    return f"{data_dir} cannot be created: {system_user(os.geteuid())} may not write to {above}; create it with {made}"


def _may(path: Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _refused(path: Path, right_mode: str) -> str:
    facts, user = path.stat(), user_argument(os.geteuid())
    if facts.st_uid == os.geteuid():
        return f"{path}: permission denied, its mode is {facts.st_mode & 0o7777:04o}: `chmod {right_mode} {path}`"
    whose = f"{path}: permission denied, it belongs to {_owner(path)} and this runs as {system_user(os.geteuid())}"
    if path.is_dir():
        return f"{whose}: run this as {_owner(path)}, or `chown -R {user} {path}`, as root"
    return f"{whose}: `chown {user} {path}`, as root"


def _owner(path: Path) -> str:
    return system_user(path.stat().st_uid)
