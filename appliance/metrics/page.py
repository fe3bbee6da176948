"""The text format of Prometheus, version 0.0.4. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.telemetry.metrics import Counter, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reading:
    """A metric read at the time of the request: one value, or one for each value of its labels."""

    name: str
    about: str
    values: Mapping[Any, float] = field(default_factory=dict)  # by the label's value, or a tuple of those of several
    labels: tuple[str, ...] = ()  # none: one value, under the key ""
    kind: str = "gauge"


def page(counts: Iterable[Counter], spreads: Iterable[Histogram], readings: Iterable[Reading]) -> str:
    lines: list[str] = []
    for each in counts:
        lines += _reading(Reading(each.name, each.about, each.values.copy(), each.labels, "counter"))
    for spread in spreads:
        lines += _spread(spread)
    for reading in readings:
        lines += _reading(reading)
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {_escaped(about)}\n# TYPE {name} {kind}"


def _spread(spread: Histogram) -> Iterator[str]:
    yield _head(spread.name, "histogram", spread.about)
    counts, total, running = list(spread.counts), spread.total, 0
    for bound, count in zip(spread.bounds, counts, strict=False):
        running += count
        yield f'{spread.name}_bucket{{le="{bound:g}"}} {running}'
    yield f'{spread.name}_bucket{{le="+Inf"}} {sum(counts)}'
    yield f"{spread.name}_sum {total:.9g}"
    yield f"{spread.name}_count {sum(counts)}"


def _reading(reading: Reading) -> Iterator[str]:
    yield _head(reading.name, reading.kind, reading.about)
    for key, value in reading.values.items():
        yield f"{reading.name}{_labelled(reading.labels, key)} {value:.16g}"


def _labelled(labels: tuple[str, ...], key: object) -> str:
    if not labels:
        return ""
    values = key if isinstance(key, tuple) else (key,)
    quoted = [_escaped(str(one)).replace('"', '\\"') for one in values]
    return "{" + ",".join(f'{label}="{one}"' for label, one in zip(labels, quoted, strict=True)) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
