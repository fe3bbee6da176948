"""Commands that root runs become the owner of the data directory, the service's user, before they touch it.

So they leave no file there that the server could not open, and that user, who may put anything there, cannot have root
write or read elsewhere for it.
"""

import os
import pwd
import sys
from pathlib import Path

ROOT_UID = 0


def become_owner(directory: Path) -> None:
    """Make this process one of the directory's owner, for good, if it is root's and the directory is not.

    Exits with one line if that user may not read this program, whose modules are loaded when they are needed.
    """
    if os.geteuid() != ROOT_UID or not directory.is_dir() or (facts := directory.stat()).st_uid == ROOT_UID:
        return
    _share_unpacked()
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


def _share_unpacked() -> None:
    """Let others read what the single binary has unpacked for root alone; the files of a package are for all anyway."""
    unpacked = Path(getattr(sys, "_MEIPASS", "/"))
    if not unpacked.stat().st_mode & 0o001:
        for path in (unpacked, *unpacked.rglob("*")):
            path.chmod(0o755)
