"""Gives changed copies of bounces, complaints and reports, bare and packed, to every reader of `appliance/feedback`.

    .venv/bin/python -m tests.feedback.mutated_mail --count 100000 --seed 0    # three minutes on one core

Each input is made of the seed and its number, so one that fails can be made again: `--seed S --first N --count 1`. Ends
with 1 if a reader raised what it does not declare, took longer than `LONGEST`, or if memory grew by more than `GROWTH`.
"""

import argparse
import resource
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from appliance.feedback.arf import read_complaint
from appliance.feedback.dmarc_report import dmarc_counts, parse_dmarc_report, read_dmarc_report
from appliance.feedback.dsn import REMOTE_MTA_CHARACTERS, WORDS_CHARACTERS, read_notice
from appliance.feedback.report_file import UnreadableReport, expanded
from appliance.feedback.tls_report import parse_tls_report, read_tls_report, tls_counts
from tests.feedback.mutations import mutated, revalued
from tests.feedback.report_mail import alone, as_mail, gzipped, zipped

CORPUS = Path(__file__).parent / "corpus"
MAILS = {path.name: path.read_bytes() for path in sorted(CORPUS.rglob("*.eml"))}
DOCUMENTS = {path.name: path.read_bytes() for path in sorted([*CORPUS.rglob("*.xml"), *CORPUS.rglob("*.json")])}
KINDS = {".xml": "application/gzip", ".json": "application/tlsrpt+gzip"}
LONGEST = 2.0  # seconds of processor time
GROWTH = 64 * 1024 * 1024  # bytes
MOST_SHOWN = 10  # failures
SEEDS_APART = 10**9


def packed(name: str, content: bytes, number: int) -> bytes:
    """A document in a mail, in one of the ways that it is sent; of some the file is changed, not what is in it."""
    kind, random = KINDS[Path(name).suffix], Random(number)
    pack = gzipped if kind == KINDS[".json"] else random.choice((gzipped, zipped))
    send = random.choice((as_mail, alone))
    match random.randint(0, 6):
        case 0:
            return send(pack(mutated(content, number)), kind)
        case 1:
            return send(mutated(pack(content), number), kind)
        case 2:
            return mutated(send(pack(content), kind), number)
        case _:  # often, so that much is read to its end
            return send(pack(revalued(content, number)), kind)


def made(number: int, seed: int = 0) -> tuple[str, bytes]:
    """The input with this number, and the file that it was made of: mails, bare documents and packed ones in turn."""
    at, way = divmod(number, 3)
    random_number = seed * SEEDS_APART + number
    if way == 0:
        name = list(MAILS)[at % len(MAILS)]
        return name, mutated(MAILS[name], random_number)
    name = list(DOCUMENTS)[at % len(DOCUMENTS)]
    if way == 1:
        changed = mutated(DOCUMENTS[name], random_number)
        return name, changed if at % 2 else gzipped(changed)
    return name, packed(name, DOCUMENTS[name], random_number)


def read_all(data: bytes) -> None:
    """Every reader on the same bytes."""
    notice = read_notice(data, "rcpt@example.net")
    assert len(notice.words) <= WORDS_CHARACTERS
    assert len(notice.remote_mta or "") <= REMOTE_MTA_CHARACTERS
    notice.words.encode()  # can be stored
    for attached in (True, False):
        read_complaint(data, attached=attached)
    reports = (read_dmarc_report, dmarc_counts, parse_dmarc_report, read_tls_report, tls_counts, parse_tls_report)
    for read in (*reports, expanded):
        with suppress(UnreadableReport):
            read(data)


@dataclass
class Figures:
    """What readings took: the slowest input in processor time, growth of the most memory used, and what was raised."""

    slowest: float = 0.0
    slowest_is: str = ""
    growth: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.failures and self.slowest < LONGEST and self.growth < GROWTH


def most_memory() -> int:
    """The most memory that the process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(count: int, seed: int = 0, first: int = 0, *, shown: bool = False) -> Figures:
    """Read so many inputs."""
    found, before, began = Figures(), most_memory(), time.monotonic()
    for number in range(first, first + count):
        name, data = made(number, seed)
        start = time.process_time()
        try:
            read_all(data)
        except Exception:
            found.failures.append(f"number {number}, of {name}:\n{traceback.format_exc()}")
        taken = time.process_time() - start
        if taken > found.slowest:
            found.slowest, found.slowest_is = taken, f"number {number}, of {name}, {len(data)} bytes"
        done = number - first + 1
        if shown and (done % 500 == 0 or done == count):
            bar = "#" * (40 * done // count)
            left = (time.monotonic() - began) / done * (count - done)
            print(f"\r[{bar:40}] {done} of {count}, {left:.0f} s left ", end="", flush=True)
    found.growth = most_memory() - before
    return found


def main() -> None:
    """Read as many as the command line says, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0, help="of the changes")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    options = parser.parse_args()
    found = run(options.count, options.seed, options.first, shown=True)
    print(f"\nslowest: {found.slowest * 1000:.0f} ms ({found.slowest_is})")
    print(f"memory: {found.growth / 2**20:.1f} MiB more at most, {most_memory() / 2**20:.0f} MiB in all")
    print(f"unexpected exceptions: {len(found.failures)}")
    for failure in found.failures[:MOST_SHOWN]:
        print(failure)
    sys.exit(0 if found.sound else 1)


if __name__ == "__main__":
    main()
