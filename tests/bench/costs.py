"""What a message costs: the figures that simulation.py calculates with, and how they are measured.

    .venv/bin/python -m tests.bench.costs       # some minutes; needs Debian's postgresql and postfix

One, two and three nodes on a PostgreSQL take messages of about 2 KB to one recipient over HTTP and deliver them to
Debian's smtp-sink, as in databases.py, at an easy load and as fast as they can; everything is on this machine. What a
message and what a commit cost follows from the two loads of one node, whose commits are of different sizes. Two and
three nodes are what the simulation is compared with. Printed is JSON, for `tests.bench.scaling --costs`.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import NamedTuple

import psycopg

from appliance.store.engine import JOBS_PER_COMMIT
from tests.bench import stages
from tests.bench.databases import EASE, EASED_SECONDS, NODES, Endpoint, side
from tests.bench.deliver import SESSIONS, began_at, names, rsa_seconds, send_over_http, start_sending
from tests.bench.report import progress
from tests.postgresql_server import PostgresServer, postgresql
from tests.programs import find

RESTED = 2.0  # seconds after which nodes have recorded all, and PostgreSQL has told its commits
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Costs:
    """Of one message with one recipient; microseconds of processor time where nothing else is said."""

    # The node, while it holds the interpreter lock (stages.py)
    accept: float
    store: float
    sign: float
    deliver: float
    record: float
    post: float
    log: float
    other: float
    # The node, for each of its commits, with the threads that wake for it. One accepts and one records; those that wait
    # share it.
    node_commit: float
    threads: float  # the node, beside the lock: the RSA signature
    # The database
    database: float
    database_commit: float  # for each commit
    taken_over: float  # for a recipient that gets another owner
    wal: float  # bytes
    rows: float  # bytes that are kept with the metadata, and their indexes
    body: float  # bytes that are kept for as long as bodies
    # Seconds that a commit takes while the processors are free, and at most
    commit_seconds: float
    longest_commit: float
    around: float  # the load generator and smtp-sink, which the measurements have on the same machine

    @property
    def accepting(self) -> float:
        return self.accept + self.store + (self.log + self.other) / 2

    @property
    def delivering(self) -> float:
        return self.sign + self.deliver + self.record + self.post + (self.log + self.other) / 2

    def commits(self, rate: float, busy: float) -> float:
        """Commits for a message on a node that does so many a second, while this share of the processors is busy."""
        took = min(self.longest_commit, self.commit_seconds / max(1e-9, 1 - busy))
        return 2 / min(JOBS_PER_COMMIT, 1 + rate * took)


class Load(NamedTuple):
    """What some nodes did and used; nan: not measured, or not while the machine was quiet."""

    nodes: int
    asked: float  # messages a second to each node; 0: as fast as they are answered
    rate: float  # messages a second of all nodes
    # For each message: microseconds, then commits, and bytes
    node: float
    database: float
    around: float = nan
    commits: float = nan
    wal: float = nan
    rows: float = nan
    body: float = nan


# Two cores of an Intel Xeon at 2.5 GHz had the nodes, the database, the load and the mail server. RSA-2048 took 714 us.
# `rate`, and `node` of one and of three nodes, are by `tests.bench.databases` on the quiet machine; the others, the
# commits (1.45 for a message at 80/s, 0.37 at 230/s) and the stages' shares by this module while other programs ran.
CORES = 2
SEEN = (
    Load(1, 80, nan, 8_850, 2_962),
    Load(2, 80, nan, 5_812, 1_350),
    Load(3, 80, nan, 5_758, 1_775),
    Load(1, 0, 344, 3_583, 722),
    Load(2, 0, nan, 4_833, 961),
    Load(3, 0, 246, 4_993, 2_250),
)
# Fitted to one node. The database's cost of a message is the prototype's (12 to 15 cores at 34,700/s), since the loads
# here had small commits; that of a commit is the mean over SEEN. `taken_over` is assumed. `around` is what one node at
# full load left of the two cores.
MEASURED = Costs(
    accept=233, store=180, sign=61, deliver=318, record=13, post=0, log=44, other=235,
    node_commit=4_863, threads=714, database=350, database_commit=1_190, taken_over=50,
    wal=5_300, rows=2_800, body=1_100, commit_seconds=0.0047, longest_commit=0.0193, around=1_500,
)  # fmt: skip


class Takeover(NamedTuple):
    """Of three nodes one was killed with so many messages left: seconds until the others had delivered the last."""

    left: int
    seconds: float


TAKEOVER = Takeover(1_500, 18.5)  # tests.bench.databases


# ---- measuring


class _Used(NamedTuple):
    nodes: float
    database: float
    around: float
    wal: float
    commits: float
    rows: float
    body: float


_COUNTERS = """SELECT pg_current_wal_lsn() - '0/0', xact_commit, sizes.* FROM pg_stat_database, (
    SELECT sum(pg_total_relation_size(oid)) FILTER (WHERE relname NOT LIKE 'message_bod%'),
        sum(pg_total_relation_size(oid)) FILTER (WHERE relname LIKE 'message_bod%')
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace) sizes
WHERE datname = current_database()"""


def _seconds(pid: int, *, ended: bool = False) -> float:
    """Processor time of a process; and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(each) for each in fields[11 : 15 if ended else 13]) / TICKS


def _used(server: PostgresServer, url: str, each: Endpoint) -> _Used:
    main = int((server.directory / "data" / "postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    with psycopg.connect(url) as connection:
        (counters,) = connection.execute(_COUNTERS).fetchall()
    loads = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Used(
        sum(_seconds(node.process.pid) for node in each.nodes if node.process),
        _seconds(main, ended=True) + sum(_seconds(int(pid)) for pid in children),
        _seconds(each.there.process.pid) + loads.ru_utime + loads.ru_stime,
        *map(float, counters),
    )


def _send(each: Endpoint, messages: int, asked: float) -> float:
    arrived, share = each.there.arrived, messages // len(each.nodes)
    sending = [start_sending(node, share, asked) for node in each.nodes]
    began = min(began_at(process) for process in sending)
    return each.there.wait_until(arrived + share * len(each.nodes)) - began


def load(server: PostgresServer, url: str, each: Endpoint, messages: int, asked: float = 0) -> Load:
    """What so many messages use; what as many nodes use at rest is subtracted, and what starting the load uses."""
    nodes = len(each.nodes)
    messages = messages // nodes // SESSIONS * SESSIONS * nodes
    time.sleep(RESTED)
    before = _used(server, url, each)
    time.sleep(RESTED)
    rest = [(now - then) / RESTED for now, then in zip(_used(server, url, each), before, strict=True)]
    _send(each, SESSIONS * nodes, asked)
    time.sleep(RESTED)
    began, first = time.monotonic(), _used(server, url, each)
    taken = _send(each, messages, asked)
    time.sleep(RESTED)
    spent, last = time.monotonic() - began, _used(server, url, each)
    found = [(now - then - spent * idle) / messages for now, then, idle in zip(last, first, rest, strict=True)]
    started = nodes * _starting(each) / messages
    node, database, around = (1e6 * seconds for seconds in (found[0], found[1], found[2] - started))
    wal, commits, rows, body = found[3:]
    return Load(nodes, asked, messages / taken, node, database, around, commits, wal, rows, body)


def _starting(each: Endpoint) -> float:
    """Processor seconds that a process which sends almost nothing uses."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_at(start_sending(each.nodes[0], SESSIONS))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fit(easy: Load, full: Load, lock: dict[str, float], rsa: float) -> dict[str, float]:
    """The costs by an easy and a full load of one node, the shares of its stages, and microseconds of a signature."""
    fewer = easy.commits - full.commits
    node_commit = max(0.0, (easy.node - full.node) / fewer)
    database_commit = max(0.0, (easy.database - full.database) / fewer)
    part = (full.node - node_commit * full.commits - rsa) / sum(lock.values())
    return {name: value * part for name, value in lock.items()} | {
        "node_commit": node_commit,
        "threads": rsa,
        "database": max(0.0, full.database - database_commit * full.commits),
        "database_commit": database_commit,
        "wal": full.wal,
        "rows": full.rows,
        "body": full.body,
        "commit_seconds": max(0.0, (2 / easy.commits - 1) / easy.asked),
        "longest_commit": max(0.0, (2 / full.commits - 1) / full.rate),
        "around": max(0.0, full.around),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=3_000, help="of a full load")
    parser.add_argument("--nodes", type=int, default=len(NODES), help="at most")
    options = parser.parse_args()
    if find("postgresql") is None or shutil.which("smtp-sink") is None:
        sys.exit("needs Debian's postgresql and postfix: sh packaging/install-test-programs")
    seen, lock = list[Load](), dict[str, float]()
    with ExitStack() as stack, progress("costs") as told:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dns_port = stack.enter_context(names())
        server = stack.enter_context(postgresql(fsync="on", autovacuum="on"))
        for count in range(1, options.nodes + 1):
            url = server.new_database()
            with side(f"{count}", directory / f"{count}", dns_port, url, NODES[:count]) as each:
                _send(each, SESSIONS * 5 * count, 0)
                for asked, messages in ((EASE, int(EASE * EASED_SECONDS) * count), (0.0, options.messages)):
                    told(f"{count} nodes, {asked or 'as many as they take'} a second")
                    seen.append(load(server, url, each, messages, asked))
                if count == 1:
                    send = partial(send_over_http, each.nodes[0])
                    lock = stages.costs(each.nodes[0], each.there, send, options.messages)
    for each_load in seen:
        print(each_load, file=sys.stderr)
    print(lock, file=sys.stderr)
    print(json.dumps(fit(seen[0], seen[1], lock, 1e6 * rsa_seconds()), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
