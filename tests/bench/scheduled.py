"""What scheduled messages cost other mail: before they are due, and when very many are due at once.

    .venv/bin/python -m tests.bench.scheduled                   # a million later, 100,000 at once
    .venv/bin/python -m tests.bench.scheduled --quick           # 100,000 and 10,000

Before they are due: messages of 2 KB from HTTP to Debian's smtp-sink, by a server with scheduled messages and by one
without, in alternating rounds. When they are due: all have the same due time. An honest account sends 20 messages a
second, alone and from that time on; its latency is that of the 202, and from the request's time to the record of the
delivery. A message has started when it is queued.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw

from appliance.store import FILE_NAME
from appliance.times import SECOND
from tests.bench import deliver, report
from tests.bench.figures import Figure, compared
from tests.bench.queued import fill_queue
from tests.running_appliance import Provisioned, Running, add_account

RATE = 20  # honest messages a second
START = 12  # seconds until all are due: the server starts, and the honest account is measured alone before
ALONE = 20.0  # seconds
STARTED_WITHIN = 60.0  # seconds
WANTED_RATE, WANTED_P99 = 0.95, 2.0

_SCHEDULE = (
    "UPDATE messages SET scheduled_at = :due WHERE status = 'queued'",
    "UPDATE recipients SET next_attempt_at = NULL WHERE status = 'queued'",
    "INSERT INTO scheduled_messages (account_id, message_id, due_at) SELECT account_id, id, :due FROM messages",
)
_LATENCIES = """SELECT r.delivered_at - m.created_at FROM messages m JOIN recipients r ON r.message_id = m.id
    WHERE m.account_id = :account_id AND m.created_at BETWEEN :since AND :until ORDER BY 1"""


def fill_schedule(data_dir: Path, account_id: str, count: int, due_at: int) -> None:
    fill_queue(data_dir, account_id, count)
    with closing(apsw.Connection(str(data_dir / FILE_NAME))) as connection, connection:
        for statement in _SCHEDULE:
            connection.execute(statement, {"due": due_at}).fetchall()
    os.sync()  # else the system writes out what was filled meanwhile


# ---- before they are due


def before_due(count: int, rounds: int, messages: int) -> tuple[list[float], list[float]]:
    """Deliveries a second of a server with so many scheduled messages, and of one without."""
    rates: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as full, tempfile.TemporaryDirectory() as empty, deliver.sink() as there:
        account = add_account(Path(full) / "data", "demo", credit=deliver.CREDITS)
        fill_schedule(Path(full) / "data", account.account_id, count, time.time_ns() // 1000 + 20 * 86_400 * SECOND)
        with (
            deliver.appliance(there.port, Path(full), account) as many,
            deliver.appliance(there.port, Path(empty)) as none,
        ):
            sides = [partial(deliver.measure, there, partial(deliver.send_over_http, side)) for side in (many, none)]
            for side in sides:
                side(deliver.SESSIONS * 5)
            for number in range(rounds):
                for index in (0, 1) if number % 2 else (1, 0):
                    rates[index].append(sides[index](messages))
    return rates


# ---- due at once


class Honest(NamedTuple):
    accepted: float  # milliseconds, p99
    delivered: float


class AtOnce(NamedTuple):
    started: float  # seconds from the due time until the last is queued
    alone: Honest
    beside: Honest


def due_at_once(count: int) -> AtOnce:
    with tempfile.TemporaryDirectory() as directory, deliver.sink() as there:
        data_dir = Path(directory) / "data"
        account = add_account(data_dir, "demo", credit=deliver.CREDITS)
        honest = add_account(data_dir, "honest", credit=deliver.CREDITS)
        fill_schedule(data_dir, account.account_id, count, 2**53)
        with deliver.appliance(there.port, Path(directory), account) as running, database_of(running) as database:
            send(running, honest, 2.0)
            alone = measure_honest(running, database, honest, ALONE)
            due_at = time.time_ns() // 1000 + SECOND
            database.execute("UPDATE scheduled_messages SET due_at = ?", (due_at,)).fetchall()
            began = max(due_at, time.time_ns() // 1000)
            with _sending(running, honest, STARTED_WITHIN) as sending:
                while (left := _count(database)) and time.time_ns() // 1000 < began + 4 * STARTED_WITHIN * SECOND:
                    time.sleep(0.2)
                started = (time.time_ns() // 1000 - began) / SECOND
                assert not left, f"{left} of {count} are not queued"
                accepted = json.loads(sending.communicate()[0])["p99_ms"]
            beside = Honest(accepted, _delivered(database, honest, began, began + int(STARTED_WITHIN) * SECOND))
    return AtOnce(started, alone, beside)


@contextmanager
def database_of(running: Running) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(running.data_dir / FILE_NAME))) as connection:
        connection.set_busy_timeout(10_000)
        yield connection


def _count(database: apsw.Connection) -> int:
    ((count,),) = database.execute("SELECT count(*) FROM scheduled_messages").fetchall()
    assert isinstance(count, int)
    return count


@contextmanager
def _sending(running: Running, account: Provisioned, seconds: float) -> Iterator[subprocess.Popen[str]]:
    words = "127.0.0.1", running.url.rpartition(":")[2], 4, seconds, f"Bearer {account.send_key}", "--rate", RATE
    command = [sys.executable, deliver.LOAD, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process


def send(running: Running, account: Provisioned, seconds: float) -> float:
    with _sending(running, account, seconds) as sending:
        return float(json.loads(sending.communicate()[0])["p99_ms"])


def measure_honest(running: Running, database: apsw.Connection, account: Provisioned, seconds: float) -> Honest:
    since = time.time_ns() // 1000
    accepted = send(running, account, seconds)
    return Honest(accepted, _delivered(database, account, since, time.time_ns() // 1000))


def _delivered(database: apsw.Connection, account: Provisioned, since: int, until: int) -> float:
    """The p99 of the time from a request to its delivery, in milliseconds, once all are delivered."""
    bindings = {"account_id": account.account_id, "since": since, "until": until}
    for _ in range(600):
        seen = [latency for (latency,) in database.execute(_LATENCIES, bindings)]
        if seen and None not in seen:
            break
        time.sleep(0.2)
    return float(sorted(seen)[int(0.99 * (len(seen) - 1))]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("later", "once"))
    options = parser.parse_args()
    later, at_once, messages = (100_000, 10_000, 1_000) if options.quick else (1_000_000, 100_000, 3_000)
    found = [] if options.only == "later" else at_once_figures(at_once)
    found += [] if options.only == "once" else later_figures(later, options.rounds, messages)
    print(report.table(found, {}))


def at_once_figures(count: int) -> list[Figure]:
    seen = due_at_once(count)
    name = f"{count:,} due at once: seconds until the last is queued"
    return [
        Figure(name, "s", seen.started, STARTED_WITHIN),
        *honest_figures(seen.alone, seen.beside, f"beside {count:,} due at once"),
    ]


def later_figures(count: int, rounds: int, messages: int) -> list[Figure]:
    with_them, without = before_due(count, rounds, messages)
    return [compared(f"HTTP to MX with {count:,} scheduled", "messages/s", with_them, without, "without", WANTED_RATE)]


def honest_figures(alone: Honest, beside: Honest, when: str) -> list[Figure]:
    names = f"honest p99 of the 202 {when}", f"honest p99 of a delivery {when}"
    return [
        Figure(name, "ms", with_it, WANTED_P99, without, "alone")
        for name, with_it, without in zip(names, beside, alone, strict=True)
    ]


if __name__ == "__main__":
    main()
