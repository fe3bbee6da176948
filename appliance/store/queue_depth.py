"""In charge of how deep the queue is, for whoever watches: counted beside everybody else, and never for long."""

import time
from dataclasses import dataclass
from pathlib import Path

import apsw

from appliance.store.connection import open_reader
from appliance.store.space import usage
from appliance.store.sql import rows
from appliance.times import SECOND

LIMIT = 1.0  # seconds; a million recipients take a tenth of that
LOOK_EVERY = 100_000  # steps of SQLite's machine between two looks at the time

_WAITING = """
SELECT count(CASE WHEN next_attempt_at <= :now THEN 1 END), count(*), min(next_attempt_at)
FROM recipients WHERE simulated = :simulated AND next_attempt_at IS NOT NULL
"""
_HELD = "SELECT pool FROM pool_holds ORDER BY pool LIMIT 100"


@dataclass(frozen=True, slots=True)
class Depth:
    """How many recipients wait, how long the first of those due has waited (seconds), and which pools are held.

    Also how many bytes of the database file are free, since somebody looks.
    """

    due: int
    deferred: int
    overdue: float
    held: tuple[str, ...]
    free_bytes: int = 0


def read_depth(path: Path, now: int) -> Depth | None:
    """The queue as it is now; None when that could not be found out in time, or at all."""
    try:
        connection = open_reader(path)
    except apsw.Error:
        return None
    try:
        deadline = time.monotonic() + LIMIT
        connection.set_progress_handler(lambda: time.monotonic() > deadline, LOOK_EVERY)
        found = [rows(connection, _WAITING, {"now": now, "simulated": simulated})[0] for simulated in (0, 1)]
        held = tuple(str(pool) for (pool,) in rows(connection, _HELD, {}))
        used = usage(connection)
    except apsw.Error:
        return None
    finally:
        connection.close()
    due, waiting = sum(row[0] for row in found), sum(row[1] for row in found)
    first = min((row[2] for row in found if row[2] is not None), default=now)
    return Depth(due, waiting - due, max(0, now - first) / SECOND, held, used.free_pages * used.page_size)
