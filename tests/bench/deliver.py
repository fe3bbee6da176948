"""How fast mail goes through: HTTP in, signed, MX out, against Postfix (with OpenDKIM) doing SMTP in, SMTP out.

    .venv/bin/python -m tests.bench.deliver                     # both comparisons
    .venv/bin/python -m tests.bench.deliver --only signed       # RSA-2048 and Ed25519 against Postfix with OpenDKIM
    .venv/bin/python -m tests.bench.deliver --only plain        # Ed25519 only against plain Postfix
    .venv/bin/python -m tests.bench.deliver --backlog 1000000   # the start with a full queue: first delivery, memory
    .venv/bin/python -m tests.bench.deliver --backlog 1000000 --domains 10000
    .venv/bin/python -m tests.bench.deliver --sinking           # throughput out of 6,000 and 500,000 queued
    .venv/bin/python -m tests.bench.deliver --return-paths      # with a token in MAIL FROM, against without

Needs root and `apt-get install postfix opendkim`; starts and stops them itself, in directories and on ports of their
own. Every message is about 2 KB to one recipient, sent on 20 kept connections, and goes on in 20 sessions to Debian's
smtp-sink on loopback. What counts is the time from the first request to the last arrival at the sink. The rounds of the
two sides alternate, so that whatever else the machine does meets both. The load comes from a process of its own.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import apsw
import trio
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from appliance.store import FILE_NAME
from tests.bench.postfix import missing, postfix, wait_for
from tests.bench.queued import fill_queue
from tests.fakes.dns import DnsServer
from tests.ports import free_port
from tests.running_appliance import Provisioned, Running, add_account

LOAD = str(Path(__file__).parent / "load.py")
SESSIONS = 20
BYTES = 2_048  # of one of smtp-source's messages; ours have a little more
DOMAIN = "example.net"
WITHIN = 300.0  # seconds a round may take
CREDITS = 10**9
RSA_SLOW = 0.001  # seconds for one signature of 2,048 bits, from which on less is wanted of signed mail

CONFIG = """
[server]
hostname = "mail.example.com"
data_dir = "{data_dir}"
{server}
[smtp]
bind = ["127.0.0.1:0"]
bind_tls = ["127.0.0.1:0"]
{smtp}
[http]
bind = ["127.0.0.1:0"]
[dns]
resolvers = ["127.0.0.1:{dns_port}"]
[delivery]
mode = "direct"
mx_port = {sink_port}
allow_networks = ["127.0.0.0/8"]
[delivery.pools.default]
concurrency = {sessions}
[webhooks]
{webhooks}
[limits]
requests_per_second = 0
min_free_disk = "0"
{more}
"""

_COUNT = re.compile(rb"mesg=(\d+)")


# ---- where it goes


@dataclass
class Sink:
    """Debian's smtp-sink, and how many messages have arrived there."""

    port: int
    process: subprocess.Popen[bytes]
    arrived: int = 0
    last_at: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def watch(self) -> None:
        assert self.process.stdout is not None
        while chunk := os.read(self.process.stdout.fileno(), 65_536):
            if counts := _COUNT.findall(chunk):
                with self._changed:
                    self.arrived, self.last_at = int(counts[-1]), time.perf_counter()
                    self._changed.notify_all()

    def wait_until(self, arrived: int, within: float = WITHIN) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: self.arrived >= arrived, within):
                raise RuntimeError(f"{self.arrived} of {arrived} messages arrived")
            return self.last_at


@contextmanager
def sink() -> Iterator[Sink]:
    port = free_port()
    command = ["smtp-sink", *(["-u", "nobody"] if os.geteuid() == 0 else []), "-c", f"127.0.0.1:{port}", "1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        wait_for(port)
        made = Sink(port, process)
        threading.Thread(target=made.watch, daemon=True).start()
        yield made
    finally:
        process.kill()
        process.wait()


@contextmanager
def names(domains: int = 1) -> Iterator[int]:
    """A DNS server in a thread of its own, where every domain has one MX of its own; its port."""
    server = DnsServer({})
    for name in (DOMAIN, *(f"d{number}.{DOMAIN}" for number in range(domains))):
        # Pools go by the registered domain of the host, so hosts of different pools differ in that.
        host = f"mx.{name.replace('.', '-')}.test"
        server.zone |= {name: {"MX": [f"10 {host}."]}, host: {"A": ["127.0.0.1"]}}
    ready: list[tuple[int, trio.lowlevel.TrioToken, trio.CancelScope]] = []
    started = threading.Event()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            endpoint = await nursery.start(server.run)
            ready.append((endpoint.port, trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            started.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    started.wait(10)
    port, token, scope = ready[0]
    try:
        yield port
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()


# ---- the sides


@contextmanager
def appliance(
    sink_port: int, directory: Path, account: Provisioned | None = None, domains: int = 1, webhooks: str = ""
) -> Iterator[Running]:
    with names(domains) as dns_port:
        account = account or add_account(directory / "data", "demo", credit=CREDITS)
        with started(directory, account, dns_port, sink_port, webhooks=webhooks) as running:
            yield running


@contextmanager
def started(directory: Path, account: Provisioned, dns_port: int, sink_port: int, **sections: str) -> Iterator[Running]:
    """The real program with these lines in its configuration, killed in the end."""
    ports = {"dns_port": dns_port, "sink_port": sink_port, "sessions": SESSIONS}
    lines = {"server": "", "smtp": "", "webhooks": "", "more": ""} | sections
    data_dir, config_file = directory / "data", directory / "config.toml"
    config_file.write_text(CONFIG.format(data_dir=data_dir, **ports, **lines))
    running = Running(directory, config_file, data_dir, account, directory / "appliance.log", fresh=True)
    try:
        running.start()
        yield running
    finally:
        running.kill()


def retire_rsa(running: Running) -> None:
    """Let only the Ed25519 keys sign from now on: there is no setting for it."""
    change(running, "UPDATE dkim_keys SET retired_at = 1 WHERE algorithm = 'rsa'")


def change(running: Running, sql: str) -> None:
    connection = apsw.Connection(str(running.data_dir / FILE_NAME))
    connection.set_busy_timeout(10_000)
    connection.execute(sql)
    connection.close()
    time.sleep(2)


class Shape(NamedTuple):
    """What a message has beyond 2 KB to one recipient."""

    recipients: int = 1
    attachment: int = 0  # bytes


USUAL = Shape()


def send_over_http(running: Running, messages: int, shape: Shape = USUAL) -> float:
    """Send from a process of its own, until all are accepted; when it began, once that process was ready."""
    return began_at(start_sending(running, messages, shape=shape))


def start_sending(running: Running, messages: int, rate: float = 0, shape: Shape = USUAL) -> subprocess.Popen[bytes]:
    """The process that sends to this server, so many a second or as fast as it is answered."""
    port = urlsplit(running.url).port
    where = "127.0.0.1", port, SESSIONS, WITHIN, f"Bearer {running.account.send_key}"
    shaped = "--recipients", shape.recipients, "--attachment", shape.attachment
    words = [*where, "--each", messages // SESSIONS, "--rate", rate, *shaped]
    return subprocess.Popen([sys.executable, LOAD, *map(str, words)], stdout=subprocess.PIPE)


def began_at(sending: subprocess.Popen[bytes]) -> float:
    output, _ = sending.communicate()
    assert sending.returncode == 0
    seen = json.loads(output)
    assert list(seen["statuses"]) == ["202"], seen["statuses"]
    return float(seen["began"])


def send_over_smtp(port: int, messages: int, shape: Shape = USUAL) -> float:
    """Send with Debian's smtp-source, over kept connections, until all are accepted; when it began."""
    size = BYTES + shape.attachment * 4 // 3  # as base64
    command = ["smtp-source", "-d", "-s", str(SESSIONS), "-m", str(messages), "-l", str(size)]
    command += ["-r", str(shape.recipients)] if shape.recipients > 1 else []
    envelope = ["-f", "shop@example.com", "-t", f"ada@{DOMAIN}", f"127.0.0.1:{port}"]
    began = time.perf_counter()
    subprocess.run([*command, *envelope], check=True)
    return began


def measure(there: Sink, send: Callable[[int], float], messages: int) -> float:
    before = there.arrived
    began = send(messages)
    return messages / (there.wait_until(before + messages) - began)


# ---- the comparisons


def rsa_seconds() -> float:
    """What one signature with RSA-2048 takes this machine."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    seen = []
    for _ in range(50):
        began = time.perf_counter()
        key.sign(b"message", padding.PKCS1v15(), hashes.SHA256())
        seen.append(time.perf_counter() - began)
    return statistics.median(seen)


def wanted_of_signed(took: float) -> float:
    """The ratio to Postfix with OpenDKIM: where signing is most of the work, both do the same work."""
    return 4.0 if took < RSA_SLOW else 2.0


def compare(name: str, *, signed: bool, rounds: int, messages: int, wanted: float) -> None:
    ours_name = "appliance, RSA-2048 and Ed25519" if signed else "appliance, Ed25519 only"
    peer_name = "Postfix with OpenDKIM, RSA-2048" if signed else "Postfix, unsigned"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        our_sink, their_sink = stack.enter_context(sink()), stack.enter_context(sink())
        running = stack.enter_context(appliance(our_sink.port, directory))
        peer = stack.enter_context(postfix(their_sink.port, sessions=SESSIONS, signed=signed))
        sides = {
            ours_name: partial(measure, our_sink, partial(send_over_http, running)),
            peer_name: partial(measure, their_sink, partial(send_over_smtp, peer)),
        }
        for side in sides.values():
            side(SESSIONS * 5)
        if not signed:
            retire_rsa(running)
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(rounds):
            print(f"\r{name}: round {number + 1} of {rounds}", end="", flush=True)
            for each, run in sides.items():
                rates[each].append(run(messages))
        assert running.complaints() == [], running.complaints()[:3]
    print("\r", end="")
    for each, seen in rates.items():
        spread = f"{min(seen):,.0f} to {max(seen):,.0f}"
        print(f"{each:<34}{statistics.median(seen):>8,.0f} messages/s  ({spread})")
    ours, theirs = (statistics.median(seen) for seen in rates.values())
    print(f"ratio: {ours / theirs:.2f} (wanted: {wanted})\n")


def start_with_a_backlog(queued: int, domains: int) -> None:
    """How long the first delivery takes after a start, and how much memory the server has after a minute of it."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        there = stack.enter_context(sink())
        account = add_account(directory / "data", "demo", credit=CREDITS)
        fill_queue(directory / "data", account.account_id, queued, DOMAIN, domains=domains)
        began = time.perf_counter()
        running = stack.enter_context(appliance(there.port, directory, account, domains))
        up = time.perf_counter() - began
        first = there.wait_until(1) - began
        most = 0
        for _ in range(60):
            time.sleep(0.5)
            most = max(most, resident(running))
        rate = there.arrived / (time.perf_counter() - began)
    print(f"with {queued:,} queued for {domains:,} domains: ready after {up:.1f} s,")
    print(f"first delivery after {first:.1f} s (wanted: < 10),")
    print(f"most memory in half a minute {most / 2**20:.0f} MB (wanted: < 250), {rate:,.0f} messages/s meanwhile\n")


def throughput_by_backlog(messages: int, rounds: int) -> None:
    """Deliveries a second out of a short queue and a long one, as many of each; both sign with Ed25519 and RSA."""
    rates: dict[int, list[float]] = {2 * messages: [], 500_000: []}
    with ExitStack() as stack:
        there = stack.enter_context(sink())
        for _ in range(rounds):
            for queued, seen in rates.items():
                with tempfile.TemporaryDirectory() as made:
                    seen.append(drain(there, Path(made), queued, messages))
    few, many = (statistics.median(seen) for seen in rates.values())
    for queued, seen in rates.items():
        print(f"out of {queued:>8,} queued: {statistics.median(seen):,.0f} messages/s")
    print(f"ratio: {many / few:.2f} (wanted: 0.95)\n")


def with_and_without_return_paths(rounds: int, messages: int) -> None:
    """Deliveries a second of one server with a return path in use, and without; signed with Ed25519 only."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    seconds: dict[bool, list[float]] = {False: [], True: []}  # of the processor, for a thousand messages
    with ExitStack() as stack:
        directory, there = Path(stack.enter_context(tempfile.TemporaryDirectory())), stack.enter_context(sink())
        account = add_account(directory / "data", "demo", credit=CREDITS)
        inbound = f'[inbound]\nbind = ["127.0.0.1:{free_port()}"]'
        running = stack.enter_context(
            started(directory, account, stack.enter_context(names(1)), there.port, more=inbound)
        )
        send = partial(send_over_http, running)
        measure(there, send, SESSIONS * 5)
        retire_rsa(running)
        for number in range(rounds):
            print(f"\rround {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", end="", flush=True)
            for used in (False, True) if number % 2 else (True, False):
                change(running, f"UPDATE domains SET return_path_at = {'1' if used else 'NULL'}")
                before = processor_seconds(running)
                rates[used].append(measure(there, send, messages))
                seconds[used].append((processor_seconds(running) - before) / messages * 1_000)
        time.sleep(1)  # lines of the log come after what they tell
        assert running.log_file.read_bytes().count(b'"mail_from"') == rounds * messages
    print("\r", end="")
    for used, seen in rates.items():
        name = "with return paths" if used else "without return paths"
        spread = f"{min(seen):,.0f} to {max(seen):,.0f}"
        used_seconds = f"{statistics.median(seconds[used]):.3f} ms of the processor each"
        print(f"{name:<34}{statistics.median(seen):>8,.0f} messages/s  ({spread}), {used_seconds}")
    pairs = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    costs = [on / off for on, off in zip(seconds[True], seconds[False], strict=True)]
    print(f"ratio: {statistics.median(pairs):.3f}, the median of {rounds} pairs (wanted: 0.97);", end=" ")
    print(f"of the processor's time: {statistics.median(costs):.3f} (wanted: 1.03)\n")


def drain(there: Sink, directory: Path, queued: int, messages: int) -> float:
    """Messages a second from the first arrival to the last of so many."""
    account = add_account(directory / "data", "demo", credit=CREDITS)
    fill_queue(directory / "data", account.account_id, queued)
    os.sync()  # else the system writes out what was filled meanwhile, and the first checkpoint waits for it
    before = there.arrived
    with appliance(there.port, directory, account):
        warm = before + messages // 10  # keys are made, connections open
        began = there.wait_until(warm)
        warm = there.arrived
        return (before + messages - warm) / (there.wait_until(before + messages) - began)


def processor_seconds(running: Running) -> float:
    """The processor's time that the server has used; unlike the rate it hardly depends on what else runs."""
    assert running.process is not None
    words = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident(running: Running) -> int:
    assert running.process is not None
    pages = int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=3_000, help="in one round, a multiple of 20")
    parser.add_argument("--only", choices=["signed", "plain"])
    parser.add_argument("--backlog", type=int, default=0, help="measure the start with so many queued")
    parser.add_argument("--domains", type=int, default=1, help="for so many domains, each in a pool of its own")
    parser.add_argument("--sinking", action="store_true", help="measure throughput out of long queues")
    parser.add_argument("--return-paths", action="store_true", help="measure what return paths cost")
    options = parser.parse_args()
    if options.return_paths:
        with_and_without_return_paths(options.rounds, options.messages)
        return
    if missing() or os.geteuid() != 0:
        sys.exit(f"needs root and Debian's postfix and opendkim; not found: {json.dumps(missing())}")
    shared = {"rounds": options.rounds, "messages": options.messages}
    if options.backlog:
        start_with_a_backlog(options.backlog, options.domains)
    if options.sinking:
        throughput_by_backlog(options.messages, options.rounds)
    if options.backlog or options.sinking:
        return
    if options.only != "plain":
        compare("signed", signed=True, wanted=wanted_of_signed(rsa_seconds()), **shared)
    if options.only != "signed":
        compare("plain", signed=False, wanted=2.0, **shared)


if __name__ == "__main__":
    main()
