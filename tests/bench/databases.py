"""What PostgreSQL costs: one node on it against the embedded database, three nodes against one, and a takeover.

    .venv/bin/python -m tests.bench.databases

Every message is about 2 KB to one recipient, sent over HTTP on 20 kept connections to each node, and goes on to
Debian's smtp-sink on loopback. All nodes and the database, which syncs its commits, share this machine. The rounds of
the sides alternate. What a node costs is the processor time of its process, from the first request until it rests.

One node and three are compared at the same load of each node, well below what the machine can do: at full load three
nodes share its two cores, each gets a third of the mail, and commits a third as much at a time.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import trio

from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.store import open_store
from tests.bench.deliver import CREDITS, SESSIONS, Sink, began_at, names, sink, start_sending, started
from tests.bench.figures import Figure, compared
from tests.bench.report import progress, table
from tests.bench.submit import settle
from tests.postgresql_server import postgresql
from tests.programs import find
from tests.running_appliance import Provisioned, Running, provision

NODES = ("a", "b", "c")
SHARED = ("one node", "two nodes", "three nodes")
EASE = 80.0  # messages a second to each node, at which three nodes and the database leave the processor time to spare
EASED_SECONDS = 10


class Measured(NamedTuple):
    rate: float  # messages a second, from the first request to the last arrival
    cpu: float  # microseconds of the nodes' processor time for a message


@dataclass
class Endpoint:
    """Some nodes on one database, and where their mail goes."""

    name: str
    nodes: list[Running]
    there: Sink

    def measure(self, messages: int, rate: float = 0) -> Measured:
        """Send so many through all nodes at once, at this rate to each, and wait until they have arrived."""
        settle()
        before, cpu = self.there.arrived, self._cpu()
        each = messages // len(self.nodes) // SESSIONS * SESSIONS
        sending = [start_sending(node, each, rate) for node in self.nodes]
        began = min(began_at(process) for process in sending)
        sent = each * len(self.nodes)
        taken = self.there.wait_until(before + sent) - began
        settle()
        return Measured(sent / taken, (self._cpu() - cpu) / sent * 1e6)

    def _cpu(self) -> float:
        return sum(cpu_seconds(node) for node in self.nodes)

    def takeover(self, messages: int) -> float:
        """Seconds from the death of a node with a queue until the others have delivered the last of it."""
        settle()
        before, victim = self.there.arrived, self.nodes[0]
        began_at(start_sending(victim, messages))
        died, left = time.perf_counter(), before + messages - self.there.arrived
        victim.kill()
        assert left > 0, "all had been delivered before the node was killed"
        return self.there.wait_until(before + messages) - died


def cpu_seconds(node: Running) -> float:
    assert node.process is not None
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def side(name: str, directory: Path, dns_port: int, url: str = "", nodes: Sequence[str] = ("a",)) -> Iterator[Endpoint]:
    """Running nodes of these names on one database; without a URL it is the embedded one."""
    with ExitStack() as stack:
        there = stack.enter_context(sink())
        homes = [directory / node for node in nodes]
        for home in homes:
            (home / "data").mkdir(parents=True, mode=0o700)
        load_or_create(homes[0] / "data")
        account = trio.run(_account, homes[0] / "data", url)
        for home in homes[1:]:
            shutil.copy(homes[0] / "data" / KEY_FILE, home / "data")

        def start(node: str, home: Path) -> Running:
            lines = {"server": f'node = "{node}"', "more": f'[store]\nurl = "{url}"'} if url else {}
            return stack.enter_context(started(home, account, dns_port, there.port, **lines))

        with ThreadPoolExecutor() as all_at_once:
            made = list(all_at_once.map(start, nodes, homes))
        yield Endpoint(name, made, there)


async def _account(data_dir: Path, url: str) -> Provisioned:
    async with open_store(data_dir, Environment(), url=url) as store:
        return await provision(store, "demo", credit=CREDITS)


def figures(
    rounds: int,
    messages: int,
    told: Callable[[str], None],
    seconds: float = EASED_SECONDS,
    *,
    with_takeover: bool = True,
) -> list[Figure]:
    """Measure the sides in turns, then for so many seconds at the easy load, then a takeover."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dns_port = stack.enter_context(names())
        server = stack.enter_context(postgresql(fsync="on", autovacuum="on"))
        embedded = stack.enter_context(side("embedded", directory / "embedded", dns_port))
        shared = [
            stack.enter_context(side(name, directory / f"{count}", dns_port, server.new_database(), NODES[:count]))
            for count, name in enumerate(SHARED, 1)
        ]
        full: dict[str, list[Measured]] = {each.name: [] for each in (embedded, *shared)}
        for each in (embedded, *shared) if rounds > 1 else ():  # a first look goes without
            each.measure(SESSIONS * len(NODES) * 5)
        for number in range(rounds):
            for each in (embedded, *shared):
                told(f"round {number + 1} of {rounds}: {each.name}")
                full[each.name].append(each.measure(messages))
        eased: dict[str, list[float]] = {each.name: [] for each in shared}
        for number in range(rounds):
            for each in shared:
                told(f"round {number + 1} of {rounds} at {EASE:.0f} a second to each node: {each.name}")
                eased[each.name].append(each.measure(int(EASE * seconds) * len(each.nodes), EASE).cpu)
        if with_takeover:
            told("takeover")
            takeover = shared[-1].takeover(messages)
    rate = {name: [each.rate for each in seen] for name, seen in full.items()}
    cpu = {name: [each.cpu for each in seen] for name, seen in full.items()}
    one = SHARED[0]
    found = [
        compared("PostgreSQL, one node", "messages/s", rate[one], rate["embedded"], "embedded", 0.65),
        compared("PostgreSQL, one node", "us/message", cpu[one], cpu["embedded"], "embedded", 1.15, at_least=False),
    ]
    for name in SHARED[1:]:
        what = f"PostgreSQL, {name}, {EASE:.0f} messages/s to each"
        found.append(compared(what, "us/message", eased[name], eased[one], one, 1.15, at_least=False))
    if with_takeover:
        found.append(Figure("a node's death to its last delivery", "s", takeover, 20.0))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=3_000, help="in one round, a multiple of 60")
    options = parser.parse_args()
    if find("postgresql") is None or shutil.which("smtp-sink") is None:
        sys.exit("needs Debian's postgresql and postfix: sh packaging/install-test-programs")
    with progress("databases") as told:
        found = figures(options.rounds, options.messages, told)
    print(table(found))
    return 0 if all(figure.reached() for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
