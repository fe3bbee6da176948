"""The real program, which names the files that ran: `python -m tests.call_watch serve --config …`.

Every call of a product function is noted, on every thread. Each connection to the socket that WATCH_SOCKET names
receives the functions called since the last connection, as one line of JSON: those of the event loop's thread, and
those of others.
"""

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import appliance
from appliance.cli import main
from tests.loop_watch import ask, serve_watch

PRODUCT = str(Path(appliance.__file__).parent) + os.sep


Function = tuple[str, str]  # file and name


class Calls(NamedTuple):
    on_loop: set[Function]
    on_threads: set[Function]

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.on_loop | self.on_threads}


class Watch:
    """The functions that were called."""

    def __init__(self) -> None:
        self.calls = Calls(set(), set())
        self.loop = threading.get_ident()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(PRODUCT):
            function = name.removeprefix(PRODUCT), frame.f_code.co_name
            self.calls[threading.get_ident() != self.loop].add(function)

    def take(self) -> list[list[Function]]:
        calls, self.calls = self.calls, Calls(set(), set())
        return [sorted(functions) for functions in calls]


def run_watched() -> None:
    """Be `python -m appliance`, with every thread watched."""
    watch = Watch()
    serve_watch(watch.take)
    threading.setprofile(watch.note)
    sys.setprofile(watch.note)
    main()


def program() -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.call_watch")


def calls(path: str) -> Calls:
    """Return the functions called since the last call."""
    return Calls(*({(file, name) for file, name in functions} for functions in ask(path)))


if __name__ == "__main__":
    run_watched()
