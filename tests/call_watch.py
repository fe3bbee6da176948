"""The real program, which tells what of it ran: `python -m tests.call_watch serve --config …`, for tests of its shape.

Every call of a product function is noted, on every thread. Each connection to the socket that WATCH_SOCKET names is
told the files of those called since the last one, as one line of JSON.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import appliance
from appliance.cli import main

PRODUCT = str(Path(appliance.__file__).parent) + os.sep


class Watch:
    """The files in which something was called."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(PRODUCT):
            self.files.add(name.removeprefix(PRODUCT))

    def tell(self, listener: socket.socket) -> None:
        while True:
            asking, _ = listener.accept()
            with asking:
                files, self.files = self.files, set()
                asking.sendall(json.dumps(sorted(files)).encode() + b"\n")


def run_watched() -> None:
    """Be `python -m appliance`, with every thread watched."""
    watch, listener = Watch(), socket.socket(socket.AF_UNIX)
    listener.bind(os.environ["WATCH_SOCKET"])
    listener.listen()
    threading.Thread(target=watch.tell, args=(listener,), daemon=True).start()
    threading.setprofile(watch.note)
    sys.setprofile(watch.note)
    main()


def program() -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.call_watch")


def files_called(path: str) -> list[str]:
    """The files in which something was called since this was last asked."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(path)
        told: list[str] = json.loads(asking.makefile().readline())
    return told


if __name__ == "__main__":
    run_watched()
