"""Gives space back to the disk: free pages are taken from the end of the database file.

New mail uses free pages again, so a few of them are no loss, and only a file with many is made shorter: a few pages at
a time, by moving what is last into a gap.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from appliance.store.engine import Engine, Slice, Tx, rows, timed
from appliance.store.sqlite.connection import Connection, open_writer
from appliance.store.sqlite.file_care import checkpoint

FREE_SHARE = 0.2  # of the file that may be free, and
FREE_BYTES = 64 * 1024 * 1024  # as much as this in any case, without anything being done about it
LEFT_SHARE = 0.05  # of the file that stays free for what comes, once something is done

_USAGE = ("PRAGMA page_size", "PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA auto_vacuum")
_INCREMENTAL = 2


@dataclass(frozen=True, slots=True)
class Usage:
    page_size: int
    pages: int
    free_pages: int
    can_shrink: bool

    def to_give_back(self, *, at_once: bool) -> int:
        """Pages to be given back: none while there are few; `at_once` all that are free."""
        if not self.can_shrink:
            return 0
        if at_once:
            return self.free_pages
        few = max(self.pages * FREE_SHARE, FREE_BYTES / self.page_size)
        return self.free_pages - int(self.pages * LEFT_SHARE) if self.free_pages > few else 0


def usage(tx: Tx) -> Usage:
    size, pages, free, mode = (int(rows(tx, query, {})[0][0]) for query in _USAGE)
    return Usage(size, pages, free, mode == _INCREMENTAL)


class Space:
    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path
        self._beside: Connection | None = None  # opened when first needed

    async def usage(self) -> Usage:
        return await self._engine.read(usage)

    async def give_back(self, pages: int) -> Slice:
        """Take so many free pages from the end; the file itself is shorter after the next `settle`."""

        def work(tx: Tx) -> int:
            before = usage(tx).pages
            rows(tx, f"PRAGMA incremental_vacuum({pages:d})", {})
            return before - usage(tx).pages

        result, seconds = await self._engine.write(timed(work), large=True)
        return Slice(result, seconds, more=result > 0)

    def settle(self) -> None:
        """Copy the log into the database while the writer continues. It waits for the disk: call it on a thread.

        Should the disk be full or fail, nothing is lost: it all stays in the log, and the writer answers for the rest.
        """
        with suppress(apsw.Error):
            if self._beside is None:
                self._beside = open_writer(self._path)
            checkpoint(self._beside)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()
