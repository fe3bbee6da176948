"""Commands that root runs leave no file in the data directory that its owner, the service's user, could not open.

Most commands become that user. `backup`, `restore` and `template` stay root, since they read and write files that may
lie where only root may go; what they create in the data directory gets its owner, which SQLite sees to for its files.
"""

import os
import pwd
import sys
from pathlib import Path

ROOT_UID = 0


def become_owner(directory: Path) -> None:
    """Make this process one of the directory's owner, for good, if it is root's and the directory is not."""
    facts = directory.stat()
    if os.geteuid() != ROOT_UID or facts.st_uid == ROOT_UID:
        return
    _share_unpacked()
    try:
        os.initgroups(pwd.getpwuid(facts.st_uid).pw_name, facts.st_gid)
    except KeyError:  # a number without a name
        os.setgroups([])
    os.setgid(facts.st_gid)
    os.setuid(facts.st_uid)


def _share_unpacked() -> None:
    """Let others read what the single binary has unpacked for root alone; what the package brought is for all already."""
    unpacked = Path(getattr(sys, "_MEIPASS", "/"))
    if not unpacked.stat().st_mode & 0o001:
        for path in (unpacked, *unpacked.rglob("*")):
            path.chmod(0o755)


def give_to_owner(path: Path, directory: Path | None = None) -> None:
    """Give a file that root has created the owner of `directory`, which is its own unless named."""
    if os.geteuid() != ROOT_UID:
        return
    wanted, present = (directory or path.parent).stat(), path.lstat()
    if wanted.st_uid != present.st_uid:  # else not even tried: the service may not change owners
        os.chown(path, wanted.st_uid, wanted.st_gid, follow_symlinks=False)
