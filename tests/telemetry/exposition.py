"""A strict reader of Prometheus' text format: what it does not understand, Prometheus might not either."""

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (.+)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (-?[0-9.e+-]+|NaN|\+Inf)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """One metric with its samples, by the name of the sample and its labels."""

    kind: str
    about: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def read(text: str) -> dict[str, Family]:
    """Everything on a page; raises AssertionError where it breaks the format."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    about, family, name = "", Family("", ""), ""
    for line in text.splitlines():
        if match := _HELP.fullmatch(line):
            name, about = match[1], match[2]
            assert name not in families, "a metric stands in one place"
        elif match := _TYPE.fullmatch(line):
            assert match[1] == name, "HELP and TYPE are of one metric"
            family = families[name] = Family(match[2], about)
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
            assert match[1] in {name + end for end in ends}, line
            key = (match[1], _labels(match[2] or ""))
            assert key not in family.samples, "a sample stands in one place"
            family.samples[key] = float(match[3])
    for name, each in families.items():
        _check(name, each)
    return families


def _labels(text: str) -> Labels:
    found, at = [], 0
    while at < len(text):
        match = _LABEL.match(text, at)
        assert match, text
        found.append((match[1], match[2]))
        at = match.end()
    return tuple(found)


def _check(name: str, family: Family) -> None:
    """Counters end in _total (by custom), and the buckets of a histogram add up."""
    if family.kind == "counter":
        assert name.endswith("_total")
    if family.kind == "histogram":
        buckets = [value for (sample, _), value in family.samples.items() if sample == f"{name}_bucket"]
        assert buckets == sorted(buckets)
        assert buckets[-1] == family.samples[f"{name}_count", ()]
        bounds = [dict(labels)["le"] for (sample, labels) in family.samples if sample == f"{name}_bucket"]
        assert bounds[-1] == "+Inf"
        assert [float(bound) for bound in bounds] == sorted(map(float, bounds))
