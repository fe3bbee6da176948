"""Background loops: their sleep between two rounds of work, and the writing of their results.

A wake-up or a change of the wall clock ends a sleep early. `BatchWriter` writes many results per transaction, and all
before the process ends: a delivered message must not be sent again. One exception: if the store refuses writes
while the process is stopping, the results are lost and the work is still due in the store.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Generic, TypeVar

import trio

from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.telemetry.log import Log, get_logger
from appliance.times import SECOND

SLEEP_LIMIT = 60.0  # seconds; no loop sleeps longer, so a clock change delays work by a minute at most
CLOCK_CHECK_INTERVAL = 2.0  # seconds
STORAGE_PAUSE = 1.0  # seconds before a failed write is retried
JUMP_TOLERANCE = 10.0  # seconds between two checks; less is an ordinary correction

Result = TypeVar("Result")


class Wake:
    """A hint that there may be work; a lost one delays it by `SLEEP_LIMIT` at most."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """End the current wait, or the next one if no task waits."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return after `seconds` (never more than `SLEEP_LIMIT`), or as soon as `set` is called."""
        if self._event.is_set():  # usual under load: no timer needed
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(min(seconds, SLEEP_LIMIT)):
                await self._event.wait()
        self._event = trio.Event()


class Gathering:
    """Makes tasks that arrive shortly after each other continue together, so that one commit serves them all.

    After `rest` seconds without any, a task continues at once. Later ones wait until the rest has ended.
    """

    def __init__(self, rest: float) -> None:
        self._rest, self._until = rest, -inf
        self._next: trio.Event | None = None

    async def join(self) -> None:
        if self._next is not None:
            await self._next.wait()
        elif trio.current_time() < self._until:
            self._next = gathered = trio.Event()
            try:
                await trio.sleep_until(self._until)
            finally:
                self._next, self._until = None, trio.current_time() + self._rest
                gathered.set()
            await trio.lowlevel.checkpoint()  # with the others, not before them
        else:
            self._until = trio.current_time() + self._rest


class ClockJumps:
    """Detects changes of the wall clock by comparing it with Trio's monotonic clock."""

    def __init__(self, env: Environment) -> None:
        self._env, self._difference = env, 0.0
        self.jump()

    def jump(self) -> float:
        """Seconds by which the clock was set since the last check, negative if back; 0.0 if it was not set."""
        before, self._difference = self._difference, self._env.now() / SECOND - trio.current_time()
        seconds = self._difference - before
        return seconds if abs(seconds) > JUMP_TOLERANCE else 0.0

    async def wait(self, seconds: float) -> float:
        """Sleep for `seconds` and return 0.0; return early if the clock was set, with the seconds it was set by."""
        until = trio.current_time() + seconds
        while (remaining := until - trio.current_time()) > 0:
            await trio.sleep(min(CLOCK_CHECK_INTERVAL, remaining))
            if jump := self.jump():
                return jump
        return 0.0


async def repeat(
    work: Callable[[], Awaitable[object]], log: Log, failure: str, *, every: float, pause: float | None = None
) -> None:
    """Work in the background until cancelled: every so many seconds, or after `pause` while `work` returns True.

    No mail depends on the work: its errors are logged, except one that must end the process.
    """
    while True:
        has_more: object = False
        try:
            has_more = await work()
        except StorageUnavailable as outage:
            log.warning(f"{failure}: storage unavailable", reason=outage.text)
        except StorageFault:
            raise
        except Exception:  # one bad row must not stop the server
            log.exception(failure)
        await trio.sleep(every if pause is None or not has_more else pause)


async def until_stored(work: Callable[[], Awaitable[Result]], log: Log, failure: str, **fields: str) -> Result:
    """Return the result of `work`, which is retried while the storage is unavailable."""
    while True:
        try:
            return await work()
        except StorageUnavailable as outage:
            log.warning(f"{failure}: storage unavailable", reason=outage.text, **fields)
            await trio.sleep(STORAGE_PAUSE)


RESULTS_PER_TRANSACTION = 32  # about two milliseconds of the event loop
RECORDING_REST = 0.03  # seconds after a transaction: one with a few results costs little more than one with a single
RESULTS_AWAITED = 10  # results that end a rest


class BatchWriter(Generic[Result]):
    """Collects results for `write`; `fields` returns what identifies a result in the log."""

    def __init__(
        self,
        part: str,
        write: Callable[[list[Result]], Awaitable[None]],
        fields: Callable[[Result], dict[str, str]],
        rest: float = 0.0,  # seconds after a transaction in which results are collected
    ) -> None:
        self._log, self._put, self._fields, self._rest = get_logger(part), write, fields, rest
        self._results: list[Result] = []
        self._wake, self._closing, self._collects, self._is_urgent = Wake(), False, False, False

    def add(self, result: Result, *, urgent: bool = False) -> None:
        """Write a result soon; `urgent`: without a rest."""
        self._results.append(result)
        self._is_urgent = self._is_urgent or urgent
        if not self._collects or self._is_due():
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
                self._is_urgent = False
                await self._write(batch, done)
                await self._collect()

    async def _collect(self) -> None:
        until, self._collects = trio.current_time() + self._rest, True
        while not self._is_due() and (left := until - trio.current_time()) > 0:
            await self._wake.wait(left)
        self._collects = False

    def _is_due(self) -> bool:
        return self._is_urgent or self._closing or len(self._results) >= RESULTS_AWAITED

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
