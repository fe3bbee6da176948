"""What is told of a run: progress on a terminal, the table, the record of this machine, and docs/performance.md."""

import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.bench import plots
from tests.bench.figures import Figure, Run

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- measured by sh packaging/bench -->", "<!-- end of what was measured -->"
SLOWER = 0.9  # of the last run on this machine, from which on it is pointed out

PLOTS: dict[str, tuple[str, str, str, bool]] = {  # file, axes, whether the first is logarithmic
    "Throughput against backlog": ("throughput-against-backlog", "messages queued", "deliveries a second", True),
    "Latency of an accept at half load": ("accept-latency", "percentile", "milliseconds", False),
    "Memory while mail goes through": ("memory-over-time", "seconds", "MB resident", False),
}


@contextmanager
def progress(name: str, done: float = 0.0) -> Iterator[Callable[[str], None]]:
    """A line on a terminal that tells what is being measured; elsewhere one as it begins and one as it ends."""
    shown = sys.stderr.isatty()
    began = time.monotonic()

    def told(text: str) -> None:
        if shown:
            bar = ("#" * round(done * 20)).ljust(20, "-")
            line = f"[{bar}] {time.monotonic() - began:4.0f} s  {name}: {text}"
            sys.stderr.write(f"\r\x1b[K{line[: os.get_terminal_size(2).columns - 1]}")
            sys.stderr.flush()

    if not shown:
        print(f"{name} ...", file=sys.stderr, flush=True)
    told("starting")
    yield told
    if shown:
        sys.stderr.write("\r\x1b[K")
    else:
        print(f"{name}: {time.monotonic() - began:.0f} seconds", file=sys.stderr, flush=True)


# ---- the table


def table(figures: Sequence[Figure], before: dict[str, float] | None = None) -> str:
    """One row a figure; with what it was in the run before, if that is known."""
    heads = ["scenario", "ours", "peer", "ratio", "target", "verdict"] + (["last run"] if before else [])
    rows = [heads, *(_row(figure, before) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) if number in (0, 2, 5) else cell.rjust(width) for number, (cell, width) in row)
        for row in (list(enumerate(zip(each, widths, strict=True))) for each in rows)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _row(figure: Figure, before: dict[str, float] | None) -> list[str]:
    peer = "" if figure.peer is None else f"{_number(figure.peer)} {figure.peer_name}"
    ratio = "" if figure.peer is None else f"{figure.found:.2f}"
    limit = f"{'≥' if figure.at_least else '≤'} {figure.wanted:g}{'' if figure.peer is not None else ' ' + figure.unit}"
    row = [figure.name, f"{_number(figure.ours)} {figure.unit}", peer, ratio, limit, _verdict(figure)]
    if before:
        row.append(_change(figure, before.get(key(figure))))
    return row


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _verdict(figure: Figure) -> str:
    return "reached" if figure.reached() else "MISSED"


def _change(figure: Figure, was: float | None) -> str:
    if not was or not figure.found:
        return "-"
    better = figure.found / was if figure.at_least else was / figure.found
    return f"{was:.3g}{' SLOWER' if better < SLOWER else ''}"


def key(figure: Figure) -> str:
    return f"{figure.name} [{figure.unit}]"


# ---- the record of this machine


def machine() -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory[1]) / 2**20) if memory else 0,
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "python": platform.python_version(),
    }


def record_file(here: dict[str, Any], *, quick: bool) -> Path:
    kept = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "appliance-bench"
    name = sha256(json.dumps(here, sort_keys=True).encode()).hexdigest()[:12]
    return kept / f"{name}{'-quick' if quick else ''}.json"


def recorded(file: Path) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in json.loads(file.read_text())["found"].items()}
    except (OSError, ValueError, KeyError):
        return {}


def record(file: Path, run: Run, here: dict[str, Any]) -> None:
    """Keep it, with what was known of scenarios that were left out this time."""
    found = recorded(file) | {key(figure): figure.found for figure in run.figures}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"machine": here, "found": found, "run": asdict(run)}, indent=1) + "\n")


# ---- the document


def write_document(run: Run, here: dict[str, Any]) -> None:
    """Put what was measured into its place in the document, and the plots beside it."""
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{_measured(run, here)}\n{END}{tail}")


def _measured(run: Run, here: dict[str, Any]) -> str:
    lines = [
        f"Measured on {here['cores']} cores ({here['processor']}) with {here['memory_gb']} GB of memory, "
        f"{here['system']}, Python {here['python']}.",
        "",
        "| scenario | ours | peer, in the same run | ratio | target | |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(_row(figure, None))} |" for figure in run.figures]
    lines += ["", *(f"{figure.name}: {figure.note}." for figure in run.figures if figure.note)]
    lines += [f"Not measured: {name} ({why})." for name, why in run.skipped.items()]
    for title, curves in run.curves.items():
        file, x_name, y_name, log_x = PLOTS[title]
        (IMAGES / f"{file}.svg").write_text(plots.lines(title, curves, x_name, y_name, log_x=log_x))
        lines += ["", f"![{title}](images/{file}.svg)"]
    if run.stages:
        title = "Cost of a message by stage"
        drawn = plots.bars(title, list(run.stages.items()), "us of the interpreter lock")
        (IMAGES / "cost-by-stage.svg").write_text(drawn)
        lines += ["", f"![{title}](images/cost-by-stage.svg)"]
    return "\n".join(lines) + "\n"
