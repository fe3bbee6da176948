"""What a sender notices of retention: POST /emails while a million old messages are deleted, and while none is.

    .venv/bin/python -m tests.bench.retention                   # a quarter of an hour; needs 8 GB of disk

The database is filled with delivered messages of forty days ago. Then the real program runs on it, told to keep all,
and once for each step of retention, with the steps before it done: expired keys, bodies, pages given back to the
disk, messages with all that belongs to them. Each time requests come at an even rate, and a latency counts from when
its request was due. The load comes from a process of its own.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw

from appliance.store import FILE_NAME
from tests.bench.accept import measure_appliance
from tests.bench.stored import fill
from tests.running_appliance import Provisioned, Running, add_account, appliance

DAY = 86_400  # seconds
KEEP_ALL = 'bodies = "365d"\nmetadata = "365d"'
WARM_UP = 5.0  # seconds at the beginning of each phase that do not count
WANTED = 2.0  # times the p99 without, at most

# As if the program had been there all the time: what it would have to catch up with first is counted already.
_COUNTED = """
INSERT OR REPLACE INTO counted_until (kind, id)
SELECT 'sent', max(message_id) FROM recipients UNION ALL SELECT 'final', max(id) FROM events
"""
_LATER = "UPDATE idempotency_keys SET expires_at = expires_at + :change"
# The chores in their order: what is done in the database beforehand, and the settings that leave just this one to do.
_CHORES = {
    "keys": (_LATER.replace("+", "-"), KEEP_ALL),
    "bodies": ("DELETE FROM idempotency_keys", 'metadata = "365d"'),
    "pages": ("DELETE FROM message_bodies", KEEP_ALL),
    "messages": ("SELECT 1", ""),
}


def change(data_dir: Path, *statements: str) -> None:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    for statement in statements:
        connection.execute(statement, {"change": 80 * DAY * 1_000_000}).fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def database_mib(running: Running) -> int:
    return (running.data_dir / FILE_NAME).stat().st_size >> 20


def phase(
    name: str, directory: Path, account: Provisioned, retention: str, options: argparse.Namespace
) -> dict[str, Any]:
    rounds: list[dict[str, float]] = []
    with appliance(directory, account=account, fresh=True, retention=retention, server='log_level = "info"') as running:
        measure_appliance(running, WARM_UP, options.rate)
        began, size = time.monotonic(), database_mib(running)
        while time.monotonic() - began < options.seconds:
            rounds.append(measure_appliance(running, options.round, options.rate))
        left = database_mib(running)
    p50, p99 = (statistics.median(each[key] for each in rounds) for key in ("p50_ms", "p99_ms"))
    worst = max(each["p99_ms"] for each in rounds)
    print(f"{name:<10} p50 {p50:5.1f} ms   p99 {p99:5.1f} ms, at worst {worst:5.1f}   {size} to {left} MiB", flush=True)
    return {"phase": name, "p50_ms": p50, "p99_ms": p99, "worst_p99_ms": worst, "database_mib": left}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--round", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each phase")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        account = add_account(directory / "data", "demo", credit=10**9)
        fill(directory / "data", account.account_id, options.messages, age=40 * DAY)
        change(directory / "data", _COUNTED, _LATER)
        results = [phase("without", directory, account, KEEP_ALL, options)]
        for chore, (beforehand, retention) in _CHORES.items():
            change(directory / "data", beforehand)
            results.append(phase(chore, directory, account, retention, options))
    for each in results:
        print(json.dumps(each))
    worst = max(each["p99_ms"] for each in results[1:]) / results[0]["p99_ms"]
    print(f"\np99 during retention, against without: {worst:.2f} (wanted: at most {WANTED})")


if __name__ == "__main__":
    main()
