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
from collections.abc import Callable
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

    def take(self) -> dict[str, Any]:
        longest, self.longest = self.longest, (0.0, "")
        return {"milliseconds": longest[0] * 1000, "task": longest[1]}


def serve_watch(take: Callable[[], object]) -> None:
    """Answer each connection with what `take` returns, on a thread, until the process ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ["WATCH_SOCKET"])
    listener.listen()

    def answer() -> None:
        while True:
            asking, _ = listener.accept()
            with asking:
                asking.sendall(json.dumps(take()).encode() + b"\n")

    threading.Thread(target=answer, daemon=True).start()


def run_watched() -> None:
    """Be `python -m appliance`, with every Trio loop instrumented."""
    watch, run = Watch(), trio.run
    serve_watch(watch.take)

    def run_instrumented(*arguments: Any, **options: Any) -> Any:
        return run(*arguments, instruments=[watch], **options)

    trio.run = run_instrumented  # type: ignore[assignment]  # called by the program with what Trio's own takes
    main()


def program() -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.loop_watch")


def ask(path: str) -> Any:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10)
        asking.connect(path)
        return json.loads(asking.makefile().readline())


def longest_step(path: str) -> tuple[float, str]:
    """Milliseconds of the longest step since the last call, and the task it was of."""
    answer = ask(path)
    return answer["milliseconds"], answer["task"]


if __name__ == "__main__":
    run_watched()
