"""A small disk of our own for a data directory: a tmpfs, mounted by root, or else in a namespace where we are root."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

MIB = 1024 * 1024
SIZE = 24 * MIB
AT_ONCE = 64 * 1024  # bytes written at once while filling up


@dataclass(frozen=True)
class SmallDisk:
    directory: Path

    @property
    def free(self) -> int:
        facts = os.statvfs(self.directory)
        return facts.f_bavail * facts.f_frsize

    def fill(self, name: str = "ballast", *, leave: int = 0) -> None:
        with (self.directory / name).open("ab", buffering=0) as file:
            while (more := self.free - leave) > 0:
                try:
                    file.write(b"\1" * min(AT_ONCE, more))
                except OSError:
                    return

    def make_room(self, name: str = "ballast") -> None:
        (self.directory / name).unlink()


@contextmanager
def mounted(directory: Path) -> Iterator[SmallDisk]:
    """A small disk at this place; skips the test where even root may not mount one."""
    directory.mkdir(mode=0o700)
    wanted = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(directory)]
    result = subprocess.run(wanted, capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {result.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def run_as_root_of_a_namespace(test: str, directory: Path) -> None:
    """Run one test where this user may mount; as this one cannot go on, it is skipped if the other went well."""
    wanted = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-m", "pytest", "-p", "no:xdist"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    try:
        result = subprocess.run(
            [*wanted, "-p", "no:cacheprovider", f"--basetemp={directory / 'inside'}", test],
            capture_output=True,
            text=True,
            env=environment,
        )
    except FileNotFoundError:
        pytest.skip("only root may mount a small disk, and there is no `unshare`")
    if result.returncode == 0 and "1 passed" in result.stdout:
        pytest.skip("only root may mount a small disk; in a namespace of its own the same test has passed")
    if result.returncode == 0:
        pytest.skip("only root may mount a small disk, and in a namespace of its own no user may")
    if "unshare" in result.stderr:
        pytest.skip(f"only root may mount a small disk, and there are no namespaces: {result.stderr.strip()}")
    pytest.fail(result.stdout + result.stderr)
