"""The steps of an installation. Each has `do()`, and as text the line that the command prints for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# PyInstaller puts its own libraries first, and keeps what was there before.
LIBRARIES, LIBRARIES_BEFORE = "LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG"


class StepFailed(Exception):
    """A step could not be done; the text is one line."""


@dataclass(frozen=True, slots=True)
class Write:
    """A file with this content."""

    path: Path
    content: str
    mode: int = 0o644

    def __str__(self) -> str:
        return f"write {self.path} ({self.mode:04o})"

    def do(self) -> None:
        """Replace the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, self.mode, lambda draft: draft.write_text(self.content, "utf-8"))


@dataclass(frozen=True, slots=True)
class Keep:
    """A file that is there already and is not touched."""

    path: Path

    def __str__(self) -> str:
        return f"keep {self.path} as it is"

    def do(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A program, copied."""

    source: Path
    path: Path

    def __str__(self) -> str:
        return f"copy {self.source} to {self.path} (0755)"

    def do(self) -> None:
        """Replace the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.path, 0o755, lambda draft: shutil.copyfile(self.source, draft))


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    path: Path
    target: Path

    def __str__(self) -> str:
        return f"link {self.path} to {self.target}"

    def do(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self.path.symlink_to(self.target)


@dataclass(frozen=True, slots=True)
class Remove:
    """A file or a directory with all that is in it."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path}"

    def do(self) -> None:
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Run:
    """A command of the system."""

    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"run {' '.join(self.command)}"

    def do(self) -> None:
        """Run it; raises StepFailed with the first line of its error output."""
        environment = own_environment(os.environ, frozen=bool(getattr(sys, "frozen", False)))
        try:
            ran = subprocess.run(  # noqa: S603 - our own constants and paths the operator gave
                self.command, env=environment, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise StepFailed(f"{self.command[0]}: {error.strerror}") from None
        if ran.returncode != 0:
            output = (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}").splitlines()
            raise StepFailed(f"`{' '.join(self.command)}` failed: {output[0]}")


Step = Write | Keep | Copy | Link | Remove | Run


def own_environment(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """The environment for system commands, without the library path of the single binary."""
    given = dict(environ)
    if frozen:
        given.pop(LIBRARIES, None)
        if before := given.pop(LIBRARIES_BEFORE, None):
            given[LIBRARIES] = before
    return given


def _replace(path: Path, mode: int, fill: Callable[[Path], object]) -> None:
    """Write beside the file and rename: a running program keeps the old file."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(0o600)
    fill(draft)
    draft.chmod(mode)
    draft.rename(path)
