"""`python -m clients.conformance`: tries the libraries against the real appliance, and tells which scenarios fail."""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from clients.conformance.drivers import LANGUAGES
from clients.conformance.runner import Outcome, Report, run
from clients.conformance.scenarios import read_all
from clients.conformance.server import started

CLIENTS = Path(__file__).parents[1]


class Progress(Report):
    """A character for each scenario on standard error."""

    def begins(self, language: str, count: int) -> None:
        """Name the language."""
        print(f"\n{language} ({count}) ", end="", file=sys.stderr, flush=True)

    def ended(self, outcome: Outcome) -> None:
        """A dot, or F."""
        print("F" if outcome.problems else ".", end="", file=sys.stderr, flush=True)

    def cannot_run(self, language: str, reason: str) -> None:
        """The reason."""
        print(f"\n{language}: {reason}", end="", file=sys.stderr, flush=True)


def parsed(words: list[str]) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(prog="python -m clients.conformance", description=__doc__)
    parser.add_argument("language", nargs="*", help=f"of {', '.join(LANGUAGES)}; none: all")
    parser.add_argument("-k", metavar="WORDS", default="", help="only scenarios whose name contains this")
    parser.add_argument("--clients", type=Path, default=CLIENTS, metavar="DIR", help="where the libraries' folders are")
    parser.add_argument("--json", action="store_true", help="the outcomes as JSON, one object per line")
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.language if name not in LANGUAGES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    return arguments


def table(outcomes: list[Outcome], seconds: float) -> str:
    """What failed, with why, and the numbers of each language."""
    lines = []
    for outcome in outcomes:
        if outcome.problems:
            lines += [f"{outcome.language}: {outcome.scenario}", *(f"    {item}" for item in outcome.problems), ""]
    passed = Counter(item.language for item in outcomes if not item.problems)
    failed = Counter(item.language for item in outcomes if item.problems)
    lines.append(f"{'language':<14}{'passed':>8}{'failed':>8}")
    lines += [f"{name:<14}{passed[name]:>8}{failed[name]:>8}" for name in dict.fromkeys(e.language for e in outcomes)]
    return "\n".join([*lines, f"in {seconds:.0f} seconds"])


def main(words: list[str]) -> int:
    """1 when a scenario failed, 2 for wrong usage."""
    arguments = parsed(words)
    scenarios = [item for item in read_all() if arguments.k.lower() in item.name.lower()]
    if not scenarios:
        print(f"no scenario's name contains {arguments.k!r}", file=sys.stderr)
        return 2
    begin = time.monotonic()
    with TemporaryDirectory(prefix="conformance-") as directory, started(Path(directory)) as server:
        names = arguments.language or list(LANGUAGES)
        outcomes = run(server, names, scenarios, arguments.clients.resolve(), Progress())
    print(file=sys.stderr)
    if arguments.json:
        for outcome in outcomes:
            print(json.dumps(asdict(outcome), ensure_ascii=False))
    else:
        print(table(outcomes, time.monotonic() - begin))
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
