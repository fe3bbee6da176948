"""Reads that take longer than a look-up by index: on a thread, with a connection of their own.

Accounts that read at the same time get equal shares of the thread's time, and an account whose reads wait by the dozen
is refused more (`appliance.concurrency.fair_share`). The server's own reads are never refused.
"""

from math import inf
from pathlib import Path

import trio

from appliance.concurrency.fair_share import SERVER_WORK, FairQueue
from appliance.store.engine import T, Work
from appliance.store.sqlite.connection import Connection, open_reader


class Scanner:
    """Reads one thing at a time off the event loop: SQLite releases the interpreter lock meanwhile."""

    def __init__(self, path: Path, *, inline: bool) -> None:
        self._path = path
        self._inline = inline  # on the caller's thread, for tests on a virtual clock
        self._connection: Connection | None = None
        if not inline:
            # At once, with the log: later the server may have no descriptor left. A single command may never need it.
            self._connection = open_reader(path)
            self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        self._turns = FairQueue(1, patience=inf, rest=0)
        self._thread = trio.CapacityLimiter(1)

    async def read(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        """What `work` finds for an account; all of its statements see one state."""
        async with self._turns.take(owner):
            if self._inline:
                return self._snapshot(work)
            # A cancelled reader still waits for the thread, which has the connection until it ends.
            return await trio.to_thread.run_sync(self._snapshot, work, limiter=self._thread)

    def _snapshot(self, work: Work[T]) -> T:
        if self._connection is None:
            self._connection = open_reader(self._path)
        self._connection.execute("BEGIN")
        try:
            return work(self._connection)
        finally:
            self._connection.execute("COMMIT")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
