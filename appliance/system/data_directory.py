"""The data directory: only one server runs on it, its owner runs root's commands, and its secret files are private.

The lock is on the directory itself, because a deleted lock file would lock nothing. The lock file is locked as well,
for earlier versions and for file systems that cannot lock directories.
"""

import errno
import fcntl
import json
import os
import pwd
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

LOCK_FILE = "appliance.lock"
NO_DIRECTORY_LOCKS = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.EOPNOTSUPP)  # NFS and others
LOCK_TRIES = 4  # `is_running` holds the lock for microseconds, and must not look like a server
LOCK_PAUSE = 0.05  # seconds between two tries
NOTE_BYTES = 4096
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # root reads here as well, and must not wait for a FIFO
ROOT_UID = 0
READ, ENTER = 0o4, 0o1  # bits of a mode


class AlreadyRunning(Exception):
    """Another server runs on this data directory."""


@contextmanager
def only_server(data_dir: Path) -> Iterator[None]:
    """Hold the directory's locks: two servers would deliver the same mail twice."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as locks:
        for path, flags in ((data_dir, os.O_RDONLY), (data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT)):
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
            locks.callback(os.close, descriptor)
            for _ in range(LOCK_TRIES):
                if _try(descriptor, fcntl.LOCK_EX):
                    break
                time.sleep(LOCK_PAUSE)
            else:
                how = "stop it first, for the service with `systemctl stop appliance`"
                raise AlreadyRunning(f"{data_dir}: another server runs on this data directory; {how}")
        yield


def _try(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_DIRECTORY_LOCKS:
            raise
    return True


def is_running(data_dir: Path) -> bool:
    """Whether a server runs on this directory now; creates nothing."""
    for path in (data_dir, data_dir / LOCK_FILE):
        try:
            descriptor = os.open(path, _READ if path == data_dir else _READ | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):  # a lock file that is a link is not ours
                raise
            continue
        try:
            if not _try(descriptor, fcntl.LOCK_SH):
                return True
        finally:
            os.close(descriptor)
    return False


def write_note(data_dir: Path, note: Mapping[str, int]) -> None:
    """Leave numbers about the running server, such as its ports, for commands; they are in the lock file."""
    with open(os.open(data_dir / LOCK_FILE, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "w") as file:
        json.dump(note, file)


def read_note(data_dir: Path) -> dict[str, int]:
    """Return the numbers of the server that runs on this directory; nothing if none runs or the file is unreadable."""
    try:
        if not is_running(data_dir):
            return {}
        with open(os.open(data_dir / LOCK_FILE, _READ | os.O_NOFOLLOW), "rb") as file:
            note = json.loads(file.read(NOTE_BYTES))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in note.items() if type(value) is int} if isinstance(note, dict) else {}


def system_user(uid: int) -> str:
    name = user_argument(uid)
    return f"user {uid}" if name.isdigit() else name


def user_argument(uid: int) -> str:
    """The user as an argument of `chown` and `install -o`: the name, or else the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def as_user(uid: int, gid: int, *, low_ports: bool) -> str:
    """The command with which root runs another as this user. `low_ports`: it may listen on ports below 1024."""
    name = user_argument(uid)
    if low_ports or name.isdigit():  # runuser takes only names
        caps = " --inh-caps +net_bind_service --ambient-caps +net_bind_service" if low_ports else ""
        return f"setpriv --reuid {name} --regid {gid} --clear-groups{caps}"
    return f"runuser -u {name} --"


def allows(path: Path, user: os.stat_result, access: int) -> bool:
    """Whether a file or directory allows this to the owner of another; asked by any user."""
    try:
        facts = path.stat()
    except OSError:  # this user may not even look
        return False
    shift = 6 if facts.st_uid == user.st_uid else 3 if facts.st_gid == user.st_gid else 0
    return bool(facts.st_mode >> shift & access)


_was_root = False


def is_roots_command() -> bool:
    """Whether root started this command, which may run as the owner of the data directory by now."""
    return _was_root or os.geteuid() == ROOT_UID


def become_owner(directory: Path) -> None:
    """Turn root into the directory's owner: so the server can open new files, and root follows no link of its user.

    Exits with one line if that user may not read this program, whose modules are loaded when they are needed.
    """
    global _was_root
    if os.geteuid() != ROOT_UID or not directory.is_dir() or (facts := directory.stat()).st_uid == ROOT_UID:
        return
    _was_root = True
    unpacked = Path(getattr(sys, "_MEIPASS", "/"))
    if not unpacked.stat().st_mode & 0o001:  # the single binary has unpacked its files for root alone
        for path in (unpacked, *unpacked.rglob("*")):
            path.chmod(0o755)
    program = _keep_readable()
    os.environ.pop("HOME", None)  # root's, where this user may not even look: libpq takes that for a fault
    try:
        entry = pwd.getpwuid(facts.st_uid)
    except KeyError:  # a number without a name
        os.setgroups([])
        os.setgid(facts.st_gid)
    else:
        os.environ |= {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
    os.setuid(facts.st_uid)
    if not os.access(program, os.R_OK):
        place = sys.executable if getattr(sys, "frozen", False) else Path(__file__).parents[1]
        whose = f"{os.environ.get('USER', facts.st_uid)}, the owner of {directory}"
        sys.exit(f"Error: {place} cannot be read by {whose}: move it to a directory such as /usr/local/bin")


def _keep_readable() -> str:
    """Return the file that modules are loaded from.

    PyInstaller's reader opens the single binary again for each module. By its descriptor it can be opened even below a
    directory that only root may enter, such as a home directory.
    """
    archive = getattr(sys.modules.get("pyimod02_importers"), "pyz_archive", None)
    if archive is None:
        return sys.executable if getattr(sys, "frozen", False) else __file__
    archive._filename = f"/proc/self/fd/{os.open(archive._filename, os.O_RDONLY)}"
    return str(archive._filename)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private_file(file: Path, content: bytes) -> None:
    """Write a small file that only its owner may read: whole or not at all, and synced to disk."""
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    sync(draft)
    draft.rename(file)
    sync(file.parent)  # else a crash could bring the old name back
