"""Writes results to the store, many per transaction, and all of them before the process ends.

A delivered message must not be sent again, so no result is dropped. One exception: if the store refuses writes while
the process is stopping, the results are lost and the work is still due in the store.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

import trio

from appliance.concurrency.wake import Wake
from appliance.errors import StorageUnavailable
from appliance.telemetry.log import get_logger

RESULTS_PER_TRANSACTION = 64
STORAGE_PAUSE = 1.0  # seconds before a failed write is retried

Result = TypeVar("Result")


class BatchWriter(Generic[Result]):
    """Collects results for `write`; `fields` returns what identifies a result in the log."""

    def __init__(
        self, part: str, write: Callable[[list[Result]], Awaitable[None]], fields: Callable[[Result], dict[str, str]]
    ) -> None:
        self._log, self._put, self._fields = get_logger(part), write, fields
        self._results: list[Result] = []
        self._wake, self._closing = Wake(), False

    def add(self, result: Result) -> None:
        self._results.append(result)
        self._wake.set()

    def close(self) -> None:
        """Accept no more results: `run` returns once all are written, or cannot be."""
        self._closing = True
        self._wake.set()

    async def run(self, done: Callable[[list[Result], bool], None]) -> None:
        """Write until closed. Calls `done` with results and whether they are on disk."""
        with trio.CancelScope(shield=True):
            while self._results or not self._closing:
                if not self._results:
                    await self._wake.wait(inf)
                    continue
                batch, self._results = self._results[:RESULTS_PER_TRANSACTION], self._results[RESULTS_PER_TRANSACTION:]
                await self._write(batch, done)

    async def _write(self, batch: list[Result], done: Callable[[list[Result], bool], None]) -> None:
        while True:
            try:
                await self._put(batch)
                break
            except StorageUnavailable as outage:
                self._log.warning("recording paused: storage unavailable", reason=outage.text)
                if self._closing:
                    return
                await trio.sleep(STORAGE_PAUSE)
            except Exception as error:
                if len(batch) > 1:  # one of them cannot be written: find it
                    for result in batch:
                        await self._write([result], done)
                else:  # not retried: it would fail forever
                    self._log.exception("result not recorded", error, **self._fields(batch[0]))
                    done(batch, False)
                return
        done(batch, True)
