"""Writes results to the store, many in one transaction, and all of them before the process ends.

A message that was delivered must not be sent again, so a result is never dropped. The one exception: the store refuses
while the process is ending; then the work is still due in the store.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

import trio

from appliance.concurrency.wake import Wake
from appliance.errors import StorageUnavailable
from appliance.telemetry.log import get_logger

RESULTS_PER_TRANSACTION = 64  # results in one transaction
STORAGE_PAUSE = 1.0  # seconds before a refused write is repeated

Result = TypeVar("Result")


class BatchWriter(Generic[Result]):
    """Collects results for `write`; `named` gives the fields that identify one in the log."""

    def __init__(
        self, part: str, write: Callable[[list[Result]], Awaitable[None]], named: Callable[[Result], dict[str, str]]
    ) -> None:
        self._log, self._put, self._named = get_logger(part), write, named
        self._waiting: list[Result] = []
        self._wake, self._closing = Wake(), False

    def add(self, result: Result) -> None:
        self._waiting.append(result)
        self._wake.set()

    def close(self) -> None:
        """No more results will come: `run` ends once all are written, or cannot be."""
        self._closing = True
        self._wake.set()

    async def run(self, done: Callable[[list[Result], bool], None]) -> None:
        """Write until closed; `done` is called with results, and whether they were written."""
        with trio.CancelScope(shield=True):
            while self._waiting or not self._closing:
                if not self._waiting:
                    await self._wake.wait(inf)
                    continue
                batch, self._waiting = self._waiting[:RESULTS_PER_TRANSACTION], self._waiting[RESULTS_PER_TRANSACTION:]
                await self._write(batch, done)

    async def _write(self, batch: list[Result], done: Callable[[list[Result], bool], None]) -> None:
        while True:
            try:
                await self._put(batch)
                break
            except StorageUnavailable as refused:
                self._log.warning("results wait for the storage", reason=refused.text)
                if self._closing:
                    return
                await trio.sleep(STORAGE_PAUSE)
            except Exception as error:
                if len(batch) > 1:  # one of them cannot be written: find out which
                    for result in batch:
                        await self._write([result], done)
                else:  # not repeated: an endless loop would be worse
                    self._log.exception("a result cannot be recorded", error, **self._named(batch[0]))
                    done(batch, False)
                return
        done(batch, True)
