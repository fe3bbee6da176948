"""A slice: what one short transaction of many has deleted."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import apsw

START = ""  # comes before every id: where a walk begins


@dataclass(frozen=True, slots=True)
class Slice:
    """What was deleted in one transaction, how long that kept the writer, and how it goes on."""

    deleted: int
    seconds: float
    more: bool  # at once
    after: str = START  # the row that was looked at last


def timed(work: Callable[[apsw.Connection], int]) -> Callable[[apsw.Connection], tuple[int, float]]:
    """The same work, which also says how long it took."""

    def measured(c: apsw.Connection) -> tuple[int, float]:
        began = perf_counter()
        return work(c), perf_counter() - began

    return measured
