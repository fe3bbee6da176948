"""Deletes data that is older than the retention settings, in slices small enough that no sender notices.

A sweep is a list of tasks, each done in slices: transactions of a few milliseconds, followed by a rest of three times
their duration, checkpoint included. So retention uses the writer and the disk for at most a quarter of the time. Where
tables are partitioned by time, a task first drops whole partitions, and then deletes the remaining rows.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf

import trio
from msgspec import Struct, field

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import RetentionSettings
from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.intake.limits import FreeSpace
from appliance.store import Store
from appliance.store.engine import START, Slice
from appliance.store.request_log import REQUESTS_KEPT
from appliance.store.retention import NO_END, RECEIPT
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CLEARED
from appliance.times import SECOND

SLICE_SECONDS = 0.002  # target duration of a slice on the writer: about that of a commit
REST_FACTOR = 3  # duration of a rest, in durations of its slice
LEAST_REST = 0.01  # seconds
LEAST_BUDGET, MOST_BUDGET = 8, 4_000  # of a slice, in database pages, roughly
FIRST_BUDGET = 64
RESCAN_EVERY = 3600.0  # seconds after which every task starts from the first row again
URGENT_SWEEP_EVERY = 2.0  # seconds between two sweeps while the disk is nearly full, or the statistics lag behind
CHORE_CHECKED_EVERY = 10.0  # seconds; a chore that its node does not renew within 30 passes to another node
# Rows deleted between two checkpoints. Otherwise SQLite checkpoints thousands of pages in one commit, which delays a
# sender by fifty milliseconds. Frequent checkpoints in a thread delay no sender.
ROWS_PER_CHECKPOINT = 100

log = get_logger("retention")


class DeletionPace(Struct):
    """The size of the next slice, from the duration of the last one. No I/O."""

    budget: int = FIRST_BUDGET
    least: int = LEAST_BUDGET

    def learn(self, seconds: float) -> None:
        """Adapt to the duration of a slice: the next one is at least half and at most one and a half times as large."""
        change = min(1.5, max(0.5, SLICE_SECONDS / seconds)) if seconds else 1.5
        self.budget = min(MOST_BUDGET, max(self.least, round(self.budget * change)))


def rest(took: float, *, hurried: bool) -> float:
    """Return how long to rest after a slice; shorter while the disk is nearly full."""
    return max(LEAST_REST, took if hurried else took * REST_FACTOR)


class _Task(Struct):
    """One kind of data to delete, and the progress of the deletion."""

    kind: str
    step: Callable[[str, int], Awaitable[Slice]]  # deletes rows after this one, within a budget
    after: str = START
    pace: DeletionPace = field(default_factory=DeletionPace)
    dropping: "_Task | None" = None  # drops whole partitions first
    rests: int = 1  # after each slice


class _ChoreLost(Exception):
    """Another node has taken over retention."""


class RetentionWorker:
    """Sweeps once a minute, on one node of a cluster."""

    def __init__(self, store: Store, env: Environment, kept: RetentionSettings, free_space: FreeSpace) -> None:
        self._store, self._env, self._free_space = store, env, free_space
        self._bodies, self._metadata, self._logs = (
            round(seconds * SECOND) for seconds in (kept.bodies, kept.metadata, kept.webhook_logs)
        )
        self._expired = _Task(
            "expired",
            lambda _, budget: store.deletion.expired(self._logs, budget, self._until("posts")),
            dropping=self._dropping("expired", "posts", lambda now: (now - self._logs, now - self._logs)),
        )
        self._audit = _Task("audit", self._trim_audit)
        self._requests = _Task(
            "requests", lambda _, budget: store.request_pages.forget(env.now() - REQUESTS_KEPT, budget)
        )
        self._trimmed: set[str] = set()  # accounts whose audit logs were trimmed since the last rescan
        # A receipt stays while its request can be repeated; after that the whole row is deleted.
        self._whole_bodies = max(self._bodies, RECEIPT)
        self._bodies_task = _Task(
            "bodies",
            self._delete_bodies,
            dropping=self._dropping("bodies", "bodies", lambda now: (now - self._whole_bodies, now - self._bodies)),
        )
        self._received = _Task("received", lambda _, budget: store.received.forget(env.now() - self._bodies, budget))
        self._parts = _Task("parts", lambda _, budget: store.body_parts.clear(budget))
        # In this order: the later tasks delete rows whose message the first has deleted.
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
        self._pages_pace = DeletionPace(1, least=1)  # SQLite scans the list of free pages for each page that it removes
        self._rescan_at = 0.0
        self._chore_until = inf
        self._since_checkpoint = 0
        self._thread = trio.CapacityLimiter(1)

    def _old(self) -> int:
        return self._env.now() - self._metadata

    def _dropping(self, kind: str, partitions: str, limits: Callable[[int], tuple[int, int]]) -> _Task | None:
        """Return a task that drops partitions that ended, and whose mail was final, before the two `limits`."""
        if (tables := self._store.engine.partitions) is None:
            return None

        async def step(_: str, __: int) -> Slice:
            now = self._env.now()
            return await tables.clear(partitions, *limits(now), now)

        return _Task(kind, step, rests=3)  # reading a row is much cheaper than deleting it

    def _until(self, kind: str) -> int:
        tables = self._store.engine.partitions
        return NO_END if tables is None else tables.sliced_until(kind)

    async def _trim_audit(self, after: str, budget: int) -> Slice:
        result = await self._store.deletion.audit(after, budget)
        if result.deleted and result.account_id not in self._trimmed:
            self._trimmed.add(result.account_id)
            log.warning("audit log too long; oldest entries deleted", account_id=result.account_id)
        return result

    async def _delete_bodies(self, after: str, budget: int) -> Slice:
        now = self._env.now()
        # If a receipt stays much longer than the bytes, these are deleted before the row is dropped.
        until = NO_END if self._bodies < self._whole_bodies * 7 // 8 else self._until("bodies")
        return await self._store.deletion.bodies(after, now - self._bodies, now, budget, until)

    async def run(self) -> None:
        """Sweep until cancelled; a failure ends one sweep only."""
        while True:
            try:
                finished = not await self._has_chore() or await self.sweep()
            except _ChoreLost:
                finished = True
            except StorageUnavailable as refused:
                log.warning("retention paused: storage unavailable", reason=refused.text)
                finished = True
            except StorageFault:
                raise
            except Exception:  # one bad row must not stop the server
                log.exception("retention sweep failed")
                finished = True
            await trio.sleep(SLEEP_LIMIT if finished and not self._free_space.low() else URGENT_SWEEP_EVERY)

    async def _has_chore(self) -> bool:
        self._chore_until = trio.current_time() + CHORE_CHECKED_EVERY
        return await self._store.engine.has_chore("retention")

    async def sweep(self) -> bool:
        """Delete all expired data; return False if records must stay until the statistics have counted them."""
        if trio.current_time() >= self._rescan_at:
            self._rescan_at = trio.current_time() + RESCAN_EVERY
            for task in (self._audit, self._bodies_task, *self._records):
                task.after = START
            self._trimmed.clear()
        done: Counter[str] = Counter()
        if (partitions := self._store.engine.partitions) is not None:
            kept = {"bodies": self._whole_bodies, "mail": self._metadata, "events": self._metadata, "posts": self._logs}
            await partitions.make(kept, self._env.now())
        counted = await self._store.deletion.is_counted(self._old())
        try:
            for task in (self._expired, self._audit, self._requests, self._bodies_task, self._received):
                await self._finish(task, done)
            for task in self._records if counted else ():
                await self._finish(task, done)
            await self._finish(self._parts, done)  # of large bodies, unlinked by the other tasks
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
        """Shrink the file if much of it is free; to the minimum while the disk is nearly full."""
        if (space := self._store.space) is None:
            return
        pages = _Task("pages", lambda _, budget: space.give_back(budget), pace=self._pages_pace)
        left = (await space.usage()).to_give_back(at_once=self._free_space.low())
        while left > 0:
            result = await self._slice(pages, min(left, pages.pace.budget), done)
            left = left - result.deleted if result.more else 0
        if done["pages"]:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        if self._store.space is not None:
            await trio.to_thread.run_sync(self._store.space.settle, limiter=self._thread)
