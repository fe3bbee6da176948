"""Runs costly work on a thread, so that the event loop serves other clients meanwhile. For HTTP and SMTP submission.

Rules:
- Work whose estimated cost (`appliance.message.cost`) is within `ON_LOOP` is done at once, on the event loop.
- All other work runs on `THREADS` threads. Owners (accounts) get equal shares of their time: of those that wait, the
  one whose work has taken the least is next.
- After a piece of work its thread rests as long as the work took, up to `LONGEST_REST`: pure-Python work holds the
  interpreter lock, and the event loop would otherwise contend for it without end.
- An owner may have `QUEUED_PER_OWNER` pieces waiting, all owners `QUEUED`, each for `QUEUE_TIMEOUT` seconds. Beyond
  that the client is told to retry: HTTP 503 `temporary_failure` with `Retry-After`, SMTP 451.
- A piece that has begun is finished, even when its caller is cancelled. Every piece is bounded by the size of its
  input, so this delays the end of the process by a few hundred milliseconds at most.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar, TypeVarTuple, Unpack

import trio

from appliance.errors import Code, Refused

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

ON_LOOP: Final = 2_000  # microseconds, as estimated: less than half of what a step on the loop may take
THREADS: Final = 1  # a second one would contend with the first for the interpreter lock
QUEUED_PER_OWNER: Final = 64  # pieces of work
QUEUED: Final = 512  # pieces of work; their memory is counted where they were read
QUEUE_TIMEOUT: Final = 10.0  # seconds
LONGEST_REST: Final = 0.1  # seconds
SERVER_WORK: Final = ""  # the owner of work that is no account's, and is never refused


@dataclass(eq=False, slots=True)
class _Piece:
    """One piece of work; `begin` is set once it is its turn."""

    owner: str
    begin: trio.Event = field(default_factory=trio.Event)
    seconds: float = 0.0  # that it took, once it is done

    def run(self, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Do the work, on the thread, and note what it cost in CPU time."""
        began = time.thread_time()
        try:
            return work(*arguments)
        finally:
            self.seconds = time.thread_time() - began


class FairQueue:
    """Start-time fair queueing between owners for a scarce resource, by what each piece of work really cost."""

    def __init__(self, at_once: int, *, patience: float = QUEUE_TIMEOUT, rest: float = 1.0) -> None:
        self._free = at_once
        self._rest = rest  # times what a piece took
        self._patience = patience
        self._waiting: dict[str, list[_Piece]] = {}  # by owner, oldest first
        self._queued = 0
        self._used: dict[str, float] = {}  # virtual time up to which each owner has had its share
        self._now = 0.0  # virtual time: that of the piece which began last
        self._rested = 0.0  # when the next piece may begin, in trio's time

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[_Piece]:
        """Wait for a turn; its time is charged to the owner, unless the piece has measured its own."""
        piece = _Piece(owner)
        await self._await_turn(piece)
        began = trio.current_time()
        try:
            await trio.sleep_until(self._rested)
            began = trio.current_time()
            yield piece
        finally:
            piece.seconds = piece.seconds or trio.current_time() - began
            self._end(piece)

    async def _await_turn(self, piece: _Piece) -> None:
        if self._free:
            self._begin(piece)
            return
        mine = self._waiting.setdefault(piece.owner, [])
        if piece.owner != SERVER_WORK and (len(mine) >= QUEUED_PER_OWNER or self._queued >= QUEUED):
            if not mine:
                del self._waiting[piece.owner]
            raise _busy()
        mine.append(piece)
        self._queued += 1
        try:
            with trio.fail_after(self._patience):
                await piece.begin.wait()
        except BaseException as ended:
            if piece.begin.is_set():  # its turn came just as it timed out
                self._end(piece)
            else:
                self._forget(piece)
            if isinstance(ended, trio.TooSlowError):
                raise _busy() from None
            raise

    def _forget(self, piece: _Piece) -> None:
        mine = self._waiting[piece.owner]
        mine.remove(piece)
        self._queued -= 1
        if not mine:
            del self._waiting[piece.owner]

    def _begin(self, piece: _Piece) -> None:
        self._free -= 1
        self._now = max(self._now, self._used.get(piece.owner, 0.0))
        piece.begin.set()

    def _end(self, piece: _Piece) -> None:
        self._free += 1
        self._rested = trio.current_time() + min(self._rest * piece.seconds, LONGEST_REST)
        self._used[piece.owner] = max(self._now, self._used.get(piece.owner, 0.0)) + piece.seconds
        if self._waiting:
            owner = min(self._waiting, key=lambda each: self._used.get(each, 0.0))
            following = self._waiting[owner][0]
            self._forget(following)
            self._begin(following)
        else:
            self._used.clear()  # no owner is waiting, so none is ahead of another
            self._now = 0.0


class Workers:
    def __init__(self, threads: int = THREADS, patience: float = QUEUE_TIMEOUT) -> None:
        self._queue = FairQueue(threads, patience=patience)
        self._limiter = trio.CapacityLimiter(threads)

    async def run(self, owner: str, cost: float, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Do `work` for `owner`, on the loop or on a thread by its `cost` in microseconds; raises what it raises."""
        if cost <= ON_LOOP:
            return work(*arguments)
        async with self._queue.take(owner) as piece:
            return await trio.to_thread.run_sync(piece.run, work, *arguments, limiter=self._limiter)


def _busy() -> Refused:
    text = "The server has too much work of this kind waiting. Retry later."
    return Refused(Code.TEMPORARY_FAILURE, text, retry_after=2)
