"""In charge of the text that Prometheus reads: its exposition format, version 0.0.4. PURE."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from appliance.measures import Counts, Spread

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reading:
    """Something that is read when it is asked for: one value, or one for each value of a label."""

    name: str
    about: str
    values: dict[str, float] = field(default_factory=dict)
    label: str = ""  # empty: one value, under the key ""
    kind: str = "gauge"


def page(counts: Iterable[Counts], spreads: Iterable[Spread], readings: Iterable[Reading]) -> str:
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


def _counts(counts: Counts) -> Iterator[str]:
    yield from _head(counts.name, "counter", counts.about)
    for key, value in list(counts.values.items()):
        values = key if isinstance(key, tuple) else (key,)
        pairs = ",".join(f'{label}="{_quoted(str(one))}"' for label, one in zip(counts.labels, values, strict=True))
        yield f"{counts.name}{{{pairs}}} {value}"


def _spread(spread: Spread) -> Iterator[str]:
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
        label = f'{{{reading.label}="{_quoted(key)}"}}' if reading.label else ""
        yield f"{reading.name}{label} {value:.16g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
