"""Shares a limited resource between owners: `Shares` counts who holds how much, and in a `TurnQueue` owners take turns.

Every device that divides slots, bytes or time between accounts, networks or receivers is built from these two classes
(docs/decisions.md, "How shares, budgets and limits interact"). Two devices are here: `Workers` runs expensive work on
threads, so that the event loop keeps serving other clients, and `MemoryBudget` divides memory for data of clients.
"""

import time
from bisect import insort
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar, TypeVarTuple, Unpack

import trio

from appliance.errors import Code, Refused

SHARE_OF_FREE = 4  # a holder may have fewer than four times as many slots as are free
SPARE_SHARE = 2  # the stricter share, for uses that yield to other uses of the same holder

Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item")


def may_take(held: int, free: int, share: int = SHARE_OF_FREE) -> bool:
    """Whether a holder of `held` slots may take a free one: one gets four fifths of all, two four ninths each."""
    return held < share * free


class Shares(Generic[Owner]):
    """A limited amount of slots or bytes, and how much of it each holder has."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._held: dict[Owner, int] = {}  # no zeros

    @property
    def free(self) -> int:
        """Negative while more is in use than there is, after `total` shrank."""
        return self.total - self.used

    def of(self, holder: Owner) -> int:
        return self._held.get(holder, 0)

    def has_room(self, holder: Owner, share: int = SHARE_OF_FREE) -> bool:
        return may_take(self._held.get(holder, 0), self.total - self.used, share)

    def take(self, holder: Owner, amount: int = 1) -> None:
        self.used += amount
        self._held[holder] = self._held.get(holder, 0) + amount

    def give_back(self, holder: Owner, amount: int = 1) -> None:
        self.used -= amount
        if remaining := self._held.pop(holder) - amount:
            self._held[holder] = remaining


class TurnQueue(Generic[Owner, Item]):
    """A queue in which owners take turns; each owner's items keep their order."""

    def __init__(self) -> None:
        self._items: dict[Owner, deque[Item]] = {}  # the owner whose turn is next comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def owners(self) -> Iterable[Owner]:
        return self._items.keys()

    def count(self, owner: Owner) -> int:
        items = self._items.get(owner)
        return 0 if items is None else len(items)

    def add(self, owner: Owner, item: Item, ahead_of: Callable[[Item], bool] | None = None) -> None:
        """Add an item behind its owner's others, or before the first one that it goes `ahead_of`."""
        items = self._items.setdefault(owner, deque())
        place = len(items)
        if ahead_of is not None:
            place = next((place for place, other in enumerate(items) if ahead_of(other)), place)
        items.insert(place, item)
        self._count += 1

    def put_back(self, owner: Owner, item: Item) -> None:
        """Make an item its owner's next one. The owner keeps its place among the owners."""
        self._items.setdefault(owner, deque()).appendleft(item)
        self._count += 1

    def remove(self, owner: Owner, item: Item) -> None:
        items = self._items[owner]
        items.remove(item)
        self._count -= 1
        if not items:
            del self._items[owner]

    def heads(self) -> list[Item]:
        return [items[0] for items in self._items.values()]

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        """Remove and return the first head that may go. An owner whose head may not go keeps its turn."""
        for owner, items in self._items.items():
            if may_go(items[0]):
                return self.next_of(owner)
        return None

    def next(self) -> Item:
        return self.next_of(next(iter(self._items)))

    def next_of(self, owner: Owner) -> Item:
        """Remove and return an owner's first item; the owner's next turn comes after all others'."""
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items
        self._count -= 1
        return item

    def drain(self) -> list[Item]:
        return [self.next() for _ in range(self._count)]


LOW_TURN = 10  # an item with low priority goes after nine others at the latest


class AgeQueue(Generic[Owner, Item]):
    """A queue in which owners take turns, and so do an owner's new and older items.

    So its backlog delays a new item by one turn, and new items that keep coming leave it every second turn.
    """

    def __init__(self) -> None:
        self._items: dict[Owner, TurnQueue[int, Item]] = {}  # by age; the owner whose turn is next comes first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, owner: Owner, item: Item, new: int = 0, ahead_of: Callable[[Item], bool] | None = None) -> None:
        if (items := self._items.get(owner)) is None:
            items = self._items[owner] = TurnQueue()
        items.add(new, item, ahead_of)
        self._count += 1

    def put_back(self, owner: Owner, item: Item, new: int = 0) -> None:
        """Make an item the next one of its owner and age."""
        self._items.setdefault(owner, TurnQueue()).put_back(new, item)
        self._count += 1

    def heads(self) -> list[Item]:
        return [head for items in self._items.values() for head in items.heads()]

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        """Remove and return the first head that may go. An owner whose heads may not go keeps its turn."""
        for owner, items in self._items.items():
            if (item := items.next_that(may_go)) is not None:
                del self._items[owner]
                if items._count:
                    self._items[owner] = items
                self._count -= 1
                return item
        return None


class PriorityQueue(Generic[Owner, Item]):
    """Two queues in which owners take turns: items with low priority get one turn in ten, and all that others leave."""

    def __init__(self) -> None:
        self._by_priority = AgeQueue[Owner, Item](), AgeQueue[Owner, Item]()
        self._passed = 0  # turns of others since the last item with low priority

    def __len__(self) -> int:
        return self._by_priority[0]._count + self._by_priority[1]._count

    def of(self, low: int) -> AgeQueue[Owner, Item]:
        return self._by_priority[low]

    def next(self) -> Item | None:
        return self.next_that(lambda _: True)

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        first = int(self._passed >= LOW_TURN - 1)
        for low in (first, 1 - first):
            if (item := self._by_priority[low].next_that(may_go)) is not None:
                self._passed = 0 if low or not self._by_priority[1]._count else self._passed + 1
                return item
        return None

    def heads(self) -> list[Item]:
        return [head for queue in self._by_priority for head in queue.heads()]

    def drain(self) -> list[Item]:
        return [item for _ in range(len(self)) if (item := self.next()) is not None]


# ---- worker threads
#
# - Work whose estimated cost (`cost_of_…` in `message/`) is within `ON_LOOP` runs at once, on the event loop.
# - All other work runs on `THREADS` threads: the waiting owner (account) that has used the least time is next,
#   and of an account's jobs those of streams with low priority come after the others.
# - After a job its thread rests as long as the job took, up to `LONGEST_REST`: pure-Python work holds the interpreter
#   lock, and the event loop would otherwise compete for it all the time.
# - Beyond the limits of the queue the client must retry: HTTP 503 `temporary_failure` with `Retry-After`, SMTP 451.
# - A started job finishes even if its caller is cancelled; the size of its input bounds it.

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
    may_pass: int = 0  # later jobs of its owner that may still go before it
    turn: trio.Event = field(default_factory=trio.Event)
    seconds: float = 0.0  # its cost, once it is done

    def run(self, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        started = time.thread_time()
        try:
            return work(*arguments)
        finally:
            self.seconds = time.thread_time() - started


class FairQueue:
    """Start-time fair queueing by measured cost: the cost of jobs differs a thousandfold, so turns would be unfair."""

    def __init__(self, at_once: int, *, patience: float = QUEUE_TIMEOUT, rest: float = 1.0) -> None:
        self._slots = Shares[str](at_once)
        self._rest = rest  # times the cost of a job
        self._patience = patience
        self._waiting = TurnQueue[str, _Job]()
        self._used: dict[str, float] = {}  # by owner: virtual time up to which it has had its share
        self._now = 0.0  # virtual time: that of the job that started last
        self._rested_at = 0.0  # Trio's clock: when the next job may start

    @asynccontextmanager
    async def take(self, owner: str, *, low: bool = False) -> AsyncIterator[_Job]:
        """Wait for a turn. Its time is charged to the owner, unless the job has measured its own.

        Of an owner's jobs those with low priority get one turn in ten, and all that others leave.
        """
        job = _Job(owner, LOW_TURN - 1 if low else 0)
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
        self._waiting.add(job.owner, job, None if job.may_pass else _passes)
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


def _passes(other: _Job) -> bool:
    """Whether a new job goes before this one of its owner; asked of each until the first that it passes."""
    other.may_pass = (left := other.may_pass) - (left > 0)
    return left > 0


class Workers:
    def __init__(self, threads: int = THREADS, patience: float = QUEUE_TIMEOUT) -> None:
        self._queue = FairQueue(threads, patience=patience)
        self._limiter = trio.CapacityLimiter(threads)

    async def run(
        self, owner: str, cost: float, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments, low: bool = False
    ) -> T:
        """Run `work` for `owner`, on the loop or on a thread by its `cost` in microseconds. Raises what it raises."""
        if cost <= ON_LOOP:
            return work(*arguments)
        async with self._queue.take(owner, low=low) as job:
            return await trio.to_thread.run_sync(job.run, work, *arguments, limiter=self._limiter)


def _busy() -> Refused:
    text = "The server has too much work of this kind queued. Retry in 2 seconds."
    return Refused(Code.TEMPORARY_FAILURE, text, retry_after=2)


class MemoryBudget:
    """Counts the bytes that owners (accounts or networks) hold. HTTP bodies wait (`take`); SMTP does not (`try_take`).

    When the budget is used up, bodies wait, and the oldest gets memory first, not the owner whose turn it is: a body
    holds its memory until it ends, so turns could leave all bodies half read. One body at a time, the oldest waiting
    one, may exceed the limits, so that any single body fits.
    """

    def __init__(self, total: int, *, owner_part: int) -> None:
        self.shares = Shares[str](total)
        self._owner_limit = total // owner_part  # bytes
        self._requests: list[_Request] = []  # waiting, the oldest body first
        self._excess_age: int | None = None  # the age of the body that may exceed the limits

    def try_take(self, owner: str, amount: int) -> bool:
        """Take memory at once, if there is enough. An owner that holds none may exceed its share."""
        held = self.shares.of(owner)
        if amount > self.shares.free or (held and held + amount > self._owner_limit):
            return False
        if amount:
            self.shares.take(owner, amount)
        return True

    async def take(self, owner: str, amount: int, *, age: int, patience: float) -> bool:
        """Take more memory for a body; False after `patience` seconds without success. `age` orders the bodies."""
        request = _Request(age, owner, amount)
        insort(self._requests, request)
        self._grant()
        if request.granted.is_set():
            return True
        try:
            with trio.move_on_after(patience):
                await request.granted.wait()
        finally:
            if not request.granted.is_set():
                self._requests.remove(request)
        return request.granted.is_set()

    def give_back(self, owner: str, amount: int, age: int | None = None) -> None:
        self.shares.give_back(owner, amount)
        if self._excess_age == age:
            self._excess_age = None
        self._grant()

    def _grant(self) -> None:
        is_used_up = False
        for request in list(self._requests):
            if request.age != self._excess_age:
                if is_used_up:
                    continue  # a younger body must not take the memory that an older one waits for
                held = self.shares.of(request.owner) + request.amount
                if request.amount > self.shares.free or held > self._owner_limit:
                    if self._excess_age is not None:
                        is_used_up = request.amount > self.shares.free
                        continue
                    self._excess_age = request.age
            self._requests.remove(request)
            self.shares.take(request.owner, request.amount)
            request.granted.set()


@dataclass(slots=True, order=True)
class _Request:
    age: int  # the order in which bodies began
    owner: str = field(compare=False)
    amount: int = field(compare=False)
    granted: trio.Event = field(compare=False, default_factory=trio.Event)
