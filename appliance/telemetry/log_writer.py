"""Writes log lines to a file descriptor from a thread of its own, so that no caller ever waits for the log's reader.

A pipe that is not read, a terminal stopped by Ctrl-S or a hung journal blocks `write(2)` indefinitely. Here that blocks
only this thread. Lines wait in a buffer bounded in characters and in number; when it is full they are dropped and
counted, and one line says how many once the reader goes on. Lines are written in the order given.
"""

import os
import queue
import select
import threading
import time
from collections.abc import Callable

from appliance.telemetry.metrics import LOG_DROPPED

BUFFER_CHARACTERS = 4 * 1024 * 1024  # several seconds of a busy server's log
BUFFER_LINES = 20_000
WRITE_INTERVAL = 0.05  # seconds between two writes: each switches threads twice, so under load lines share one
FLUSH_POLL = 0.005  # seconds between two looks whether all is written


class LogWriter:
    """A bounded buffer, and the daemon thread that writes it; `notice` is the line that says how many were dropped."""

    def __init__(self, descriptor: int, notice: Callable[[int], str]) -> None:
        self._descriptor, self._notice = descriptor, notice
        # Reentrant, as is the queue: the garbage collector may log while a line is being added.
        self._lock, self._wake = threading.RLock(), queue.SimpleQueue[None]()
        self._waiting: list[str] = []
        self._characters = self._lines = 0
        self._unreported = 0  # dropped lines that no notice has counted yet
        self._failing = False  # whether the last write failed
        self._closed = threading.Event()
        self._idle = True
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def put(self, text: str, lines: int = 1) -> None:
        """Queue whole lines to be written, or drop and count them; never waits."""
        with self._lock:
            if self._characters + len(text) > BUFFER_CHARACTERS or self._lines + lines > BUFFER_LINES:
                self._drop(lines)
                return
            self._waiting.append(text)
            self._characters += len(text)
            self._lines += lines
            if self._idle:
                self._idle = False
                self._wake.put(None)

    def flush(self, seconds: float) -> bool:
        """Wait until all is written, for this long at most; whether it is."""
        deadline = time.monotonic() + seconds
        while not self._idle and time.monotonic() < deadline:
            self._closed.wait(FLUSH_POLL)
        return self._idle

    def close(self) -> None:
        """End the thread once all is written; does not wait for it."""
        self._closed.set()
        self._wake.put(None)

    def _drop(self, lines: int) -> None:
        LOG_DROPPED.add("", lines)
        self._unreported += lines

    # ---- on the thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.get()
            while self._write_waiting():
                self._closed.wait(WRITE_INTERVAL)

    def _write_waiting(self) -> bool:
        """Write all that waits; False when there is nothing. It counts against the bounds until it is written."""
        with self._lock:
            taken, lines, characters = self._waiting, self._lines, self._characters
            if not taken and (self._failing or not self._unreported):
                self._idle = True
                return False
            self._waiting = []
            if self._unreported:  # where the dropped lines would stand
                taken.insert(0 if self._failing else len(taken), self._notice(self._unreported))
            reported, self._unreported = self._unreported, 0
        try:
            write_all(self._descriptor, "".join(taken).encode("utf-8", "backslashreplace"))
            self._failing = False
        except OSError:  # closed, or its disk is full: the next line tries again
            self._failing = True
            with self._lock:
                self._drop(lines)
                self._unreported += reported
        with self._lock:
            self._lines -= lines
            self._characters -= characters
        return True


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, however long that takes; also where the descriptor does not block."""
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()
