"""Runs expensive work on a thread, so that the event loop keeps serving other clients. For HTTP and SMTP submission.

- Work whose estimated cost (`cost_of_…` in `message/`) is within `ON_LOOP` runs at once, on the event loop.
- All other work runs on `THREADS` threads. Owners (accounts) get equal shares of their time: the waiting owner that
  has used the least time is next.
- After a job its thread rests as long as the job took, up to `LONGEST_REST`: pure-Python work holds the interpreter
  lock, and the event loop would otherwise compete for it all the time.
- An owner may have `QUEUED_PER_OWNER` jobs waiting, all owners `QUEUED`, each for `QUEUE_TIMEOUT` seconds. Beyond that
  the client must retry: HTTP 503 `temporary_failure` with `Retry-After`, SMTP 451.
- A started job finishes even if its caller is cancelled. The size of its input bounds a job, so this delays the end of
  the process by a few hundred milliseconds at most.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

from appliance.concurrency.fair_share import Shares, TurnQueue
from appliance.errors import Code, Refused

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

ON_LOOP: Final = 2_000  # microseconds, estimated: less than half of what one step on the loop may take
THREADS: Final = 1  # a second one would compete with the first for the interpreter lock
QUEUED_PER_OWNER: Final = 64  # jobs
QUEUED: Final = 512  # jobs; their memory is counted where they were read
QUEUE_TIMEOUT: Final = 10.0  # seconds
LONGEST_REST: Final = 0.1  # seconds
SERVER_WORK: Final = ""  # the owner of work that belongs to no account and is never refused


@dataclass(eq=False, slots=True)
class _Job:
    owner: str
    turn: trio.Event = field(default_factory=trio.Event)
    seconds: float = 0.0  # its cost, once it is done

    def run(self, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Run the work on the thread and measure its CPU time."""
        started = time.thread_time()
        try:
            return work(*arguments)
        finally:
            self.seconds = time.thread_time() - started


class FairQueue:
    """Start-time fair queueing between owners, by the measured cost of each job.

    The order differs from that of a plain `TurnQueue`, where one item is one turn: the cost of jobs differs a
    thousandfold, and equal turns would not be equal shares of time.
    """

    def __init__(self, at_once: int, *, patience: float = QUEUE_TIMEOUT, rest: float = 1.0) -> None:
        self._slots = Shares[str](at_once)
        self._rest = rest  # times the cost of a job
        self._patience = patience
        self._waiting = TurnQueue[str, _Job]()
        self._used: dict[str, float] = {}  # by owner: virtual time up to which it has had its share
        self._now = 0.0  # virtual time: that of the job that started last
        self._rested_at = 0.0  # Trio's clock: when the next job may start

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[_Job]:
        """Wait for a turn. Its time is charged to the owner, unless the job has measured its own."""
        job = _Job(owner)
        await self._await_turn(job)
        started = trio.current_time()
        try:
            await trio.sleep_until(self._rested_at)
            started = trio.current_time()
            yield job
        finally:
            job.seconds = job.seconds or trio.current_time() - started
            self._end(job)

    async def _await_turn(self, job: _Job) -> None:
        if self._slots.free > 0:
            self._start(job)
            return
        is_full = self._waiting.count(job.owner) >= QUEUED_PER_OWNER or len(self._waiting) >= QUEUED
        if is_full and job.owner != SERVER_WORK:
            raise _busy()
        self._waiting.add(job.owner, job)
        try:
            with trio.fail_after(self._patience):
                await job.turn.wait()
        except BaseException as ended:
            if job.turn.is_set():  # its turn came just as it timed out
                self._end(job)
            else:
                self._waiting.remove(job.owner, job)
            if isinstance(ended, trio.TooSlowError):
                raise _busy() from None
            raise

    def _start(self, job: _Job) -> None:
        self._slots.take(job.owner)
        self._now = max(self._now, self._used.get(job.owner, 0.0))
        job.turn.set()

    def _end(self, job: _Job) -> None:
        self._slots.give_back(job.owner)
        self._rested_at = trio.current_time() + min(self._rest * job.seconds, LONGEST_REST)
        self._used[job.owner] = max(self._now, self._used.get(job.owner, 0.0)) + job.seconds
        if self._waiting:
            owner = min(self._waiting.owners(), key=lambda owner: self._used.get(owner, 0.0))
            self._start(self._waiting.next_of(owner))
        else:
            self._used.clear()  # no owner waits, so none is ahead of another
            self._now = 0.0


class Workers:
    def __init__(self, threads: int = THREADS, patience: float = QUEUE_TIMEOUT) -> None:
        self._queue = FairQueue(threads, patience=patience)
        self._limiter = trio.CapacityLimiter(threads)

    async def run(self, owner: str, cost: float, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Run `work` for `owner`, on the loop or on a thread by its `cost` in microseconds. Raises what it raises."""
        if cost <= ON_LOOP:
            return work(*arguments)
        async with self._queue.take(owner) as job:
            return await trio.to_thread.run_sync(job.run, work, *arguments, limiter=self._limiter)


def _busy() -> Refused:
    text = "The server has too much work of this kind queued. Retry in 2 seconds."
    return Refused(Code.TEMPORARY_FAILURE, text, retry_after=2)
