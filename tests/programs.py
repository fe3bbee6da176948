"""Programs that a test needs besides Python: where they are, and a skip that names the Debian package of a missing one.

Every skip for want of a program goes through here, so that tests/conftest.py can tell at the end what did not run.
"""

import glob
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "packaging" / "test-programs.txt"
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))  # not in every PATH

_REASON = re.compile(r"needs ([\w-]+) \((?:apt-get install|apt-get download|npm install --global) ([\w.+@/-]+)\)")


@dataclass(frozen=True, slots=True)
class Program:
    """A line of the table."""

    name: str
    package: str
    found_by: tuple[str, ...]

    @property
    def reason(self) -> str:
        if self.package.startswith("npm:"):
            return f"needs {self.name} (npm install --global {self.package.removeprefix('npm:')})"
        if self.package.startswith("unpack:"):
            return f"needs {self.name} (apt-get download {self.package.removeprefix('unpack:')})"
        return f"needs {self.name} (apt-get install {self.package})"

    def find(self) -> str | None:
        for wanted in self.found_by:
            if wanted.startswith("/"):
                found = next(iter(sorted(glob.glob(wanted))), None)
            else:
                found = shutil.which(wanted, path=PLACES)
            if found is not None:
                return found
        return None


def read_table(text: str) -> dict[str, Program]:
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: Program(name, package, tuple(found_by)) for name, package, *found_by in rows}


PROGRAMS = read_table(TABLE.read_text())


def find(name: str) -> str | None:
    return PROGRAMS[name].find()


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find(name) is None, reason=PROGRAMS[name].reason)


def require(name: str) -> str:
    """The path of a program; skips the running test where it is missing."""
    found = find(name)
    if found is None:
        pytest.skip(PROGRAMS[name].reason)
    return found


def missing_program(reason: str) -> tuple[str, str] | None:
    """Name and package of the program for want of which a test was skipped; None when that was not the reason."""
    found = _REASON.fullmatch(reason)
    return None if found is None else (found[1], PROGRAMS[found[1]].package if found[1] in PROGRAMS else found[2])
