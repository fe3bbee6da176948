"""Deletes what is older than the retention settings say, in slices small enough that no sender notices.

A sweep is a list of tasks, each done in slices: transactions of a few milliseconds, each followed by a rest of three
times its duration, checkpoint included. So retention uses the writer and the disk for a quarter of the time at most.
Where tables are partitioned by time, a task first drops what it can, and deletes the rest.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import RetentionSettings
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.intake.limits import FreeSpace
from appliance.store import Store
from appliance.store.engine import START, Slice
from appliance.store.retention import NO_END, RECEIPT
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
CHORE_CHECKED_EVERY = 10.0  # seconds; what one node does at a time is another's when it is not asked for in 30
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
    dropping: "_Task | None" = None  # whole partitions, before that
    rests: int = 1  # after each slice


class _ChoreLost(Exception):
    """Another node does this from now on."""


class RetentionWorker:
    """Sweeps once a minute."""

    def __init__(self, store: Store, env: Environment, kept: RetentionSettings, free_space: FreeSpace) -> None:
        self._store, self._outside, self._free_space = store, env, free_space
        self._bodies, self._metadata, self._logs = (
            round(seconds * SECOND) for seconds in (kept.bodies, kept.metadata, kept.webhook_logs)
        )
        self._expired = _Task(
            "expired",
            lambda _, budget: store.deletion.expired(self._logs, budget, self._until("posts")),
            dropping=self._dropping("expired", "posts", lambda now: (now - self._logs, now - self._logs)),
        )
        self._audit = _Task("audit", self._trim_audit)
        self._trimmed: set[str] = set()  # accounts whose audit logs were found too long since the last rescan
        # A receipt stays as long as its request can be repeated, and then the whole row can go.
        self._whole_bodies = max(self._bodies, RECEIPT)
        self._bodies_task = _Task(
            "bodies",
            self._delete_bodies,
            dropping=self._dropping("bodies", "bodies", lambda now: (now - self._whole_bodies, now - self._bodies)),
        )
        self._parts = _Task("parts", lambda _, budget: store.body_parts.clear(budget))
        # In this order: the later ones delete what the first has left without a message.
        self._records = (
            _Task(
                "messages",
                lambda after, budget: store.deletion.mail(after, self._old(), budget, self._until("mail")),
                dropping=self._dropping("messages", "mail", lambda _: (self._old(), self._old())),
            ),
            _Task(
                "events",
                lambda after, budget: store.deletion.events(after, self._old(), budget, self._until("events")),
                dropping=self._dropping("events", "events", lambda _: (self._old(), self._old())),
            ),
            _Task("complaints", lambda _, most: store.feedback.forget_complaints(self._old(), most)),
            _Task("feedback inbox", lambda _, most: store.feedback_inbox.forget(self._old(), most)),
            _Task("books", lambda after, most: store.ledger_folding.fold_old(after, self._old(), env.now(), most)),
        )
        # With many free pages SQLite scans the list of them for each one that it removes.
        self._pages = _Task("pages", self._delete_pages, pace=DeletionPace(1, least=1))
        self._rescan_at = 0.0
        self._chore_until = inf
        self._since_checkpoint = 0
        self._thread = trio.CapacityLimiter(1)

    def _old(self) -> int:
        return self._outside.now() - self._metadata

    def _dropping(self, kind: str, partitions: str, limits: Callable[[int], tuple[int, int]]) -> _Task | None:
        """A task that drops partitions, by when they must have ended, and by when what is in them been final."""
        if (there := self._store.engine.partitions) is None:
            return None

        async def step(_: str, __: int) -> Slice:
            now = self._outside.now()
            return await there.clear(partitions, *limits(now), now)

        return _Task(kind, step, rests=3)  # to read a row takes far less than to delete it, so there is time

    def _until(self, kind: str) -> int:
        """Before when rows are deleted, and not dropped."""
        there = self._store.engine.partitions
        return NO_END if there is None else there.sliced_until(kind)

    async def _trim_audit(self, after: str, budget: int) -> Slice:
        result = await self._store.deletion.audit(after, budget)
        if result.deleted and result.account_id not in self._trimmed:
            self._trimmed.add(result.account_id)
            log.warning("an audit log is too long: its oldest lines are deleted", account_id=result.account_id)
        return result

    async def _delete_bodies(self, after: str, budget: int) -> Slice:
        now = self._outside.now()
        # With a receipt that stays much longer than the bytes, those cannot wait until the row is dropped.
        until = NO_END if self._bodies < self._whole_bodies * 7 // 8 else self._until("bodies")
        return await self._store.deletion.bodies(after, now - self._bodies, now, budget, until)

    async def _delete_pages(self, _: str, budget: int) -> Slice:
        assert self._store.space is not None  # noqa: S101 - see _give_back
        return await self._store.space.give_back(budget)

    async def run(self) -> None:
        """Sweep until cancelled; a storage that refuses ends one sweep only."""
        while True:
            try:
                finished = not await self._has_chore() or await self.sweep()
            except _ChoreLost:
                finished = True
            except StorageUnavailable as refused:
                log.warning("retention waits for the storage", reason=refused.text)
                finished = True
            await trio.sleep(SLEEP_LIMIT if finished and not self._free_space.low() else URGENT_SWEEP_EVERY)

    async def _has_chore(self) -> bool:
        self._chore_until = trio.current_time() + CHORE_CHECKED_EVERY
        return await self._store.engine.has_chore("retention")

    async def sweep(self) -> bool:
        """Delete all that is old now; False when records have to wait until the statistics have counted them."""
        if trio.current_time() >= self._rescan_at:
            self._rescan_at = trio.current_time() + RESCAN_EVERY
            for task in (self._audit, self._bodies_task, *self._records):
                task.after = START
            self._trimmed.clear()
        done: Counter[str] = Counter()
        if (partitions := self._store.engine.partitions) is not None:
            kept = {"bodies": self._whole_bodies, "mail": self._metadata, "events": self._metadata, "posts": self._logs}
            await partitions.make(kept, self._outside.now())
        counted = await self._store.deletion.is_counted(self._old())
        try:
            for task in (self._expired, self._audit, self._bodies_task, *(self._records if counted else ())):
                await self._finish(task, done)
            await self._finish(self._parts, done)  # parts of large bodies, which the others have unlinked
            await self._give_back(done)
        finally:
            if done:
                log.info("cleared", **done)
        return counted

    async def _finish(self, task: _Task, done: Counter[str]) -> None:
        if task.dropping is not None:
            await self._finish(task.dropping, done)
        while (await self._slice(task, task.pace.budget, done)).more:
            if trio.current_time() > self._chore_until and not await self._has_chore():
                raise _ChoreLost

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
        await trio.sleep(task.rests * rest(trio.current_time() - began, hurried=self._free_space.low()))
        return result

    async def _give_back(self, done: Counter[str]) -> None:
        """Shrink the file when much of it is free; by all that is free, while the disk is nearly full."""
        if self._store.space is None:
            return
        left = (await self._store.space.usage()).to_give_back(at_once=self._free_space.low())
        while left > 0:
            result = await self._slice(self._pages, min(left, self._pages.pace.budget), done)
            left = left - result.deleted if result.more else 0
        if done["pages"]:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        if self._store.space is not None:
            await trio.to_thread.run_sync(self._store.space.settle, limiter=self._thread)
