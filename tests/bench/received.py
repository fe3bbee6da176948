"""What receiving costs: 200 messages a second alone, deliveries beside them, and the honest client beside a flood.

    .venv/bin/python -m tests.bench.received --only alone      # received messages and their events
    .venv/bin/python -m tests.bench.received --only steady     # 200 deliveries a second
    .venv/bin/python -m tests.bench.received --only most       # as many deliveries as possible
    .venv/bin/python -m tests.bench.received --only flood      # honest p99 beside a flood from one network

Messages of 2 KB arrive on kept connections from twenty addresses, and an HTTPS receiver gets their events. They count
once they are stored with their event. Needs root and Debian's smtp-sink. Rounds with and without received mail
alternate. The clients, the sink, the receiver and the DNS run on the same machine.
"""

import argparse
import json
import smtplib
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

from tests import engines
from tests.bench import webhooks
from tests.bench.attacker import RECEIVING
from tests.bench.deliver import (
    CREDITS,
    Sink,
    began_at,
    names,
    processor_seconds,
    retire_rsa,
    sink,
    start_sending,
    started,
)
from tests.bench.honest_client import WANTED, attacked, honest, receive, show
from tests.bench.smtp_load import MESSAGE
from tests.running_appliance import Running, add_account, command

SOURCES = 20  # client networks, each within its rate of 20 messages a second
CONNECTIONS = 4  # of each; a client without PIPELINING waits four times for a message
RATE = 200  # messages a second
LOSS = 0.1  # of deliveries, at most


def arrive(host: str, port: int, number: int, rate: float, ended: Event) -> Iterator[int]:
    """Send to the receiving domain from one address, so many a second; yield 1 for a message that was accepted."""
    with smtplib.SMTP(
        host, port, local_hostname="mx.example.net", source_address=(f"127.0.1.{number + 1}", 0)
    ) as client:
        due = time.monotonic()
        while not ended.is_set():
            with suppress(
                smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused
            ):  # refused for now: it counts less
                client.sendmail("ada@example.net", [f"support{number}@{RECEIVING}"], MESSAGE.removesuffix(b".\r\n"))
                yield 1
            due = max(due + 1 / rate, time.monotonic() - 1)
            ended.wait(max(0.0, due - time.monotonic()))


class Arrivals:
    accepted = 0


@contextmanager
def arriving(running: Running, rate: float = RATE) -> Iterator[Arrivals]:
    """Received mail from a process of its own, meanwhile; how much was accepted in the end."""
    parts, arrivals = urlsplit(running.inbound[0]), Arrivals()
    target = ["--send", f"{parts.hostname}:{parts.port}", "--rate", str(rate)]
    words = [sys.executable, "-m", "tests.bench.received", *target]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "sending\n"
        try:
            yield arrivals
        finally:
            process.stdin.close()
            arrivals.accepted = int(process.stdout.readline())
            process.wait()


def send(target: str, rate: float) -> None:
    host, _, port = target.rpartition(":")
    ended, accepted, sessions = Event(), Counter[int](), SOURCES * CONNECTIONS

    def arrive_from(number: int) -> None:
        accepted[number] = sum(arrive(host, int(port), number % SOURCES, rate / sessions, ended))

    threads = [Thread(target=arrive_from, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    print("sending", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    print(accepted.total(), flush=True)


def stored(running: Running) -> int:
    """Messages that are stored with their event."""
    ((count,),) = engines.rows(
        running.data_dir,
        "SELECT count(*) FROM received_messages r JOIN webhook_deliveries d ON d.message_id = r.id",
    )
    return int(count)


@contextmanager
def server(there: Sink, directory: Path) -> Iterator[Running]:
    with names() as dns_port, webhooks.receiver(directory) as hooks:
        account = add_account(directory / "data", "demo", credit=CREDITS)
        inbound = '[inbound]\nbind = ["127.0.0.1:0"]'
        with started(directory, account, dns_port, there.port, more=inbound, webhooks=hooks.settings()) as running:
            receive(running)
            command(running.config_file, "webhook", "set", "demo", hooks.url, "--event", "received")
            yield running


def alone(rounds: int, seconds: float) -> None:
    """So many received messages a second, without deliveries."""
    with tempfile.TemporaryDirectory() as directory, sink() as there, server(there, Path(directory)) as running:
        for number in range(rounds + 1):
            before = stored(running)
            with arriving(running) as arrivals:
                time.sleep(2)
                had, used, began = stored(running), processor_seconds(running), time.perf_counter()
                time.sleep(seconds)
                took, now = time.perf_counter() - began, stored(running)
                spent = (processor_seconds(running) - used) / max(now - had, 1)
            if number:  # the first is a warm-up
                print(
                    f"alone: {(now - had) / took:,.0f} stored with their event/s, {spent * 1e3:.2f} ms of the"
                    f" processor each; {arrivals.accepted} accepted in all",
                    flush=True,
                )
            while stored(running) < before + arrivals.accepted:
                time.sleep(0.1)


def measure(running: Running, there: Sink, messages: int, rate: float) -> tuple[float, float, float]:
    """Deliveries a second, stored messages a second, and seconds of the processor for each delivery."""
    before, had, used = there.arrived, stored(running), processor_seconds(running)
    began = began_at(start_sending(running, messages, rate))
    took = there.wait_until(before + messages) - began
    return messages / took, (stored(running) - had) / took, (processor_seconds(running) - used) / messages


def compare(rounds: int, messages: int, rate: float) -> None:
    rows: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        there = stack.enter_context(sink())
        running = stack.enter_context(server(there, directory))
        measure(running, there, 200, 0)
        retire_rsa(running)
        for number in range(rounds):
            for beside in (False, True) if number % 2 else (True, False):
                with ExitStack() as meanwhile:
                    if beside:
                        meanwhile.enter_context(arriving(running))
                        time.sleep(2)
                    rows[beside].append(measure(running, there, messages, rate))
    alone, busy = ([statistics.median(column) for column in zip(*rows[side], strict=True)] for side in (False, True))
    print(
        f"{'as many as possible' if not rate else f'{rate:g} sent a second'}: {alone[0]:,.0f} deliveries/s alone,"
        f" {busy[0]:,.0f} beside {busy[1]:,.0f} received/s, ratio {busy[0] / alone[0]:.2f} (wanted: {1 - LOSS})",
        flush=True,
    )
    spent = (busy[2] - alone[2]) * busy[0] / max(busy[1], 1)
    print(f"processor: {alone[2] * 1e3:.2f} ms a delivery, about {spent * 1e3:.2f} ms a received message", flush=True)


def flood(rounds: int, seconds: float) -> None:
    """The honest client of `honest_client.py` beside a flood from one network, which is refused by its rate."""
    with (
        tempfile.TemporaryDirectory() as directory,
        sink() as there,
        server(there, Path(directory)) as running,
    ):
        account = add_account(running.data_dir, "honest", credit=10**9)
        honest(running, account, 3)
        alone, beside = [], []
        for _ in range(rounds):
            quiet = honest(running, account, seconds)
            assert quiet is not None
            alone.append(quiet)
            with attacked("mail to one receiving address", running, account):
                beside.append(honest(running, account, seconds))
        ratio = show("mail to one receiving address", 20, alone, beside)
        print(json.dumps({"ratio": round(ratio, 2), "wanted": WANTED, "stored": stored(running)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("alone", "steady", "most", "flood"), default="")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--messages", type=int, default=4_000, help="delivered in a round, of as many as possible")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a round of the others")
    parser.add_argument("--send", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=RATE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send(options.send, options.rate)
        return
    if options.only in ("", "alone"):
        alone(options.rounds, options.seconds)
    if options.only in ("", "steady"):
        compare(options.rounds, int(options.seconds) * RATE, RATE)
    if options.only in ("", "most"):
        compare(options.rounds, options.messages, 0)
    if options.only in ("", "flood"):
        flood(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
