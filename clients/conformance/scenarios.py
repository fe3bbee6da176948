"""The scenarios, read from `scenarios/*.json` and checked for their shape. README.md describes the format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from clients.conformance.proxy import LISTENERS

FOLDER = Path(__file__).parent / "scenarios"
COMMANDS = ("client", "send", "send_batch", "get", "wait", "cancel", "reschedule", "parallel", "verify")
FAULTS = {
    "pass": set(),
    "answer": {"code", "json", "text", "kibibytes", "headers", "retry_after", "retry_after_date"},
    "reset": set(),
    "stall": set(),
    "drop": set(),
    "cut": set(),
    "delay": set(),
    "trickle": {"every"},
    "change": set(),
    "redirect": set(),
    "close": set(),
    "chunked": set(),
}


@dataclass(frozen=True)
class Step:
    """A command for the driver, and what is expected of its answer."""

    command: str
    arguments: Mapping[str, Any]
    expected: Mapping[str, Any]  # `ok`, `result`, `results` or `error`
    seconds: Sequence[float] | None  # between which the answer comes
    pause: float  # seconds before the command


@dataclass(frozen=True)
class Scenario:
    """One scenario."""

    name: str
    steps: tuple[Step, ...]
    stored: Any  # number of messages in the appliance, or what they are
    calls: Any = None  # requests that reached the proxy
    connections: Any = None
    faults: tuple[Mapping[str, Any], ...] = ()
    client: Mapping[str, Any] | None = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    listener: str = "open"
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_all(folder: Path = FOLDER) -> list[Scenario]:
    """Every scenario, by file and place in it."""
    scenarios = [scenario(item) for path in sorted(folder.glob("*.json")) for item in json.loads(path.read_text())]
    names = [item.name for item in scenarios]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two scenarios are named {sorted(twice)}")
    return scenarios


def scenario(written: Mapping[str, Any]) -> Scenario:
    """A scenario from its JSON; a misspelled name is an error, for it would leave something unchecked."""
    unknown = set(written) - {item.name for item in fields(Scenario)}
    if unknown or "calls" not in written:
        raise ValueError(f"{written.get('name')}: unknown {sorted(unknown)}, or no calls")
    faults = tuple(_fault(item) for item in written.get("faults", ()))
    read = Scenario(**{**written, "steps": tuple(_step(item) for item in written["steps"]), "faults": faults})
    if read.listener not in LISTENERS:
        raise ValueError(f"{read.name}: listener {read.listener!r}")
    return read


def _step(written: Mapping[str, Any]) -> Step:
    rest = dict(written)
    (command,) = set(rest) & set(COMMANDS)
    arguments = rest.pop(command)
    seconds, pause = rest.pop("seconds", None), rest.pop("pause", 0.0)
    if set(rest) not in ({"ok"}, {"result"}, {"results"}, {"error"}):
        raise ValueError(f"a step expects one of ok, result, results and error, not {sorted(rest)}")
    return Step(command, arguments, rest, seconds, pause)


def _fault(written: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = [name for name in written if name in FAULTS]
    if len(kinds) != 1 or set(written) - {kinds[0], "times"} - FAULTS[kinds[0]]:
        raise ValueError(f"no such fault: {written}")
    return written
