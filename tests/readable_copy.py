"""A copy of the program that every user can read, for tests that run it as another user.

Debian gives root's home mode 0700: another user can read neither a checkout there nor its virtual environment. If root
runs the tests from such a place, forked programs read their code from this copy. It holds the program, its documents
and the packages of packaging/requirements.txt. The processes of one test run share it: the first one announces its
directory in the environment, and the first one that needs the copy makes it.
"""

import fcntl
import os
import re
import shutil
import stat
import sysconfig
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLE = "APPLIANCE_READABLE_COPY"  # names the directory of the copy
FOR_OTHERS = stat.S_IROTH | stat.S_IXOTH
SOURCES = (ROOT / "appliance", Path(sysconfig.get_path("platlib")))


def others_can_read(directory: Path) -> bool:
    """Whether every user can list this directory and pass through those above it."""
    *above, itself = (path.stat().st_mode for path in (*reversed(directory.parents), directory))
    return itself & FOR_OTHERS == FOR_OTHERS and all(mode & stat.S_IXOTH for mode in above)


def announce(sources: Iterable[Path] = SOURCES) -> Path | None:
    """Name the copy's directory to this process and its children; return it if this process has to remove it."""
    if VARIABLE in os.environ or os.geteuid() != 0 or all(map(others_can_read, sources)):
        return None
    directory = Path(tempfile.mkdtemp(prefix="appliance-readable-", dir="/tmp"))
    directory.chmod(0o755)
    os.environ[VARIABLE] = str(directory)
    return directory


def code_paths() -> list[str]:
    """Return where Python looks for the program first: the copy, made now if missing, or nothing if none is needed."""
    if VARIABLE not in os.environ:
        return []
    directory = Path(os.environ[VARIABLE])
    code, packages, is_whole = directory / "code", directory / "packages", directory / "whole"
    with directory.joinpath("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_whole.exists():
            for name in ("appliance", "docs"):
                shutil.copytree(ROOT / name, code / name)
            _copy_packages(packages)
            for path in directory.rglob("*"):
                path.chmod(path.stat().st_mode | (FOR_OTHERS if path.is_dir() else stat.S_IROTH))
            is_whole.touch()
    return [str(code), str(packages)]


def _copy_packages(target: Path) -> None:
    """Copy the installed files of every package the program needs; a package for another Python is not installed."""
    names = re.findall(r"^([\w.-]+)==", (ROOT / "packaging" / "requirements.txt").read_text(), re.MULTILINE)
    for name in dict.fromkeys(names):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue
        for file in files:
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.exists():  # its programs are elsewhere
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / file)
