"""How fast messages are accepted, durably, against an empty Quart-Trio endpoint on stock hypercorn.

    .venv/bin/python -m tests.bench.accept                      # the ratio to the empty endpoint
    .venv/bin/python -m tests.bench.accept --stored 1000000     # also the ratio of a full database to an empty one
    .venv/bin/python -m tests.bench.accept --batch              # the ratio of batches of 100 to single requests
    .venv/bin/python -m tests.bench.accept --request-log        # the processor time of the request log
    .venv/bin/python -m tests.bench.accept --door resend        # the ratio of a door's requests to our own

Every POST /emails is a 2 KB text+html message to one recipient, with an API key and an Idempotency-Key of its own, on
16 kept connections; sandbox delivery goes on beside it. The rounds of the two sides alternate, so that whatever else
the machine does meets both. The load comes from a process of its own.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.stored import fill
from tests.ports import free_port
from tests.running_appliance import Running, add_account, appliance

CONNECTIONS = 16
BATCH, BATCH_CONNECTIONS = 100, 4
HONEST_RATE = 20  # requests a second
HERE = Path(__file__).parent
LOGGED_RATE = 120  # requests a second: less than the program takes, so that the rounds have the same work
IDLE_TIME, IDLE_SHARE = 1.0, 0.1  # seconds, and the share of them that an idle program uses
SETTLED = 2.0  # seconds until accepted messages are delivered and their requests are written
SWITCHED_LOG = """import signal
from appliance.intake.request_log import RequestLog
note, skip = RequestLog._note, lambda *_, **__: None
def switch(*_): RequestLog._note = note if RequestLog._note is skip else skip
signal.signal(signal.SIGUSR2, switch)
from appliance.__main__ import start
start()"""


@contextmanager
def empty_endpoint() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "empty_endpoint.py"), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the empty endpoint did not start")


def measure(
    port: int,
    authorization: str,
    seconds: float,
    rate: float = 0,
    *,
    batch: int = 0,
    connections: int = CONNECTIONS,
    door: str = "",
) -> dict[str, float]:
    """One round of load from a process of its own; as fast as it goes, unless a rate is given."""
    words = "127.0.0.1", port, connections, seconds, authorization, "--rate", rate, "--batch", batch, "--door", door
    command = [sys.executable, str(HERE / "load.py"), *map(str, words)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, float] = json.loads(output)
    return result


def measure_appliance(
    running: Running, seconds: float, rate: float = 0, *, batch: int = 0, connections: int = CONNECTIONS, door: str = ""
) -> dict[str, float]:
    """One round against an appliance; anything but an accepted message spoils it."""
    port = urlsplit(running.url).port
    assert port is not None
    key = f"Bearer {running.account.send_key}"
    result = measure(port, key, seconds, rate, batch=batch, connections=connections, door=door)
    assert list(result["statuses"]) == ["200" if door not in ("", "sendgrid") else "202"], result  # type: ignore[call-overload]  # a nested object
    return result


def show(name: str, rounds: list[dict[str, float]]) -> None:
    rate, p50, p99 = (statistics.median(each[key] for each in rounds) for key in ("rate", "p50_ms", "p99_ms"))
    print(f"{name:<34} {rate:>8.0f} /s   p50 {p50:>6.1f} ms   p99 {p99:>6.1f} ms")


def ratio(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str = "rate") -> float:
    """The median over the rounds of ours against the neighbouring one of theirs."""
    return statistics.median(mine[key] / other[key] for mine, other in zip(ours, theirs, strict=True))


def compare_batches(rounds: int, seconds: float) -> None:
    """Print the rates of single requests and of batches, and an honest account's p99 alone and beside batches."""
    with tempfile.TemporaryDirectory() as directory, appliance(Path(directory), fresh=True, credit=10**9) as running:
        honest = replace(running, account=add_account(running.data_dir, "honest"))
        results: dict[str, list[dict[str, float]]] = {
            name: [] for name in ("single requests", "batches of 100", "honest alone", "honest beside batches")
        }
        singles, batches, alone, beside = results.values()
        measure_appliance(running, 1)
        for _ in range(rounds):
            singles.append(measure_appliance(running, seconds))
            batch = measure_appliance(running, seconds, batch=BATCH, connections=BATCH_CONNECTIONS)
            batches.append(batch | {"rate": BATCH * batch["rate"]})
            time.sleep(seconds)  # the deliveries of the batches
            alone.append(measure_appliance(honest, seconds, HONEST_RATE, connections=4))
            with ThreadPoolExecutor(1) as threads:
                attack = threads.submit(measure_appliance, running, seconds + 1, batch=BATCH, connections=1)
                time.sleep(0.5)
                beside.append(measure_appliance(honest, seconds, HONEST_RATE, connections=4))
                attack.result()
            time.sleep(seconds)
    for name, figures in results.items():
        show(name, figures)
    print(f"\nratio of batches to single requests: {ratio(batches, singles):.2f} (wanted: 3)")
    p99 = statistics.median(mine["p99_ms"] / other["p99_ms"] for mine, other in zip(beside, alone, strict=True))
    print(f"ratio of the honest p99 beside batches to that alone: {p99:.2f} (wanted: at most 3)")


def compare_request_log(rounds: int, seconds: float) -> None:
    """Print the processor time of a message in one process, whose request log is switched off in every other round."""
    with (
        tempfile.TemporaryDirectory() as directory,
        appliance(Path(directory), program=(sys.executable, "-c", SWITCHED_LOG), credit=10**9) as running,
    ):
        costs: dict[bool, list[float]] = {True: [], False: []}
        logs = True
        measure_appliance(running, 2, LOGGED_RATE)
        for number in range(2 * rounds):
            if number % 4 in (1, 3):  # on, off, off, on: a slow drift meets both alike
                os.kill(running.pid, signal.SIGUSR2)
                logs = not logs
            time.sleep(SETTLED)
            before = cpu_seconds(running.pid)
            rate = measure_appliance(running, seconds, LOGGED_RATE)["rate"]
            time.sleep(SETTLED)
            costs[logs].append(1_000_000 * (cpu_seconds(running.pid) - before) / (rate * seconds))
    with_log, without = statistics.median(costs[True]), statistics.median(costs[False])
    print(
        f"processor time of a message with its delivery: {with_log:.0f} µs; without the request log: {without:.0f} µs"
    )
    print(f"ratio with the request log to without it: {with_log / without:.3f} (wanted: 1.03 at most)")


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare_door(door: str, rounds: int, seconds: float) -> None:
    """Print the rates and processor times of our own requests and of a door's, with the same content."""
    with tempfile.TemporaryDirectory() as directory, appliance(Path(directory), fresh=True, credit=10**9) as running:
        own, others = list[dict[str, float]](), list[dict[str, float]]()
        measure_appliance(running, 1)
        wait_until_idle(running.pid)
        for _ in range(rounds):
            for figures, name in ((own, ""), (others, door)):
                before = cpu_seconds(running.pid)
                figure = measure_appliance(running, seconds, door=name)
                wait_until_idle(running.pid)
                used = cpu_seconds(running.pid) - before
                figures.append(figure | {"per_second": figure["answered"] / used})
    for title, figures in (("POST /emails", own), (f"the door {door}", others)):
        show(title, figures)
        cost = statistics.median(1e6 / figure["per_second"] for figure in figures)
        print(f"{'processor time with its delivery':<34} {cost:>8.0f} µs")
    print(f"\nratio of the door to POST /emails: {ratio(others, own):.2f} (wanted: 0.8)")
    print(f"ratio in messages per second of processor time: {ratio(others, own, 'per_second'):.2f}")


def wait_until_idle(pid: int) -> None:
    """Wait until accepted messages are delivered and their requests are written."""
    deadline = time.monotonic() + 60
    before, used = 0.0, cpu_seconds(pid)
    while used - before > IDLE_SHARE * IDLE_TIME and time.monotonic() < deadline:
        time.sleep(IDLE_TIME)
        before, used = used, cpu_seconds(pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--stored", type=int, default=0, help="messages in the full database; 0: leave that part out")
    parser.add_argument("--batch", action="store_true", help="compare batches with single requests instead")
    parser.add_argument("--request-log", action="store_true", help="compare with and without the request log instead")
    parser.add_argument("--door", default="", help="compare this door with POST /emails instead")
    options = parser.parse_args()
    if options.request_log:
        compare_request_log(options.rounds, options.seconds)
        return
    if options.door:
        compare_door(options.door, options.rounds, options.seconds)
        return
    if options.batch:
        compare_batches(options.rounds, options.seconds)
        return
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as full, ExitStack() as stack:
        peer = stack.enter_context(empty_endpoint())
        ours = stack.enter_context(appliance(Path(empty), fresh=True))
        sides = {"accepted, nothing stored": ours}
        if options.stored:
            account = add_account(Path(full) / "data", "demo", credit=10**9)
            fill(Path(full) / "data", account.account_id, options.stored)
            name = f"accepted, {options.stored:,} stored"
            sides[name] = stack.enter_context(appliance(Path(full), account=account, fresh=True))
        results: dict[str, list[dict[str, float]]] = {"empty Quart-Trio endpoint": [], **{name: [] for name in sides}}
        measure(peer, "Bearer none", 1)
        for running in sides.values():
            measure_appliance(running, 1)
        for number in range(options.rounds):
            print(f"\rround {number + 1} of {options.rounds}", end="", flush=True)
            results["empty Quart-Trio endpoint"].append(measure(peer, "Bearer none", options.seconds))
            for name, running in sides.items():
                results[name].append(measure_appliance(running, options.seconds))
    print("\r", end="")
    for name, rounds in results.items():
        show(name, rounds)
    theirs, nothing, *stored = results.values()
    print(f"\nratio to the empty endpoint: {ratio(nothing, theirs):.2f} (wanted: 1.3)")
    if stored:
        print(f"ratio of full to empty:      {ratio(stored[0], nothing):.2f} (wanted: 0.95)")


if __name__ == "__main__":
    main()
