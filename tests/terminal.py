"""A terminal for the program; tests that need one are skipped where the machine has none."""

import os
import pty
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fork_client import fork


def open_terminal() -> tuple[int, int]:
    """Our end and the program's end; a chroot without /dev/pts has no terminals."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine has no terminals (is /dev/pts mounted?): {error}")


def shown_on_terminal(*words: str, columns: int = 80, **environment: str) -> str:
    """What a command of the program prints on a terminal of this width."""
    ours, theirs = open_terminal()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **environment}
    with open(ours, "rb", buffering=0) as shown, open(theirs, "wb") as terminal:
        process = fork(*words, directory=Path.cwd(), environment=environment, stdout=terminal, stderr=terminal)
        terminal.close()
        text = b""
        with suppress(OSError):  # EIO once the program has ended
            while data := shown.read(65_536):
                text += data
        process.wait(60)
    return text.decode().replace("\r", "")
