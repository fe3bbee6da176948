"""In charge of the text that Prometheus reads: its exposition format, version 0.0.4. PURE."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.telemetry.metrics import Counter, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reading:
    """Something that is read when it is asked for: one value, or one for each value of its labels."""

    name: str
    about: str
    values: Mapping[Any, float] = field(default_factory=dict)  # by the label's value, or a tuple of those of several
    labels: tuple[str, ...] = ()  # none: one value, under the key ""
    kind: str = "gauge"


def page(counts: Iterable[Counter], spreads: Iterable[Histogram], readings: Iterable[Reading]) -> str:
    """Everything, in the order given."""
    lines: list[str] = []
    for each in counts:
        lines += _counts(each)
    for spread in spreads:
        lines += _spread(spread)
    for reading in readings:
        lines += _reading(reading)
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {_escaped(about)}", f"# TYPE {name} {kind}"]


def _counts(counts: Counter) -> Iterator[str]:
    yield from _head(counts.name, "counter", counts.about)
    for key, value in list(counts.values.items()):
        yield f"{counts.name}{_labelled(counts.labels, key)} {value}"


def _spread(spread: Histogram) -> Iterator[str]:
    yield from _head(spread.name, "histogram", spread.about)
    counts, total, running = list(spread.counts), spread.total, 0
    for bound, count in zip(spread.bounds, counts, strict=False):
        running += count
        yield f'{spread.name}_bucket{{le="{bound:g}"}} {running}'
    yield f'{spread.name}_bucket{{le="+Inf"}} {sum(counts)}'
    yield f"{spread.name}_sum {total:.9g}"
    yield f"{spread.name}_count {sum(counts)}"


def _reading(reading: Reading) -> Iterator[str]:
    yield from _head(reading.name, reading.kind, reading.about)
    for key, value in reading.values.items():
        yield f"{reading.name}{_labelled(reading.labels, key)} {value:.16g}"


def _labelled(labels: tuple[str, ...], key: object) -> str:
    """The labels with their values, as they stand behind a name."""
    if not labels:
        return ""
    values = key if isinstance(key, tuple) else (key,)
    return "{" + ",".join(f'{label}="{_quoted(str(one))}"' for label, one in zip(labels, values, strict=True)) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
