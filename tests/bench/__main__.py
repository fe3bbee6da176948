"""Every benchmark in one run, each beside its peer: one table, the record of this machine, and docs/performance.md.

sh packaging/bench                      # all of it; most of an hour
sh packaging/bench --quick              # a first look, in under two minutes; writes no document
sh packaging/bench --only accept,queued
"""

import argparse
import sys
import time
import traceback

from tests.bench import report
from tests.bench.figures import Run
from tests.bench.scenarios import SCENARIOS, Effort, Missing
from tests.bench.submit import hurry


def main() -> int:
    """Measure, and tell: 0 if nothing failed, and all that was wanted was reached."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="packaging/bench", description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="little of everything: figures to look at, not to keep")
    parser.add_argument("--only", metavar="NAMES", help=f"some of: {','.join(SCENARIOS)}")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(SCENARIOS)
    if unknown := set(chosen) - set(SCENARIOS):
        parser.error(f"--only: no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    run, effort = Run(), Effort.quick() if options.quick else Effort.whole()
    if options.quick:
        hurry()
    began, taken = time.monotonic(), dict[str, float]()
    for number, name in enumerate(chosen):
        started = time.monotonic()
        with report.progress(name, number / len(chosen)) as told:
            try:
                SCENARIOS[name](effort, run, told)
            except Missing as missing:
                run.skipped[name] = str(missing)
            except Exception as error:  # what the others have found must not be lost
                traceback.print_exc()
                run.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        taken[name] = time.monotonic() - started
    here = report.machine()
    file = report.record_file(here, quick=options.quick)
    print(report.table(run.figures, report.recorded(file)))
    if run.stages:
        stages = ", ".join(f"{name} {value:.0f}" for name, value in run.stages.items())
        print(f"microseconds of the interpreter lock for a message: {stages}")
    for name, why in (run.skipped | run.failed).items():
        print(f"not measured: {name}: {why}")
    report.record(file, run, here)
    if not options.quick and not run.failed and chosen == list(SCENARIOS):
        report.write_document(run, here)
        print(f"written: {report.DOCUMENT.relative_to(report.ROOT)}")
    slowest = ", ".join(f"{name} {taken[name]:.0f}" for name in sorted(taken, key=taken.__getitem__, reverse=True))
    print(f"{time.monotonic() - began:.0f} seconds ({slowest}); kept for comparison with the next run on this machine")
    return 0 if not run.failed and all(figure.reached() for figure in run.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
