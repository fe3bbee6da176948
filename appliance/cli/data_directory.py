"""Checks that this user can use the data directory, before anything is opened; a fault is one line with the remedy.

SQLite reports "unable to open database file" for any file. So every command and the server first check the directory,
its parent if it must be created, and each file in it.
"""

import os
import pwd
from pathlib import Path

from appliance.keys.keyfile import KEY_FILE
from appliance.store import FILE_NAME as DATABASE
from appliance.system.data_directory import LOCK_FILE, ROOT_UID

WRITTEN = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK_FILE)


def why_unusable(data_dir: Path, *, make: bool) -> str | None:
    """Return the fault, or None. A missing directory is a fault only if `make` and it cannot be created."""
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
    files = [(name, os.R_OK | os.W_OK, "600") for name in WRITTEN]
    for name, access, mode in (("", os.W_OK, "700"), *files, (KEY_FILE, os.R_OK, "400")):
        if os.path.lexists(data_dir / name) and not _may(data_dir / name, access):
            return _refused(data_dir / name, mode)
    return None


def why_not_served(data_dir: Path) -> str | None:
    """Return why root must not run the server on it: its owner could not open the files that root writes there."""
    if os.geteuid() != ROOT_UID or not data_dir.is_dir() or data_dir.stat().st_uid == ROOT_UID:
        return None
    owner = _owner(data_dir)
    return f"{data_dir} belongs to {owner}: start the server as that user, as `systemctl start appliance` does"


def _why_not_made(data_dir: Path) -> str | None:
    """Check the nearest existing directory above."""
    above = data_dir.parent
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        return f"{data_dir} cannot be created: {above} is not a directory; change server.data_dir"
    if _may(above, os.W_OK | os.X_OK):
        return None
    if _is_read_only(above):
        return f"{data_dir} cannot be created: {above} is on a read-only file system; mount it writable"
    made = f"`install -d -m 700 -o {_user(os.geteuid())} {data_dir}`, as root"
    return f"{data_dir} cannot be created: {_user(os.geteuid())} may not write to {above}; create it with {made}"


def _may(path: Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _refused(path: Path, right_mode: str) -> str:
    facts, user = path.stat(), _user(os.geteuid())
    if facts.st_uid == os.geteuid():
        return f"{path}: permission denied, its mode is {facts.st_mode & 0o7777:04o}: `chmod {right_mode} {path}`"
    whose = f"{path}: permission denied, it belongs to {_owner(path)} and this runs as {user}"
    if path.is_dir():
        return f"{whose}: run this as {_owner(path)}, or `chown -R {user} {path}`, as root"
    return f"{whose}: `chown {user} {path}`, as root"


def _owner(path: Path) -> str:
    return _user(path.stat().st_uid)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
