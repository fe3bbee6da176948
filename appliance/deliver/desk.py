"""In charge of short work done in threads: several pieces a trip, for a trip costs as much as a piece of it.

Whoever comes while a thread is free takes all that wait, or their share of it, there and brings the results back; the
others wait for theirs, or to be the next to go.
"""

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import outcome
import trio

PIECES = 8  # in one trip: some thirty milliseconds of RSA signatures, or one of Ed25519

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Piece(Generic[T]):
    work: Callable[[], T]
    result: outcome.Maybe[T] | None = None
    called: trio.Event = field(default_factory=trio.Event)  # it is done, or it is this one's turn to go


class Desk(Generic[T]):
    """As many threads as there are cores, and what waits for them."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._limiter = trio.CapacityLimiter(self._threads)
        self._waiting: deque[_Piece[T]] = deque()
        self._trips = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What the work gives, or raises, done in a thread."""
        piece = _Piece(work)
        self._waiting.append(piece)
        while piece.result is None:
            if self._trips < self._threads:
                await self._trip()
            else:
                await self._wait(piece)
        return piece.result.unwrap()

    async def _trip(self) -> None:
        share = -(-len(self._waiting) // (self._threads - self._trips))
        pieces = [self._waiting.popleft() for _ in range(min(share, PIECES))]
        self._trips += 1
        try:
            await trio.to_thread.run_sync(_do, pieces, limiter=self._limiter)
        finally:
            self._trips -= 1
            for piece in pieces:
                piece.called.set()
            self._call_next()

    async def _wait(self, piece: _Piece[T]) -> None:
        try:
            await piece.called.wait()
        except trio.Cancelled:
            if piece in self._waiting:
                self._waiting.remove(piece)
            self._call_next()  # it may have been this one's turn
            raise
        piece.called = trio.Event()

    def _call_next(self) -> None:
        if self._waiting and self._trips < self._threads:
            self._waiting[0].called.set()


def _do(pieces: list[_Piece[T]]) -> None:
    for piece in pieces:
        piece.result = outcome.capture(piece.work)
