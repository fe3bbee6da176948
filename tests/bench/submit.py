"""How fast submission takes messages, durably, against the accept rate of Debian's Postfix.

    .venv/bin/python -m tests.bench.submit        # as root, with `apt-get install postfix`

Each message is 2 KB to one recipient, over 20 sessions on loopback without TLS, kept for many messages or new for each.
Ours authenticate (`smtp.allow_plaintext_auth`); Postfix's need not. The rounds alternate, so that whatever else the
machine does meets both; the load comes from a process of its own, the same for both. Both have to sync before a 250.
Our deliveries are simulated beside it; Postfix's go to `discard`, which is less.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from tests.bench import postfix
from tests.e2e.submission.client import endpoint
from tests.running_appliance import Running, appliance

SESSIONS = 20
KINDS = {"kept": 0.8, "new": 0.5}  # connections, and the wanted share of Postfix's rate
HERE = Path(__file__).parent
LOOK = 0.5  # seconds over which the machine has to be idle
HURRIED = 2.0  # seconds that a quick run waits for that
_patience = 30.0  # seconds

Round = dict[str, float]


def settle() -> None:
    """Wait until the machine is quiet: what one side still has to do with its mail would slow the other's round.

    On a machine that does not become quiet, each wait is half as long as the one before.
    """
    global _patience  # of all rounds together
    until = time.monotonic() + _patience
    while time.monotonic() < until:
        before = _idle()
        time.sleep(LOOK)
        after = _idle()
        if after[0] - before[0] > 0.9 * (after[1] - before[1]):
            return
    _patience = max(LOOK, _patience / 2)


def hurry() -> None:
    global _patience
    _patience = HURRIED


def _idle() -> tuple[int, int]:
    times = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def measure(port: int, kind: str, seconds: float, *login: str) -> Round:
    settle()
    command = [sys.executable, str(HERE / "smtp_load.py"), "127.0.0.1", str(port), str(SESSIONS), str(seconds), kind]
    output = subprocess.run([*command, *login], capture_output=True, text=True, check=True).stdout
    result: Round = json.loads(output)
    assert not result["refused"], result
    return result


def measure_appliance(running: Running, kind: str, seconds: float) -> Round:
    return measure(endpoint(running)[1], kind, seconds, running.account.username, running.account.password)


def _postfix() -> AbstractContextManager[int]:
    """One that takes mail and throws it away; nothing listens on port 9."""
    return postfix.postfix(9, sessions=SESSIONS, signed=False, further="default_transport = discard:\nrelayhost =\n")


def show(name: str, rounds: list[Round]) -> None:
    rate, p50, p99 = (statistics.median(each[key] for each in rounds) for key in ("rate", "p50_ms", "p99_ms"))
    print(f"{name:<34} {rate:>8.0f} /s   p50 {p50:>6.1f} ms   p99 {p99:>6.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--alone", action="store_true", help="without Postfix")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        ours = stack.enter_context(
            appliance(Path(directory), smtp="allow_plaintext_auth = true", credit=10**9, fresh=True)
        )
        peer = 0 if options.alone else stack.enter_context(_postfix())
        results: dict[tuple[str, str], list[Round]] = {}
        for number in range(options.rounds):
            print(f"\rround {number + 1} of {options.rounds}", end="", flush=True)
            for kind in KINDS:
                results.setdefault((kind, "appliance"), []).append(measure_appliance(ours, kind, options.seconds))
                if peer:
                    results.setdefault((kind, "postfix"), []).append(measure(peer, kind, options.seconds))
    print("\r", end="")
    for (kind, side), rounds in results.items():
        show(f"{side}, {kind} connections", rounds)
    for kind, wanted in KINDS.items():
        if peer:
            pairs = zip(results[kind, "appliance"], results[kind, "postfix"], strict=True)
            ratio = statistics.median(mine["rate"] / other["rate"] for mine, other in pairs)
            print(f"ratio on {kind} connections: {ratio:.2f} (wanted: {wanted})")


if __name__ == "__main__":
    main()
