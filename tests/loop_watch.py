"""The real program with its event loop measured: `python -m tests.loop_watch serve --config …`, for tests of stalls.

Every step of every Trio task is timed, in CPU time of the loop's thread, so that a busy machine does not count. The
asyncio loop of SMTP submission runs inside a Trio task; its callbacks count like other steps. Collecting garbage is
left out: when it happens depends on what ran before. A client that connects to the socket that WATCH_SOCKET names
is told of the longest step since the last one asked, as one line of JSON.
"""

import gc
import json
import os
import socket
import sys
import threading
import time
from typing import Any

import trio

from appliance.cli import main


class Watch(trio.abc.Instrument):
    """The longest step so far."""

    def __init__(self) -> None:
        self._began = self._collecting = 0.0
        self._thread = 0
        self.longest: tuple[float, str] = (0.0, "")
        gc.callbacks.append(self._collect)

    def before_run(self) -> None:
        self._thread = threading.get_ident()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        if took > self.longest[0]:
            self.longest = (took, task.name)

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._began += time.thread_time() - self._collecting

    def tell(self, listener: socket.socket) -> None:
        while True:
            asking, _ = listener.accept()
            with asking:
                longest, self.longest = self.longest, (0.0, "")
                asking.sendall(json.dumps({"milliseconds": longest[0] * 1000, "task": longest[1]}).encode() + b"\n")


def run_watched() -> None:
    """Be `python -m appliance`, with every Trio loop instrumented."""
    watch, run = Watch(), trio.run
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ["WATCH_SOCKET"])
    listener.listen()
    threading.Thread(target=watch.tell, args=(listener,), daemon=True).start()

    def run_instrumented(*arguments: Any, **options: Any) -> Any:
        return run(*arguments, instruments=[watch], **options)

    trio.run = run_instrumented  # type: ignore[assignment]  # called by the program with what Trio's own takes
    main()


def program() -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.loop_watch")


def longest_step(path: str) -> tuple[float, str]:
    """Milliseconds of the longest step since the last call, and the task it was of."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(path)
        told = json.loads(asking.makefile().readline())
    return told["milliseconds"], told["task"]


if __name__ == "__main__":
    run_watched()
