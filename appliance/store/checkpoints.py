"""Copies pages from the write-ahead log into the database beside the writer, on a thread and a connection of its own.

A commit that finds the log long would otherwise copy all of it, with two syncs, while everybody waits who has handed
something in: 32 MiB took 50 to 150 ms. Here the writer does so only at `LONGEST` pages, and finds most of them copied.
It has to do it then, since only a copy that nobody writes beside lets the log begin anew from its start.
"""

import queue
import threading
from contextlib import suppress
from pathlib import Path

import apsw

from appliance.store.connection import CHECKPOINT_PAGES, open_writer
from appliance.store.copying import copy_home

EARLY = 1_000  # pages that have come into the log since the last copy until the next: 4 MiB
LONGEST = CHECKPOINT_PAGES


class Checkpoints:
    """The copying, for one writer; `committed` is its hook."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._at = 0  # pages in the log when copying was last asked for
        self._copying = False
        self._thread: threading.Thread | None = None  # begun when first needed

    def committed(self, connection: apsw.Connection, _: str, pages: int) -> int:
        """After a commit, on the thread that made it: so many pages are in the log."""
        if pages >= LONGEST:
            with suppress(apsw.Error):  # as in Space.settle: it all stays in the log
                copy_home(connection)
            self._at = 0
        elif pages < self._at:  # it began anew
            self._at = 0
        if pages - self._at >= EARLY and not self._copying:
            self._at, self._copying = pages, True
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="store-checkpoints")
                self._thread.start()
            self._asked.put(True)
        return apsw.SQLITE_OK

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._asked.put(False)
            self._thread.join()

    def _serve(self) -> None:
        connection = None
        while self._asked.get():
            with suppress(apsw.Error):
                connection = connection or open_writer(self._path)
                copy_home(connection)
            self._copying = False
        if connection is not None:
            connection.close()
