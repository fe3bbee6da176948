"""What an honest client notices of a hostile one: its latency alone, and beside each attack.

    .venv/bin/python -m tests.bench.honest_client

The honest client sends 20 messages of 2 KB a second on four kept connections, from a process and an account of its own.
Each attack runs from another process with another account (or none) as fast as it was known to do harm. Rounds with the
attack and without it alternate, and their medians count: in some seconds the disk alone takes a hundred milliseconds.
Wanted is a p99 beside an attack of at most three times that alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.attacker import ATTACKS, RECEIVING, described
from tests.e2e.feedback.feedback import LISTENS
from tests.running_appliance import Provisioned, Running, add_account, appliance, command

CONNECTIONS = 4
RATE = 20  # honest requests a second
WANTED = 3.0  # times the p99 alone
HERE = Path(__file__).parent

Round = dict[str, float]


def honest(running: Running, account: Provisioned, seconds: float) -> Round | None:
    """One round of the honest client; None when its connections were closed."""
    parts = urlsplit(running.url)
    words = parts.hostname, parts.port, CONNECTIONS, seconds, f"Bearer {account.send_key}", "--rate", RATE
    ended = subprocess.run(
        [sys.executable, str(HERE / "load.py"), *map(str, words)], capture_output=True, text=True, check=False
    )
    return dict(json.loads(ended.stdout)) if ended.returncode == 0 else None


def receive(running: Running) -> None:
    """Let the account receive mail at a domain."""
    command(running.config_file, "inbound", "add", "--account", running.account.name, RECEIVING)


def _measured(running: Running, account: Provisioned, seconds: float) -> Round:
    result = honest(running, account, seconds)
    assert result is not None
    return result


@contextmanager
def attacked(name: str, running: Running, account: Provisioned) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.attacker", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(described(running, account) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "attacking\n"
            yield
        finally:
            process.kill()


def show(name: str, rate: float, alone: list[Round], beside: list[Round | None]) -> float:
    """One line an attack, by the medians of its rounds; the ratio of the p99, endless if the client was not served."""
    served = [each for each in beside if each is not None]
    if len(served) < len(beside):
        print(f"{name:<32} {rate:>5.0f} /s   the honest client was cut off", flush=True)
        return inf
    quiet, busy = (
        [statistics.median(each[key] for each in rounds) for key in ("p50_ms", "p99_ms")] for rounds in (alone, served)
    )
    ratio = busy[1] / quiet[1]
    refused = sum(each["answered"] - each["statuses"].get("202", 0) for each in served)  # type: ignore[attr-defined]
    print(
        f"{name:<32} {rate:>5.0f} /s   alone {quiet[0]:>6.1f} {quiet[1]:>7.1f} ms   beside {busy[0]:>6.1f}"
        f" {busy[1]:>7.1f} ms   p99 x {ratio:>4.1f}   refused {refused}",
        flush=True,
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5, help="of each, in turns; their median counts")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        appliance(Path(directory), credit=10**9, fresh=True, retention=LISTENS) as running,
    ):
        account = add_account(running.data_dir, "honest", credit=10**9)
        receive(running)
        honest(running, account, 3)
        ratios = []
        for name, attack in ATTACKS.items():
            if options.only not in name:
                continue
            alone, beside = [], []
            for _ in range(options.rounds):
                alone.append(_measured(running, account, options.seconds))
                with attacked(name, running, running.account):
                    beside.append(honest(running, account, options.seconds))
            ratios.append(show(name, attack.rate, alone, beside))
    print(f"worst: {max(ratios):.1f} (wanted: at most {WANTED})")


if __name__ == "__main__":
    main()
