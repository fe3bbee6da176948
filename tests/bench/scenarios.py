"""What `sh packaging/bench` measures: each scenario alternates rounds of ours and of a peer, and adds its figures.

A scenario is a function of an `Effort` and a `Run`. How it is measured stands in the module that it takes the sides
from: accept, deliver, submit, webhooks, databases, honest_client, slow_servers.
"""

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench import (
    accept,
    databases,
    deliver,
    honest_client,
    scheduled,
    slow_servers,
    stages,
    streams,
    submit,
    webhooks,
)
from tests.bench.attacker import ATTACKS
from tests.bench.figures import Curve, Figure, Run, compared
from tests.bench.postfix import postfix
from tests.bench.posts import fill_posts
from tests.bench.queued import fill_queue
from tests.bench.stored import fill
from tests.e2e.feedback.feedback import LISTENS
from tests.e2e.submission.client import endpoint
from tests.programs import find
from tests.running_appliance import Running, add_account, appliance

CREDITS = deliver.CREDITS
SESSIONS = deliver.SESSIONS


class Missing(Exception):
    """What a scenario needs is not on this machine; the text says how it gets there."""


@dataclass(frozen=True)
class Effort:
    rounds: int
    seconds: float  # of a round of load
    messages: int  # of a round that sends a number, a multiple of 60
    million: int  # messages in a large database
    attacks: int  # of those there are
    easy_seconds: float = databases.EASED_SECONDS  # of a round at an easy load
    takeover: bool = True  # which alone takes 20 seconds

    @classmethod
    def whole(cls) -> "Effort":
        return cls(5, 5.0, 3_000, 1_000_000, len(ATTACKS))

    @classmethod
    def quick(cls) -> "Effort":
        return cls(1, 1.0, 300, 6_000, 1, 1.0, takeover=False)


Progress = Callable[[str], None]


def needs(*programs: str) -> None:
    """Raise Missing unless all of these are there, and may be started."""
    lacking = [name for name in programs if (find(name) if name == "postgresql" else shutil.which(name)) is None]
    if lacking:
        raise Missing(f"{', '.join(lacking)} not found: sh packaging/install-test-programs")
    if "postfix" in programs and os.geteuid() != 0:
        raise Missing("Postfix is started by root only")


# ---- accepting


def accepting(effort: Effort, run: Run, told: Progress) -> None:
    """HTTP accept against an empty endpoint, and its latency at half of that rate against a sync of the disk."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        peer = stack.enter_context(accept.empty_endpoint())
        ours = stack.enter_context(appliance(Path(directory), fresh=True, credit=CREDITS))
        run.figures.append(Figure("memory, idle", "MB", deliver.resident(ours) / 2**20, 110))
        accept.measure(peer, "Bearer none", 1)
        accept.measure_appliance(ours, 1)
        mine, theirs = list[float](), list[float]()
        for number in range(effort.rounds):
            told(f"round {number + 1} of {effort.rounds}")
            theirs.append(accept.measure(peer, "Bearer none", effort.seconds)["rate"])
            mine.append(accept.measure_appliance(ours, effort.seconds)["rate"])
        run.figures.append(
            compared("HTTP accept, durable", "messages/s", mine, theirs, "empty endpoint on hypercorn", 1.3)
        )
        half = statistics.median(mine) / 2
        told(f"latency at {half:.0f} a second")
        submit.settle()
        late = _late(effort.seconds)
        synced = [1_000 * _sync(Path(directory))]
        seen = accept.measure_appliance(ours, 2 * effort.seconds, half)
        synced.append(1_000 * _sync(Path(directory)))
        disk = statistics.mean(synced)
        name, note = "accept latency p99 at half load", f"idle, this machine wakes a thread up to {late:.2g} ms late"
        run.figures.append(Figure(name, "ms", seen["p99_ms"], 10, disk, "one sync of the disk", note=note))
        run.curves["Latency of an accept at half load"] = [
            Curve("POST /emails", [(float(share), ms) for share, ms in seen["percentiles_ms"]])  # type: ignore[attr-defined]
        ]


def _sync(directory: Path) -> float:
    """Seconds that the disk takes to sync a small append: the median of many."""
    seen = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(100):
            file.write(b"x" * 4_096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            seen.append(time.perf_counter() - began)
    return statistics.median(seen)


def _late(seconds: float) -> float:
    """The most milliseconds that a thread slept longer than it had asked for: what a latency here cannot be below."""
    until, most = time.perf_counter() + seconds, 0.0
    while (began := time.perf_counter()) < until:
        time.sleep(0.001)
        most = max(most, time.perf_counter() - began - 0.001)
    return 1_000 * most


def stored(effort: Effort, run: Run, told: Progress) -> None:
    """Accepting into a database with a million messages against into an empty one."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as full, ExitStack() as stack:
        account = add_account(Path(full) / "data", "demo", credit=CREDITS)
        told(f"storing {effort.million:,}")
        fill(Path(full) / "data", account.account_id, effort.million)
        few = stack.enter_context(appliance(Path(empty), fresh=True, credit=CREDITS))
        many = stack.enter_context(appliance(Path(full), account=account, fresh=True))
        sides: dict[bool, list[float]] = {True: [], False: []}
        for running in (few, many):
            accept.measure_appliance(running, min(2, effort.seconds))
        for number in range(effort.rounds):
            told(f"round {number + 1} of {effort.rounds}")
            for is_full in (False, True) if number % 2 else (True, False):
                sides[is_full].append(accept.measure_appliance(many if is_full else few, effort.seconds)["rate"])
        name = f"accept with {effort.million:,} stored"
        run.figures.append(compared(name, "messages/s", sides[True], sides[False], "with none", 0.95))


# ---- from the client to the mail server


@contextmanager
def _delivering(directory: Path, **sections: str) -> Iterator[tuple[Running, deliver.Sink]]:
    with deliver.sink() as there, deliver.names(1) as dns_port:
        account = add_account(directory / "data", "demo", credit=CREDITS)
        with deliver.started(directory, account, dns_port, there.port, **sections) as running:
            yield running, there


def _turns(
    effort: Effort, told: Progress, ours: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float]]:
    mine, other = list[float](), list[float]()
    for number in range(effort.rounds):
        told(f"round {number + 1} of {effort.rounds}")
        mine.append(ours())
        other.append(theirs())
    return mine, other


def delivered_signed(effort: Effort, run: Run, told: Progress) -> None:
    """HTTP to MX with both signatures, against Postfix with OpenDKIM, and memory meanwhile."""
    needs("postfix", "smtp-sink", "smtp-source", "opendkim")
    rsa = deliver.rsa_seconds()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        running, there = stack.enter_context(_delivering(Path(directory)))
        their_sink = stack.enter_context(deliver.sink())
        peer = stack.enter_context(postfix(their_sink.port, sessions=SESSIONS, signed=True))
        send = partial(deliver.send_over_http, running)
        deliver.measure(there, send, SESSIONS * 5)
        deliver.measure(their_sink, partial(deliver.send_over_smtp, peer), SESSIONS * 5)
        with _memory_over_time(running) as memory:
            mine, theirs = _turns(
                effort,
                told,
                lambda: deliver.measure(there, send, effort.messages),
                lambda: deliver.measure(their_sink, partial(deliver.send_over_smtp, peer), effort.messages),
            )
    wanted = deliver.wanted_of_signed(rsa)
    name = "HTTP to MX, RSA-2048 and Ed25519"
    note = f"an RSA signature takes {1_000 * rsa:.2f} ms here"
    run.figures.append(compared(name, "messages/s", mine, theirs, "Postfix with OpenDKIM", wanted, note=note))
    run.curves["Memory while mail goes through"] = [Curve("resident", memory)]


def by_stage(effort: Effort, run: Run, told: Progress) -> None:
    """What each stage of the same mail costs, with a receiver of its events."""
    needs("smtp-sink")
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        directory = Path(made)
        events = stack.enter_context(webhooks.receiver(directory))
        there, dns_port = stack.enter_context(deliver.sink()), stack.enter_context(deliver.names(1))
        account = add_account(directory / "data", "demo", credit=CREDITS)
        fill_posts(directory / "data", account.account_id, events.url, 1)
        settings = events.settings()
        running = stack.enter_context(deliver.started(directory, account, dns_port, there.port, webhooks=settings))
        send = partial(deliver.send_over_http, running)
        deliver.measure(there, send, SESSIONS * 5)
        posted = events.wait_until(SESSIONS * 5)[0] + effort.messages
        told("sampling")
        try:
            run.stages = stages.costs(running, there, send, effort.messages, lambda: events.wait_until(posted))
        except stages.NotSampled as error:
            raise Missing(str(error)) from error


@contextmanager
def _memory_over_time(running: Running) -> Iterator[list[tuple[float, float]]]:
    points: list[tuple[float, float]] = []
    began, over = time.monotonic(), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            points.append((time.monotonic() - began, deliver.resident(running) / 2**20))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield points
    finally:
        over.set()
        thread.join()


def delivered_plain(effort: Effort, run: Run, told: Progress) -> None:
    """HTTP to MX with Ed25519 only, against a Postfix that signs nothing."""
    needs("postfix", "smtp-sink", "smtp-source")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        running, there = stack.enter_context(_delivering(Path(directory)))
        their_sink = stack.enter_context(deliver.sink())
        peer = stack.enter_context(postfix(their_sink.port, sessions=SESSIONS, signed=False))
        send, their_send = partial(deliver.send_over_http, running), partial(deliver.send_over_smtp, peer)
        deliver.measure(there, send, SESSIONS * 5)
        deliver.retire_rsa(running)
        for name, shape, wanted in (
            ("HTTP to MX, Ed25519 only", deliver.USUAL, 2.0),
            ("50 recipients a message, Ed25519 only", deliver.Shape(recipients=50), 2.0),
            ("attachments of 1 MB, Ed25519 only", deliver.Shape(attachment=2**20), 1.0),
        ):
            count = max(SESSIONS, effort.messages // (1 if shape == deliver.USUAL else 20) // SESSIONS * SESSIONS)
            deliver.measure(there, partial(send, shape=shape), SESSIONS)
            mine, theirs = _turns(
                effort,
                partial(_named, told, name),
                lambda shape=shape, count=count: deliver.measure(there, partial(send, shape=shape), count),  # type: ignore[misc]
                lambda shape=shape, count=count: deliver.measure(  # type: ignore[misc]
                    their_sink, partial(their_send, shape=shape), count
                ),
            )
            run.figures.append(compared(name, "messages/s", mine, theirs, "Postfix, unsigned", wanted))


def _named(told: Progress, name: str, text: str) -> None:
    told(f"{name}: {text}")


def submitted(effort: Effort, run: Run, told: Progress) -> None:
    """SMTP submission to MX over kept connections, against Postfix; both from the same load."""
    needs("postfix", "smtp-sink")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        running, there = stack.enter_context(_delivering(Path(directory), smtp="allow_plaintext_auth = true"))
        their_sink = stack.enter_context(deliver.sink())
        peer = stack.enter_context(postfix(their_sink.port, sessions=SESSIONS, signed=False))
        deliver.measure(there, partial(deliver.send_over_http, running), SESSIONS * 5)
        deliver.retire_rsa(running)
        login = (running.account.username, running.account.password)

        mine, theirs = _turns(
            effort,
            told,
            lambda: submitted_rate(there, endpoint(running)[1], effort.seconds, *login),
            lambda: submitted_rate(their_sink, peer, effort.seconds),
        )
        name = "submission to MX, kept connections, Ed25519 only"
        run.figures.append(compared(name, "messages/s", mine, theirs, "Postfix, unsigned", 1.5))


def submitted_rate(there: deliver.Sink, port: int, seconds: float, *login: str) -> float:
    """Messages a second from the beginning of the load, once the machine is quiet, to the last arrival."""
    before = there.arrived
    seen = submit.measure(port, "kept", seconds, *login)
    return seen["answered"] / (there.wait_until(before + int(seen["answered"])) - seen["began"])


# ---- long queues


def queued(effort: Effort, run: Run, told: Progress) -> None:
    """Deliveries a second out of queues of several lengths, and memory with a million."""
    needs("smtp-sink")
    shortest = 2 * effort.messages  # of which as many are delivered as of the longest
    lengths = sorted({max(shortest, effort.million // part) for part in (1_000, 100, 10, 2)})
    rates: dict[int, list[float]] = {length: [] for length in lengths}
    with deliver.sink() as there:
        for number in range(max(1, effort.rounds // 2)):
            for length in lengths:
                told(f"round {number + 1}, out of {length:,}")
                with tempfile.TemporaryDirectory() as made:
                    rates[length].append(deliver.drain(there, Path(made), length, effort.messages))
    name = f"delivering out of {lengths[-1]:,} queued"
    run.figures.append(compared(name, "messages/s", rates[lengths[-1]], rates[shortest], f"out of {shortest:,}", 0.95))
    medians = [(float(length), statistics.median(seen)) for length, seen in rates.items()]
    run.curves["Throughput against backlog"] = [Curve("deliveries a second", medians)]
    told(f"memory with {effort.million:,} queued")
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        account = add_account(Path(directory) / "data", "demo", credit=CREDITS)
        fill_queue(Path(directory) / "data", account.account_id, effort.million, deliver.DOMAIN, domains=100)
        there = stack.enter_context(deliver.sink())
        running = stack.enter_context(deliver.appliance(there.port, Path(directory), account, 100))
        most = 0
        for _ in range(int(6 * effort.seconds)):
            time.sleep(0.5)
            most = max(most, deliver.resident(running))
    run.figures.append(Figure(f"memory, {effort.million:,} queued", "MB", most / 2**20, 250))


# ---- events, databases, attacks


def posts(effort: Effort, run: Run, told: Progress) -> None:
    mine, theirs = list[float](), list[float]()
    count = max(400, effort.messages)
    with tempfile.TemporaryDirectory() as made, webhooks.receiver(Path(made)) as there:
        for number in range(effort.rounds):
            told(f"round {number + 1} of {effort.rounds}")
            with tempfile.TemporaryDirectory() as directory:
                mine.append(webhooks.our_posts(there, Path(directory), count))
            theirs.append(webhooks.their_posts(there, count // 4))
    run.figures.append(compared("webhooks", "posts/s", mine, theirs, "httpx on Trio", 2.0))


def shared_databases(effort: Effort, run: Run, told: Progress) -> None:
    """One, two and three nodes on PostgreSQL against the embedded database."""
    needs("postgresql", "smtp-sink")
    found = databases.figures(effort.rounds, effort.messages, told, effort.easy_seconds, with_takeover=effort.takeover)
    run.figures += found


def attacked(effort: Effort, run: Run, told: Progress) -> None:
    """The honest client's p99 during each attack, relative to its p99 alone."""
    with (
        tempfile.TemporaryDirectory() as directory,
        appliance(Path(directory), credit=10**9, fresh=True, retention=LISTENS) as running,
    ):
        account = add_account(running.data_dir, "honest", credit=10**9)
        honest_client.receive(running)
        honest_client.honest(running, account, min(3, effort.seconds))
        for number, name in enumerate(list(ATTACKS)[: effort.attacks]):
            told(f"{number + 1} of {effort.attacks}: {name}")
            alone, served = list[float](), list[float]()
            for _ in range(effort.rounds):
                seen = honest_client.honest(running, account, effort.seconds)
                with honest_client.attacked(name, running, running.account):
                    busy = honest_client.honest(running, account, effort.seconds)
                assert seen is not None
                alone.append(seen["p99_ms"])
                served.append(busy["p99_ms"] if busy else float("inf"))
            run.figures.append(
                compared(
                    f"honest p99 under attack: {name}",
                    "ms",
                    served,
                    alone,
                    "alone",
                    honest_client.WANTED,
                    at_least=False,
                )
            )


def slowed(effort: Effort, run: Run, told: Progress) -> None:
    """The p99 of mail to healthy servers beside slow ones of the same account."""
    run.figures += slow_servers.figures(max(20, effort.messages // 30), told)


def due_later(effort: Effort, run: Run, told: Progress) -> None:
    """What scheduled messages cost other mail before they are due, and when a tenth of them is due at once."""
    needs("smtp-sink")
    told(f"{effort.million // 10:,} due at once")
    run.figures += scheduled.at_once_figures(effort.million // 10)
    told(f"{effort.million:,} due later")
    run.figures += scheduled.later_figures(effort.million, effort.rounds, effort.messages)


def beside_broadcast(effort: Effort, run: Run, told: Progress) -> None:
    """What a newsletter costs login codes to the same provider."""
    needs("smtp-sink")
    recipients = effort.million // 5
    told(f"{recipients:,} broadcast recipients")
    run.figures += streams.figures(recipients, 4 * effort.seconds, 2 * effort.messages)


SCENARIOS: dict[str, Callable[[Effort, Run, Progress], None]] = {
    "accept": accepting,
    "signed": delivered_signed,
    "stages": by_stage,
    "plain": delivered_plain,
    "submit": submitted,
    "webhooks": posts,
    "queued": queued,
    "stored": stored,
    "nodes": shared_databases,
    "attacks": attacked,
    "slow": slowed,
    "scheduled": due_later,
    "streams": beside_broadcast,
}
