"""The steps of an installation: each has a line to print and a function that does it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

# PyInstaller puts its own libraries first, and keeps the previous value.
LIBRARIES, LIBRARIES_BEFORE = "LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG"


class StepFailed(Exception):
    """A step failed; the text is one line."""


class InstallStep(NamedTuple):
    """A step; `content` is the content of the file that it writes."""

    line: str
    do: Callable[[], None]
    content: str = ""


def write(path: Path, content: str, mode: int = 0o644) -> InstallStep:
    do = _replacing(path, mode, lambda draft: draft.write_text(content, "utf-8"))
    return InstallStep(f"write {path} ({mode:04o})", do, content)


def keep(path: Path) -> InstallStep:
    return InstallStep(f"keep {path} as it is", lambda: None)


def copy(source: Path, path: Path) -> InstallStep:
    do = _replacing(path, 0o755, lambda draft: shutil.copyfile(source, draft))
    return InstallStep(f"copy {source} to {path} (0755)", do)


def link(path: Path, target: Path) -> InstallStep:
    def do() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return InstallStep(f"link {path} to {target}", do)


def remove(path: Path) -> InstallStep:
    """Remove a file, or a directory with its contents."""

    def do() -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    return InstallStep(f"remove {path}", do)


def run(*command: str) -> InstallStep:
    """Run a system command; raises StepFailed with the first line of its error output."""

    def do() -> None:
        environment = own_environment(os.environ, frozen=bool(getattr(sys, "frozen", False)))
        try:
            ran = subprocess.run(  # noqa: S603 - our own constants, and paths from the operator
                command, env=environment, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise StepFailed(f"{command[0]}: {error.strerror}") from None
        if ran.returncode != 0:
            output = (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}").splitlines()
            raise StepFailed(f"`{' '.join(command)}` failed: {output[0]}")

    return InstallStep(f"run {' '.join(command)}", do)


def own_environment(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """Return the environment for system commands, without the library path of the single binary."""
    environment = dict(environ)
    if frozen:
        environment.pop(LIBRARIES, None)
        if before := environment.pop(LIBRARIES_BEFORE, None):
            environment[LIBRARIES] = before
    return environment


def _replacing(path: Path, mode: int, fill: Callable[[Path], object]) -> Callable[[], None]:
    """Write a draft and rename it: a running program keeps the old file."""

    def do() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        draft.touch(0o600)
        fill(draft)
        draft.chmod(mode)
        draft.rename(path)

    return do
