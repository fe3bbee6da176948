"""A terminal for the program; tests that need one are skipped where the machine has none."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def open_terminal() -> tuple[int, int]:
    """Our end and the program's end; a chroot without /dev/pts has no terminals."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine has no terminals (is /dev/pts mounted?): {error}")


def shown_on_terminal(command: str, columns: int = 80, **environment: str) -> str:
    """What a command prints on a terminal of this width."""
    for end in open_terminal():
        os.close(end)
    return subprocess.run(
        [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1].split())", command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns), "TERM": "xterm", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    ).stdout.replace("\r", "")
