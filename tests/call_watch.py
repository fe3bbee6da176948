"""The real program, which names the files that ran: `python -m tests.call_watch serve --config …`.

Every call of a product function is noted, on every thread. Each connection to the socket that WATCH_SOCKET names
receives the files of the functions called since the last connection, as one line of JSON.
"""

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import appliance
from appliance.cli import main
from tests.loop_watch import ask, serve_watch

PRODUCT = str(Path(appliance.__file__).parent) + os.sep


class Watch:
    """The files in which a function was called."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(PRODUCT):
            self.files.add(name.removeprefix(PRODUCT))

    def take(self) -> list[str]:
        files, self.files = self.files, set()
        return sorted(files)


def run_watched() -> None:
    """Be `python -m appliance`, with every thread watched."""
    watch = Watch()
    serve_watch(watch.take)
    threading.setprofile(watch.note)
    sys.setprofile(watch.note)
    main()


def program() -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.call_watch")


def files_called(path: str) -> list[str]:
    """Return the files in which a function was called since the last call."""
    files: list[str] = ask(path)
    return files


if __name__ == "__main__":
    run_watched()
