"""Deletes what is older than the retention settings say, in slices small enough that no sender notices.

A sweep is a list of tasks, each done in slices: transactions of a few milliseconds, each followed by a rest of three
times its duration, checkpoint included. So retention uses the writer and the disk for a quarter of the time at most.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import RetentionSettings
from appliance.errors import Refused
from appliance.intake.limits import FreeSpace
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.sql import START, Slice
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CLEARED
from appliance.times import SECOND

SLICE_SECONDS = 0.002  # of the writer that a slice should take: a commit takes about as long
REST_FACTOR = 3  # a rest is so many times as long as its slice
LEAST_REST = 0.01  # seconds
LEAST_BUDGET, MOST_BUDGET = 8, 4_000  # of a slice: about as many pages of the database
FIRST_BUDGET = 64
RESCAN_EVERY = 3600.0  # seconds after which every task starts from the first row again
URGENT_SWEEP_EVERY = 2.0  # seconds between two sweeps while the disk is nearly full, or the statistics lag behind
# Rows deleted between two checkpoints. Without them SQLite checkpoints thousands of pages in a commit, which takes
# fifty milliseconds that a sender waits for; done here, in a thread and often, no sender waits.
ROWS_PER_CHECKPOINT = 100

log = get_logger("retention")


@dataclass(slots=True)
class DeletionPace:
    """The size of the next slice, by how long the last one took. No I/O."""

    budget: int = FIRST_BUDGET
    least: int = LEAST_BUDGET

    def learn(self, seconds: float) -> None:
        """A slice of this size took so long: the next one is up to twice as small, or half as large again."""
        change = min(1.5, max(0.5, SLICE_SECONDS / seconds)) if seconds else 1.5
        self.budget = min(MOST_BUDGET, max(self.least, round(self.budget * change)))


def rest(took: float, *, hurried: bool) -> float:
    """How long to leave the writer to others after a slice; less while the disk is nearly full."""
    return max(LEAST_REST, took if hurried else took * REST_FACTOR)


@dataclass(slots=True)
class _Task:
    """One kind of thing to delete, and how far the deletion has come."""

    kind: str
    step: Callable[[str, int], Awaitable[Slice]]  # deletes from after this row on, about so much
    after: str = START
    pace: DeletionPace = field(default_factory=DeletionPace)


class RetentionWorker:
    """Sweeps once a minute."""

    def __init__(self, store: Store, outside: Outside, kept: RetentionSettings, free_space: FreeSpace) -> None:
        self._store, self._outside, self._free_space = store, outside, free_space
        self._bodies, self._metadata, self._logs = (
            round(seconds * SECOND) for seconds in (kept.bodies, kept.metadata, kept.webhook_logs)
        )
        self._expired = _Task("expired", lambda _, budget: store.deletion.expired(self._logs, budget))
        self._bodies_task = _Task("bodies", self._delete_bodies)
        self._parts = _Task("parts", lambda _, budget: store.body_parts.clear(budget))
        # In this order: the later ones delete what the first has left without a message.
        self._records = (
            _Task("messages", lambda after, budget: store.deletion.mail(after, self._old(), budget)),
            _Task("events", lambda after, budget: store.deletion.events(after, self._old(), budget)),
            _Task("books", lambda after, most: store.ledger_folding.fold_old(after, self._old(), outside.now(), most)),
        )
        # With many free pages SQLite scans the list of them for each one that it removes.
        self._space = _Task("pages", lambda _, budget: store.space.give_back(budget), pace=DeletionPace(1, least=1))
        self._rescan_at = 0.0
        self._since_checkpoint = 0
        self._thread = trio.CapacityLimiter(1)

    def _old(self) -> int:
        return self._outside.now() - self._metadata

    async def _delete_bodies(self, after: str, budget: int) -> Slice:
        now = self._outside.now()
        return await self._store.deletion.bodies(after, now - self._bodies, now, budget)

    async def run(self) -> None:
        """Sweep until cancelled; a storage that refuses ends one sweep only."""
        while True:
            try:
                finished = await self.sweep()
            except Refused as refused:
                log.warning("retention waits for the storage", reason=refused.text)
                finished = True
            await trio.sleep(SLEEP_LIMIT if finished and not self._free_space.low() else URGENT_SWEEP_EVERY)

    async def sweep(self) -> bool:
        """Delete all that is old now; False when records have to wait until the statistics have counted them."""
        if trio.current_time() >= self._rescan_at:
            self._rescan_at = trio.current_time() + RESCAN_EVERY
            for task in (self._bodies_task, *self._records):
                task.after = START
        done: Counter[str] = Counter()
        counted = self._store.deletion.is_counted(self._old())
        try:
            for task in (self._expired, self._bodies_task, *(self._records if counted else ())):
                await self._finish(task, done)
            await self._finish(self._parts, done)  # parts of large bodies, which the others have unlinked
            await self._give_back(done)
        finally:
            if done:
                log.info("cleared", **done)
        return counted

    async def _finish(self, task: _Task, done: Counter[str]) -> None:
        while (await self._slice(task, task.pace.budget, done)).more:
            pass

    async def _slice(self, task: _Task, budget: int, done: Counter[str]) -> Slice:
        began = trio.current_time()
        result = await task.step(task.after, budget)
        task.after = result.after
        if result.deleted:
            done[task.kind] += result.deleted
            CLEARED.add(task.kind, result.deleted)
            task.pace.learn(result.seconds)
        self._since_checkpoint += result.deleted
        if self._since_checkpoint >= ROWS_PER_CHECKPOINT:
            self._since_checkpoint = 0
            await self._checkpoint()
        await trio.sleep(rest(trio.current_time() - began, hurried=self._free_space.low()))
        return result

    async def _give_back(self, done: Counter[str]) -> None:
        """Shrink the file when much of it is free; by all that is free, while the disk is nearly full."""
        left = self._store.space.usage().to_give_back(at_once=self._free_space.low())
        while left > 0:
            result = await self._slice(self._space, min(left, self._space.pace.budget), done)
            left = left - result.deleted if result.more else 0
        if done["pages"]:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        await trio.to_thread.run_sync(self._store.space.settle, limiter=self._thread)
