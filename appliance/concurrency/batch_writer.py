"""In charge of having results written down: many in one transaction, and all there are before the end.

What has been done must not be done again. So nothing that is put here is given up but for a storage that refuses while
the process ends, and then it is still due in the store.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

import trio

from appliance.errors import Refused
from appliance.outside import Wake
from appliance.telemetry.log import get_logger

TOGETHER = 64  # results in one transaction
STORAGE_PAUSE = 1.0  # seconds before trying again what the storage refused

Result = TypeVar("Result")


class Recording(Generic[Result]):
    """Takes results and has `write` put them on disk; `named` says in the log's words which one it is."""

    def __init__(
        self, part: str, write: Callable[[list[Result]], Awaitable[None]], named: Callable[[Result], dict[str, str]]
    ) -> None:
        self._log = get_logger(part)
        self._put = write
        self._named = named
        self._waiting: list[Result] = []
        self._wake = Wake()
        self._closing = False

    def add(self, result: Result) -> None:
        """Have it written down."""
        self._waiting.append(result)
        self._wake.set()

    def close(self) -> None:
        """There will be no more: end once everything is written, or cannot be."""
        self._closing = True
        self._wake.set()

    async def run(self, done: Callable[[Result, bool], None]) -> None:
        """Write until closed; `done` is called with each result, and whether it is on disk."""
        with trio.CancelScope(shield=True):
            while self._waiting or not self._closing:
                if not self._waiting:
                    await self._wake.wait(inf)
                    continue
                batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                await self._write(batch, done)

    async def _write(self, batch: list[Result], done: Callable[[Result, bool], None]) -> None:
        while True:
            try:
                await self._put(batch)
                break
            except Refused as refused:
                self._log.warning("results wait for the storage", reason=refused.text)
                if self._closing:
                    return
                await trio.sleep(STORAGE_PAUSE)
            except Exception as error:
                await self._write_alone(batch, error, done)
                return
        for result in batch:
            done(result, True)

    async def _write_alone(self, batch: list[Result], error: Exception, done: Callable[[Result, bool], None]) -> None:
        """One of them cannot be written: that one is never released, rather not tried again than for ever."""
        if len(batch) > 1:
            for result in batch:
                await self._write([result], done)
            return
        self._log.exception("a result cannot be recorded", error, **self._named(batch[0]))
        done(batch[0], False)
