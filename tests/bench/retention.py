"""What a sender notices of the janitor: POST /emails while a million old messages are deleted, and while none is.

    .venv/bin/python -m tests.bench.retention                   # up to an hour; needs 8 GB of disk

The house is filled with delivered messages of forty days ago. Then the real program runs on it three times: told to
keep them, told to keep nothing older than a month, and once more when all of it is gone. Each time requests come at an
even rate, and a latency counts from when its request was due. The load comes from a process of its own.
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
from tests.running import Provisioned, Running, add_account, appliance

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


def change(data_dir: Path, *statements: str) -> None:
    """Change the database while no server runs."""
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    for statement in statements:
        connection.execute(statement, {"change": 80 * DAY * 1_000_000}).fetchall()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def said(running: Running) -> dict[str, int]:
    """What the janitor says it has deleted, all rounds together."""
    total: dict[str, int] = {}
    for line in running.log_file.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("event") == "cleared":
            for kind, number in entry.items():
                if isinstance(number, int):
                    total[kind] = total.get(kind, 0) + number
    return total


def database_mib(running: Running) -> int:
    """How large the file is."""
    return (running.data_dir / FILE_NAME).stat().st_size >> 20


def phase(
    name: str, directory: Path, account: Provisioned, retention: str, options: argparse.Namespace, *, until_done: bool
) -> dict[str, Any]:
    """One start of the program: rounds of load for a while, or until the janitor is done."""
    rounds: list[dict[str, float]] = []
    with appliance(directory, account=account, fresh=True, retention=retention, server='log_level = "info"') as running:
        measure_appliance(running, WARM_UP, options.rate)
        began = time.monotonic()
        limit = options.most if until_done else options.seconds
        while time.monotonic() - began < limit and not (until_done and "messages" in said(running)):
            rounds.append(measure_appliance(running, options.round, options.rate))
            size, p50, p99 = database_mib(running), rounds[-1]["p50_ms"], rounds[-1]["p99_ms"]
            print(f"{name:<10} p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   {size} MiB", flush=True)
        cleared, took = said(running), time.monotonic() - began
    return {
        "phase": name,
        "p50_ms": statistics.median(each["p50_ms"] for each in rounds),
        "p99_ms": statistics.median(each["p99_ms"] for each in rounds),
        "worst_p99_ms": max(each["p99_ms"] for each in rounds),
        "seconds": round(took),
        "cleared": cleared,
        "database_mib": size,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--round", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the phases without the janitor")
    parser.add_argument("--most", type=float, default=3600.0, help="seconds of the phase with it, if it is not done")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        account = add_account(directory / "data", "demo", credit=10**9)
        fill(directory / "data", account.account_id, options.messages, age=40 * DAY)
        change(directory / "data", _COUNTED, _LATER)
        before = phase("without", directory, account, KEEP_ALL, options, until_done=False)
        change(directory / "data", _LATER.replace("+", "-"))
        during = phase("during", directory, account, "", options, until_done=True)
        after = phase("afterwards", directory, account, "", options, until_done=False)
    for each in (before, during, after):
        print(json.dumps(each))
    ratio = during["p99_ms"] / before["p99_ms"]
    print(f"\np99 during retention, against without: {ratio:.2f} (wanted: at most {WANTED})")


if __name__ == "__main__":
    main()
