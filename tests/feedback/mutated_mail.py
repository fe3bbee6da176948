"""Gives changed copies of bounces, complaints and reports, bare and packed, to every reader of `appliance/feedback`.

Each input is made of the seed and its number, so one that fails can be made again.
"""

import resource
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from appliance.feedback.arf import read_complaint
from appliance.feedback.dmarc import dmarc_counts, parse_dmarc_report
from appliance.feedback.dsn import WORDS_CHARACTERS, read_notice
from appliance.feedback.mime import UnreadableReport, expanded
from appliance.feedback.tls_report import parse_tls_report, tls_counts
from tests.feedback.mutations import mutated, revalued
from tests.feedback.report_mail import alone, as_mail, gzipped, zipped

CORPUS = Path(__file__).parent / "corpus"
MAILS = {path.name: path.read_bytes() for path in sorted(CORPUS.rglob("*.eml"))}
DOCUMENTS = {path.name: path.read_bytes() for path in sorted([*CORPUS.rglob("*.xml"), *CORPUS.rglob("*.json")])}
KINDS = {".xml": "application/gzip", ".json": "application/tlsrpt+gzip"}
LONGEST = 2.0  # seconds of processor time
GROWTH = 64 * 1024 * 1024  # bytes
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
    notice = read_notice(data, "rcpt@example.net")
    assert len(notice.words) <= WORDS_CHARACTERS
    notice.words.encode()  # can be stored
    for attached in (True, False):
        read_complaint(data, attached=attached)
    for read in (dmarc_counts, parse_dmarc_report, tls_counts, parse_tls_report, expanded):
        with suppress(UnreadableReport):
            read(data)


@dataclass
class Figures:
    """What readings took: the slowest input in processor time, growth of the most memory used, and what was raised."""

    slowest: float = 0.0
    slowest_is: str = ""
    growth: int = 0
    failures: list[str] = field(default_factory=list)


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(count: int, seed: int = 0) -> Figures:
    found, before = Figures(), most_memory()
    for number in range(count):
        name, data = made(number, seed)
        start = time.process_time()
        try:
            read_all(data)
        except Exception:
            found.failures.append(f"number {number}, of {name}:\n{traceback.format_exc()}")
        taken = time.process_time() - start
        if taken > found.slowest:
            found.slowest, found.slowest_is = taken, f"number {number}, of {name}, {len(data)} bytes"
    found.growth = most_memory() - before
    return found
