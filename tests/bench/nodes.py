"""Three nodes behind a plain TCP proxy, under load, while faults befall them, their clocks and their database.

By hand:
    python -m tests.bench.nodes             # some of each, a few minutes
    python -m tests.bench.nodes --full      # 200 kills, 50 cuts, 100 crashes of the database; about half an hour

After each fault the load rests until everything is final, and everything is checked (tests/e2e/nodes/observer.py). One
table is printed at the end. Exit code 0: all faults were made, and nothing was wrong; 1: something was; 3: nothing was,
but `--minutes` were over before the last fault, and `--skip` goes on there.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import cluster
from tests.e2e.nodes.observer import Observer, observed
from tests.fakes.webhook_server import Hooks, hooks
from tests.ports import free_port
from tests.postgresql_server import USER, PostgresServer, postgresql
from tests.set_clock import set_clock
from tests.store.postgresql.proxy import Cut, Proxy, proxy

NAMES = ("a", "b", "c")
FULL = {"kills": 200, "cuts": 50, "restarts": 100, "suspensions": 2, "clocks": 2}
SOME = {"kills": 6, "cuts": 8, "restarts": 4, "suspensions": 1, "clocks": 1}
LEASE_OVER = 14.0  # seconds after which others have taken over
EACH_TAKEN_OVER = 20  # of so many kills, one leaves the node down until then
SUSPENDED = 30.0  # seconds
HALF_MINUTE, MINUTE = 29, 60  # seconds; a node whose clock is 30 or more away from the database's delivers nothing
UP_WITHIN = 60.0  # seconds until all nodes run again

Fault = tuple[str, Callable[[], Awaitable[None]]]


# ---- faults


@dataclass
class Trial:
    """The nodes with all that is around them."""

    observer: Observer
    server: PostgresServer
    between: Proxy  # before all nodes but the last
    before_last: Proxy
    clocks: dict[str, Path]
    choose: random.Random
    ended: int = 0  # nodes, by themselves
    _down: set[str] = field(default_factory=set)  # nodes that are not started again for now

    async def supervise(self) -> None:
        while True:
            for name, node in self.observer.made.nodes.items():
                if name not in self._down and not node.is_alive():
                    self.ended += 1
                    with suppress(RuntimeError):  # the database is away: once more
                        await trio.to_thread.run_sync(node.start)
            await trio.sleep(0.2)

    async def all_up(self) -> None:
        """Wait until every node runs and listens. Raises trio.TooSlowError."""
        with trio.fail_after(UP_WITHIN):
            for name in NAMES:
                while True:
                    with suppress(httpx.HTTPError):
                        if (await self.observer.made.request(name, "GET", "/healthz")).status_code == 200:
                            break
                    await trio.sleep(0.1)

    def plan(self, wanted: argparse.Namespace) -> list[Fault]:
        both = (self.between, self.before_last)
        cuts: list[Fault] = [
            ("lost after COMMIT", partial(self.cut, Cut.AFTER)),
            ("reset", self.reset),
            ("silent 4 s", partial(self.blackhole, 4, *both)),
            ("one silent 20 s", partial(self.blackhole, 20, self.before_last)),
            ("answer swallowed", partial(self.cut, Cut.SWALLOW)),
            ("silent 16 s", partial(self.blackhole, 16, *both)),
            ("slow", self.delay),
            ("lost before COMMIT", partial(self.cut, Cut.BEFORE)),
        ]
        clocks: list[Fault] = [("clocks apart", self.clocks_apart), ("clock a minute off", self.clock_off)]
        plan: list[Fault] = [
            ("kill", self.kill) if number % EACH_TAKEN_OVER else ("kill, 14 s down", partial(self.kill, LEASE_OVER))
            for number in range(wanted.kills)
        ]
        plan += [cuts[number % len(cuts)] for number in range(wanted.cuts)]
        plan += [("restart", self.restart)] * wanted.restarts
        plan += [("suspended 30 s", self.suspend)] * wanted.suspensions
        plan += [clocks[number % len(clocks)] for number in range(wanted.clocks)]
        random.Random(wanted.seed).shuffle(plan)
        return plan

    async def kill(self, down: float = 0.0, name: str = "") -> None:
        """`kill -9`; started again at once, or when others have taken over."""
        name = name or self.choose.choice(NAMES)
        self._down.add(name)
        try:
            node = self.observer.made.nodes[name]
            self.observer.note()
            node.kill()
            await trio.sleep(down)
            await trio.to_thread.run_sync(node.start)
        finally:
            self._down.discard(name)

    async def suspend(self) -> None:
        process = self.observer.made.nodes[self.choose.choice(NAMES)].process
        assert process is not None
        self.observer.note()
        process.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(SUSPENDED)
        finally:
            process.send_signal(signal.SIGCONT)

    async def clocks_apart(self) -> None:
        """Two clocks a minute apart, while one of the two nodes is lost; then they are right again."""
        late, early = self.choose.sample(NAMES, 2)
        set_clock(self.clocks[late], -HALF_MINUTE)
        set_clock(self.clocks[early], HALF_MINUTE)
        await trio.sleep(4)
        await self.kill(LEASE_OVER, self.choose.choice((late, early)))
        await trio.sleep(4)
        set_clock(self.clocks[late], 0)
        set_clock(self.clocks[early], 0)

    async def clock_off(self) -> None:
        clock = self.clocks[self.choose.choice(NAMES)]
        set_clock(clock, self.choose.choice((-MINUTE, MINUTE)))
        await trio.sleep(6)
        set_clock(clock, 0)

    async def delay(self) -> None:
        self.between.delay = 0.03
        await trio.sleep(4)
        self.between.delay = 0.0

    async def blackhole(self, seconds: float, *proxies: Proxy) -> None:
        with self.observer.fault():
            for each in proxies:
                each.blackhole = True
            await trio.sleep(seconds)
            for each in proxies:
                each.blackhole = False

    async def reset(self) -> None:
        with self.observer.fault():
            for _ in range(5):
                await trio.to_thread.run_sync(self.between.reset)
                await trio.sleep(0.5)

    async def cut(self, how: Cut) -> None:
        with self.observer.fault():
            for _ in range(8):
                self.between.cut = how
                await trio.sleep(0.4)
            self.between.cut = Cut.NEVER

    async def restart(self) -> None:
        """The database crashes, and is there again, now and then after a moment."""
        with self.observer.fault():
            await trio.to_thread.run_sync(self.server.stop, "immediate")
            await trio.sleep(self.choose.choice((0.0, 1.0)))
            await trio.to_thread.run_sync(self.server.start)


# ---- what came of them


@dataclass
class Result:
    times: int = 0
    messages: int = 0
    refused: int = 0  # requests, with 503
    unanswered: int = 0  # requests
    in_flight: int = 0  # messages
    again: int = 0  # messages that came once more
    ended: int = 0  # nodes, by themselves
    slowest: float = 0.0  # seconds to an acknowledgement, with all repetitions
    settled: float = 0.0  # seconds, at most, until everything was final
    seconds: float = 0.0
    wrong: int = 0

    def add(self, other: "Result") -> None:
        for name in self.__dataclass_fields__:
            ours, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(ours, theirs) if name in ("slowest", "settled") else ours + theirs)

    def figures(self) -> list[str]:
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return [f"{value:.1f}" if isinstance(value, float) else f"{value:,}" for value in values]


async def one(trial: Trial, fault: Fault, between: float) -> tuple[Result, list[str]]:
    observer, load, began = trial.observer, trial.observer.load, time.monotonic()
    before = (Counter(load.statuses), len(load.acknowledged), observer.in_flight, observer.again, trial.ended)
    load.paused, load.slowest, settled = False, 0.0, 0.0
    try:
        await trio.sleep(between)
        await fault[1]()
        await trio.sleep(between)
        await trial.all_up()
        settled = await observer.settle()
        keys = list(load.acknowledged)
        await load.repeat(trial.choose.sample(keys, min(5, len(keys))))
        found = observer.wrong()
    except trio.TooSlowError:
        found = [observer.unsettled()]
    except RuntimeError as error:
        found = [str(error).splitlines()[0]]
    statuses = load.statuses - before[0]
    result = Result(
        1,
        len(load.acknowledged) - before[1],
        statuses["503"],
        sum(count for status, count in statuses.items() if not status.isdigit()),
        observer.in_flight - before[2],
        observer.again - before[3],
        trial.ended - before[4],
        load.slowest,
        settled,
        time.monotonic() - began,
        len(found),
    )
    others = {status: n for status, n in statuses.items() if status.isdigit() and status not in ("202", "503")}
    return result, found + ([f"answers {others}"] if others else [])


@contextmanager
def progress(total: int) -> Iterator[Callable[[int, str, Result, list[str]], None]]:
    """Takes the number of each fault made, its kind and result; a bar on a terminal, elsewhere a line for each."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("faults", total=total)

        def on(number: int, kind: str, result: Result, found: list[str]) -> None:
            bar.update(task, completed=number, description=kind)
            if found or not console.is_terminal:
                console.print(f"{number:4} {kind:18} {' '.join(result.figures())} {'; '.join(found)}", markup=False)

        yield on


def show(results: dict[str, Result]) -> None:
    total = Result()
    for each in results.values():
        total.add(each)
    heads = ["fault", "times", "stored", "503", "no answer", "in flight", "again", "ended"]
    heads += ["slowest s", "settled s", "seconds", "wrong"]
    lines = [heads, *([name, *each.figures()] for name, each in sorted(results.items())), ["all", *total.figures()]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        print(first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True)))


async def run(
    directory: Path, server: PostgresServer, proxies: list[Proxy], receiver: Hooks, wanted: argparse.Namespace
) -> int:
    url = server.new_database()
    database = url.partition("?")[0].rpartition("/")[2]
    where = f"{database}?sslmode=disable&gssencmode=disable"
    ports = dict.fromkeys(NAMES, proxies[0].port) | {NAMES[-1]: proxies[1].port}
    far = {name: f"postgresql://{USER}@127.0.0.1:{port}/{where}" for name, port in ports.items()}
    clocks = {name: directory / f"clock-{name}" for name in NAMES}
    for clock in clocks.values():
        set_clock(clock, 0)
    more, choose = f"[webhooks]\n{receiver.settings(directory)}", random.Random(wanted.seed)
    results: dict[str, Result] = {}
    until = time.monotonic() + 60 * wanted.minutes
    async with (
        cluster(directory, url, NAMES, delays(*["2s"] * 20), far=far, more=more, clocks=clocks) as made,
        observed(made, receiver, choose, customers=wanted.customers, pause=wanted.pause) as observer,
        trio.open_nursery() as nursery,
    ):
        trial = Trial(observer, server, proxies[0], proxies[1], clocks, choose)
        nursery.start_soon(trial.supervise)
        plan, number = trial.plan(wanted), wanted.skip
        try:
            with progress(len(plan)) as on:
                for number, fault in enumerate(plan[wanted.skip :], wanted.skip + 1):
                    result, found = await one(trial, fault, wanted.between)
                    results.setdefault(fault[0], Result()).add(result)
                    on(number, fault[0], result, found)
                    if time.monotonic() > until:
                        break
            at_the_end = observer.all_wrong()
        finally:
            show(results)
            told = Counter((line["level"], line["event"]) for line in map(json.loads, made.all_complaints()))
            for (level, event), count in sorted(told.items()):
                print(f"log: {count:6,} {level}: {event}")
        nursery.cancel_scope.cancel()
    for text in at_the_end:
        print("wrong at the end:", text)
    print(
        f"{number - wanted.skip} faults made, {len(plan) - number} left" + f" (--skip {number})" * (number < len(plan))
    )
    if at_the_end or any(each.wrong for each in results.values()):
        return 1
    return 3 if number < len(plan) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="as many faults as are wanted of a release")
    for name, number in SOME.items():
        parser.add_argument(f"--{name}", type=int, help=f"{number} unless given, {FULL[name]} with --full")
    parser.add_argument("--customers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that a customer rests between two messages")
    parser.add_argument("--between", type=float, default=0.7, help="seconds of load before and after each fault")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="make no further fault after these")
    parser.add_argument("--skip", type=int, default=0, help="this many faults, which an earlier run has made")
    parser.add_argument("--seed", type=int, default=1, help="of the order and of all choices")
    parser.add_argument("--keep", type=Path, help="where the nodes' logs stay")
    wanted = parser.parse_args()
    for name, number in (FULL if wanted.full else SOME).items():
        if getattr(wanted, name) is None:
            setattr(wanted, name, number)
    with tempfile.TemporaryDirectory(prefix="nodes-") as made:
        directory = wanted.keep or Path(made)
        directory.mkdir(mode=0o700, exist_ok=True)
        port = free_port()
        with (
            postgresql(listen_addresses="'127.0.0.1'", port=str(port), autovacuum="on") as server,
            proxy(port) as between,
            proxy(port) as before_last,
            hooks(directory) as receiver,
        ):
            return trio.run(run, directory, server, [between, before_last], receiver, wanted)


if __name__ == "__main__":
    sys.exit(main())
