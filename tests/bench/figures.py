"""What a benchmark found, and what was wanted of it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One row of the table. What counts is the ratio of ours to the peer's in the same run, if there is a peer."""

    name: str
    unit: str
    ours: float
    wanted: float
    peer: float | None = None
    peer_name: str = ""
    at_least: bool = False
    note: str = ""

    @property
    def found(self) -> float:
        return self.ours if self.peer is None else self.ours / self.peer

    def reached(self) -> bool:
        return self.found >= self.wanted if self.at_least else self.found <= self.wanted


@dataclass(frozen=True)
class Curve:
    name: str
    points: list[tuple[float, float]]


@dataclass
class Run:
    figures: list[Figure] = field(default_factory=list)
    curves: dict[str, list[Curve]] = field(default_factory=dict)  # by the title of their plot
    stages: dict[str, float] = field(default_factory=dict)  # microseconds of the interpreter lock for a message
    skipped: dict[str, str] = field(default_factory=dict)  # scenarios that need what is not here, and what that is
    failed: dict[str, str] = field(default_factory=dict)  # scenarios that broke off, and how


def compared(
    name: str, unit: str, ours: Sequence[float], peer: Sequence[float], peer_name: str, wanted: float, **more: Any
) -> Figure:
    """Of rounds that alternated: the peer is stated so that the ratio is the median of those of neighbouring rounds."""
    ratio = statistics.median(mine / other for mine, other in zip(ours, peer, strict=True))
    mine = statistics.median(ours)
    return Figure(name, unit, mine, wanted, mine / ratio, peer_name, **({"at_least": True} | more))
