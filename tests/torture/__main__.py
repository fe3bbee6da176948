"""Tries to break the appliance, and tells what was lost: nothing is wanted.

sh packaging/torture                    # all of it; under an hour
sh packaging/torture --quick            # some of each, in under three minutes
sh packaging/torture --only power --seed 4711
"""

import argparse
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests import programs
from tests.bench.report import progress
from tests.torture import database_loss, hostile_peers, kills, points, power_loss, ramp
from tests.torture import faults as machine_faults
from tests.torture import streams as changed_inputs


@dataclass(frozen=True)
class Verdict:
    """What a trial has done, and what it found wrong, with the seed that shows it again."""

    done: str
    wrong: list[str]


Told = Callable[[str], None]


def power(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    wanted, cuts, wrong = 50 if quick else 1_000, 0, list[str]()
    while cuts < wanted:
        seed = next(seeds)
        for cut in power_loss.run(seed)[: wanted - cuts]:
            cuts += 1
            told(f"cut {cuts} of {wanted}")
            if found := power_loss.check(cut):
                wrong.append(f"seed {seed}: {found}")
    return Verdict(f"{cuts:,} cuts", wrong)


def killing(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    seed = next(seeds)
    done, wrong = kills.run(seed, 8 if quick else 200, told)
    return Verdict(done, [f"seed {seed}: {each}" for each in wrong])


def ramping(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    """Kills while the share of the mail that goes direct changes all the time."""
    seed = next(seeds)
    done, wrong = ramp.run(seed, 8 if quick else 200, told)
    return Verdict(done, [f"seed {seed}: {each}" for each in wrong])


def dying(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    """The whole program and its commands after deaths at named points."""
    seed = next(seeds)
    done, wrong = points.run(seed, quick, told)
    return Verdict(done, [f"seed {seed}: {each}" for each in wrong])


def postgresql(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    if programs.find("postgresql") is None:
        return Verdict("left out: " + programs.PROGRAMS["postgresql"].reason, [])
    seed = next(seeds)
    done, wrong = database_loss.run(seed, 3 if quick else 100, told)
    return Verdict(done, [f"seed {seed}: {each}" for each in wrong])


def streams(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    """Changed inputs of every kind, to the readers and over sockets; and an honest client beside slow ones."""
    seed = next(seeds)
    read, wrong = changed_inputs.check_all(20_000 if quick else 1_050_000, seed, told)
    sent, more = hostile_peers.run(250 if quick else 10_000, seed, told)
    slow, most = hostile_peers.beside_slow_clients(2 if quick else 5, 2.5 if quick else 6.0, told)
    return Verdict(f"{read:,} inputs, {sent:,} on sockets, {slow}", wrong + more + most)


def faults(quick: bool, seeds: Iterator[int], told: Told) -> Verdict:
    """Disk, descriptors, memory, clock, stops and DNS, taken away under load."""
    return Verdict(*machine_faults.run(1 if quick else 6, next(seeds), told))


TRIALS: dict[str, Callable[[bool, Iterator[int], Told], Verdict]] = {
    "power": power,
    "kills": killing,
    "ramp": ramping,
    "points": dying,
    "postgresql": postgresql,
    "streams": streams,
    "faults": faults,
}


def main() -> int:
    """Run the trials; 0 if none found anything."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="packaging/torture", description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="some of each")
    parser.add_argument("--only", metavar="NAMES", help=f"some of: {','.join(TRIALS)}")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="that a failure told")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(TRIALS)
    if unknown := set(chosen) - set(TRIALS):
        parser.error(f"--only: no trial {', '.join(sorted(unknown))}; there are {', '.join(TRIALS)}")
    print(f"seed {options.seed}")
    found, started = 0, time.monotonic()
    for number, name in enumerate(chosen):
        began = time.monotonic()
        with progress(name, number / len(chosen)) as told:
            try:
                verdict = TRIALS[name](options.quick, iter(range(options.seed, options.seed + 10**6)), told)
            except Exception as error:  # the other trials have something to tell, too
                traceback.print_exc()
                verdict = Verdict("ended", [f"seed {options.seed}: {type(error).__name__}: {error}".splitlines()[0]])
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{name:<12} {verdict.done:<24} {took:>8}  {'held' if not verdict.wrong else 'BROKEN'}")
        for wrong in verdict.wrong[:10]:
            print(f"    {wrong}")
        found += len(verdict.wrong)
    print(f"{'nothing was lost' if not found else f'{found} found'}, {time.monotonic() - started:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
