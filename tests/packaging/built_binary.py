"""What packaging/build-binary and packaging/build-deb have made, for the tests that need it.

Building takes a minute, so that is not done by the suite: CI does it afterwards (.ci/run). What is older than the
sources is not tested, because it would say nothing about them.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("appliance", "docs", "packaging")


def newest_source() -> float:
    files = [path for name in SOURCES for path in (ROOT / name).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return max(path.stat().st_mtime for path in files)


def made(path: Path, command: str) -> Path:
    """That file, or a skipped test that says how to make it; with $APPLIANCE_PACKED it must be there."""
    if path.exists() and path.stat().st_mtime >= newest_source():
        return path
    reason = f"{path.name} is not there or older than the sources: {command}"
    if os.environ.get("APPLIANCE_PACKED"):
        pytest.fail(reason)
    pytest.skip(reason)


def binary() -> Path:
    return made(ROOT / "dist" / "appliance", "sh packaging/build-binary")


def package() -> Path:
    found = sorted((ROOT / "dist").glob("mail-appliance_*.deb"), key=lambda path: path.stat().st_mtime)
    return made(found[-1] if found else ROOT / "dist" / "mail-appliance.deb", "sh packaging/build-deb")
