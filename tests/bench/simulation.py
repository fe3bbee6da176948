"""A simulation of nodes on one PostgreSQL, on Trio's virtual clock: what they take, deliver, and leave waiting.

Mail is counted, not followed one by one: in each step a node takes what has come and delivers what may go, as far as
its interpreter lock allows, and the step ends when the database has committed that. Leases, takeover, the first retry
and the pauses of a pool go by the constants of the program itself. Everything follows from the arguments and the seed.

What a node was doing when it was killed, or when the database went away, is neither acknowledged nor recorded. So no
message is lost, and at most those in flight are delivered again.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio
from trio.testing import MockClock

from appliance.config.settings import DeliverySettings
from appliance.deliver.pool_limiter import FIRST_PAUSE, LONGEST_PAUSE
from appliance.store.postgresql.nodes import ADOPTED_TOGETHER, BEAT, LEASE, STEADY
from tests.bench.costs import Costs
from tests.bench.figures import Curve

CHECKED = 5.0  # seconds until a load balancer uses a dead node no more
POINTS = 300  # of a curve
MICRO = 1_000_000
# Seconds by which what a node does is apart from load, faults and the end: Trio runs what is due at one time in an
# order by chance.
APART = 0.000_314_159
RETRY, LONGER = DeliverySettings().retry_delays[0], 0.2  # seconds; by this share it may be longer


# ---- what is simulated


@dataclass(frozen=True)
class Receiver:
    """Mail servers that share limits. A transaction takes as long as the network and the server need."""

    name: str
    share: float  # of all mail
    sessions: float = math.inf  # at once, from each node: providers count for each address
    per_minute: float = math.inf  # likewise
    transaction: float = 0.5  # seconds
    divided: bool = False  # the limits hold for all nodes together, as those of a pool that is not a provider's

    def rate(self, nodes: int) -> float:
        return min(self.sessions / self.transaction, self.per_minute / 60) / (nodes if self.divided else 1)


@dataclass(frozen=True)
class Fault:
    """At a time a node dies (by its number); or, for some seconds, the database is away, or a receiver refuses."""

    at: float
    seconds: float = math.inf
    node: int | None = None
    database: bool = False
    receiver: str = ""


@dataclass(frozen=True)
class Plan:
    """One cluster, its load and what happens to it."""

    nodes: int
    load: Callable[[float], float]  # messages a second to the whole cluster, at a time
    seconds: float
    receivers: Sequence[Receiver] = (Receiver("any", 1.0),)
    node_cores: float = 2.0
    database_cores: float = 16.0
    wal_bytes: float = 500e6  # a second, that the database's disk and its standby's take
    machine_cores: float = math.inf  # where everything shares one machine, the load generator too
    faults: Sequence[Fault] = ()
    queued: float = 0.0  # at the start
    step: float = 0.5  # seconds
    seed: int = 1


@dataclass
class Outcome:
    offered: float = 0.0
    accepted: float = 0.0
    delivered: float = 0.0
    refused: float = 0.0  # requests that were answered 503, or by no node; their clients try again
    again: float = 0.0  # messages that were in flight at a fault, and may be delivered twice
    taken_over: float = math.nan  # when the last row of a dead node had another owner
    used: dict[str, float] = field(default_factory=dict)  # share of each resource, on average
    node_cost: float = 0.0  # microseconds of a node's processors for a message
    database_cost: float = 0.0
    database_cores: float = 0.0  # used, on average
    wal: float = 0.0  # bytes a second
    backlog: list[tuple[float, float]] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)  # delivered, at the times of the backlog

    def rate(self) -> float:
        half = len(self.backlog) // 2
        return (self.arrived[-1] - self.arrived[half]) / (self.backlog[-1][0] - self.backlog[half][0])

    def limit(self) -> str:
        return max(self.used, key=lambda name: self.used[name])

    def curve(self, name: str, unit: float = 1.0) -> Curve:
        return Curve(name, [(at / unit, count) for at, count in self.backlog])

    def growth(self) -> float:
        """Messages a second by which the backlog grew over the last half."""
        (began, few), (ended, many) = self.backlog[len(self.backlog) // 2], self.backlog[-1]
        return (many - few) / (ended - began)

    def emptied(self, least: float) -> float:
        return max((at for at, count in self.backlog if count > least), default=0.0)


# ---- the parts


@dataclass
class Server:
    """Does its work in the order in which it comes, on so many cores, while the bytes go at this rate."""

    cores: float
    bytes_rate: float = math.inf
    free_at: float = 0.0
    busy: float = 0.0  # seconds of processors
    bytes: float = 0.0

    def reserve(self, seconds: float, size: float = 0.0) -> float:
        self.busy += seconds
        self.bytes += size
        self.free_at = max(self.free_at, trio.current_time())
        self.free_at += max(seconds / self.cores, size / self.bytes_rate)
        return self.free_at


@dataclass
class Node:
    """One process: requests that wait for it, recipients that it owns, and its lease."""

    phase: float  # of its steps, as a share of one
    beats: float  # seconds after a multiple of BEAT at which it renews its lease
    ready: dict[str, float]  # recipients that may go, by receiver
    asking: float = 0.0  # requests without an answer
    deferred: list[tuple[float, str, float]] = field(default_factory=list)  # a heap: when due, receiver, how many
    paused: dict[str, tuple[float, float]] = field(default_factory=dict)  # until when, and for how long
    in_flight: float = 0.0
    rate: float = 0.0  # messages a second, and share of the processors, of late
    load: float = 0.0
    busy: float = 0.0  # seconds of the interpreter lock
    died: float = math.inf
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def waiting(self) -> float:
        return sum(self.ready.values()) + sum(count for *_, count in self.deferred)


class Cluster:
    def __init__(self, plan: Plan, costs: Costs) -> None:
        self.plan, self.costs, self.outcome = plan, costs, Outcome()
        self.database = Server(plan.database_cores, plan.wal_bytes)
        self.machine = Server(plan.machine_cores)
        self.away_until = -math.inf  # the database
        self.closed: set[str] = set()  # receivers that refuse
        self.sent: dict[str, float] = {each.name: 0.0 for each in plan.receivers}
        self.spent = 0.0  # seconds of the nodes' processors
        self.choose = random.Random(plan.seed)
        share = plan.queued / plan.nodes
        self.nodes = [
            Node(
                phase=(number + 1) / (plan.nodes + 1),
                beats=self.choose.random() * BEAT,
                ready={each.name: share * each.share for each in plan.receivers},
            )
            for number in range(plan.nodes)
        ]

    async def run(self) -> Outcome:
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(self._work, node)
            for fault in self.plan.faults:
                nursery.start_soon(self._cause, fault)
            nursery.start_soon(self._load)
            await trio.sleep_until(self.plan.seconds - APART)
            nursery.cancel_scope.cancel()
        return self._finish()

    def live(self) -> list[Node]:
        return [node for node in self.nodes if node.died == math.inf]

    def is_up(self) -> bool:
        return trio.current_time() >= self.away_until

    # ---- a node's work

    async def _work(self, node: Node) -> None:
        with node.scope:
            await trio.sleep(node.phase * self.plan.step + APART)
            while True:
                if self.is_up():
                    await self._step(node, trio.current_time())
                else:
                    await trio.sleep(self.plan.step)

    async def _step(self, node: Node, began: float) -> None:
        """Take and deliver for one step; it ends later where the database, or the machine, needs longer.

        Under overload the lock is shared as accepting and delivering a message share it; what one leaves the other has.
        """
        step, costs = self.plan.step, self.costs
        commits = costs.commits(node.rate, node.load)
        accepting, delivering = (
            (stage + costs.node_commit * commits / 2) / MICRO for stage in (costs.accepting, costs.delivering)
        )
        # With fewer cores than a node can fill, its lock waits for a processor.
        slower = max(1.0, (1 + costs.threads / MICRO / (accepting + delivering)) / self.plan.node_cores)
        lock, wanted = step / slower, self._wanted(node, began)
        needed = sum(wanted.values()) * delivering
        taken = min(node.asking, max(lock * accepting / (accepting + delivering), lock - needed) / accepting)
        part = min(1.0, (lock - taken * accepting) / needed) if needed else 0.0
        going = {name: count * part for name, count in wanted.items()}
        gone = sum(going.values())
        node.in_flight = (
            sum(going[each.name] * each.transaction for each in self.plan.receivers if each.name in going) / step
        )
        messages = (taken + gone) / 2  # each is taken and delivered, in this step or in another
        held = taken * accepting + gone * delivering
        spent, asked = held + messages * costs.threads / MICRO, messages * self._database_seconds(commits)
        done = self.database.reserve(asked, messages * costs.wal)
        done = max(done, self.machine.reserve(spent + asked + messages * costs.around / MICRO), began + step)
        await trio.sleep_until(done)
        node.in_flight = 0.0
        if not self.is_up():
            return
        took = done - began
        node.busy += held * slower
        self.spent += spent
        node.rate = (node.rate + messages / took) / 2
        shares = (held * slower / took, self.database.busy / self.database.cores / done, self._machine_share(done))
        node.load = (node.load + min(1.0, max(shares))) / 2
        node.asking -= taken
        self.outcome.accepted += taken
        for each in self.plan.receivers:
            node.ready[each.name] += taken * each.share
        for name, count in going.items():
            node.ready[name] -= count
            self._record(node, name, count)

    def _database_seconds(self, commits: float) -> float:
        return (self.costs.database + self.costs.database_commit * commits) / MICRO

    def _machine_share(self, now: float) -> float:
        return self.machine.busy / self.machine.cores / now

    def _wanted(self, node: Node, now: float) -> dict[str, float]:
        while node.deferred and node.deferred[0][0] <= now:
            _, name, count = heapq.heappop(node.deferred)
            node.ready[name] += count
        live = len(self.live())
        return {
            each.name: min(node.ready[each.name], self.plan.step * each.rate(live))
            for each in self.plan.receivers
            if now >= node.paused.get(each.name, (0.0, 0.0))[0]
        }

    def _record(self, node: Node, name: str, count: float) -> None:
        """Delivered; or put off, with a pause of the pool that is twice the one before."""
        if name not in self.closed:
            node.paused.pop(name, None)
            self.sent[name] += count
            self.outcome.delivered += count
        elif count:
            now = trio.current_time()
            _, before = node.paused.get(name, (0.0, 0.0))
            pause = min(2 * before or FIRST_PAUSE / MICRO, LONGEST_PAUSE / MICRO)
            node.paused[name] = (now + pause, pause)
            heapq.heappush(node.deferred, (now + RETRY * (1 + LONGER * self.choose.random()), name, count))

    # ---- leases

    async def _take_over(self, dead: Node) -> None:
        """When the lease of a dead node has ended, the others take its rows at their beats, for half of a beat each."""
        lease = _beat_before(dead.died, dead.beats) + LEASE
        async with trio.open_nursery() as nursery:
            for node in self.live():
                nursery.start_soon(self._take, node, dead, lease)
        self.outcome.taken_over = trio.current_time()

    async def _take(self, node: Node, dead: Node, lease: float) -> None:
        beat = _beat_before(lease, node.beats) + BEAT
        while dead.waiting() and node.died == math.inf:
            await trio.sleep_until(beat)
            while self._is_steady() and trio.current_time() < beat + BEAT / 2 and (rows := dead.waiting()):
                part = min(1.0, ADOPTED_TOGETHER / rows)
                self._move(dead, node, part)
                await trio.sleep_until(self.database.reserve(part * rows * self.costs.taken_over / MICRO))
            beat += BEAT

    def _is_steady(self) -> bool:
        """Whether nodes have renewed their leases in time for long enough to take over others' rows."""
        return trio.current_time() >= self.away_until + BEAT + STEADY

    def _move(self, dead: Node, node: Node, part: float) -> None:
        for name, count in dead.ready.items():
            node.ready[name] += part * count
            dead.ready[name] = (1 - part) * count
        for due, name, count in dead.deferred:
            heapq.heappush(node.deferred, (due, name, part * count))
        dead.deferred = [(due, name, (1 - part) * count) for due, name, count in dead.deferred if part < 1]

    # ---- what comes from outside

    async def _cause(self, fault: Fault) -> None:
        await trio.sleep_until(fault.at)
        if fault.node is not None:
            node = self.nodes[fault.node]
            node.died = fault.at
            node.scope.cancel()
            self.outcome.again += node.in_flight
            self.outcome.refused += node.asking
            self._ask(node.asking)
            node.asking = 0.0
            await self._take_over(node)
        elif fault.database:
            self.away_until = fault.at + fault.seconds
            self.outcome.again += sum(node.in_flight for node in self.live())
        else:
            self.closed.add(fault.receiver)
            await trio.sleep(fault.seconds)
            self.closed.discard(fault.receiver)

    async def _load(self) -> None:
        """Bring the requests of each step to the nodes, and note the backlog now and then."""
        every, noted = max(self.plan.step, self.plan.seconds / POINTS), 0.0
        while True:
            now = trio.current_time()
            if now >= noted:
                self.outcome.backlog.append((now, sum(node.waiting() + node.asking for node in self.nodes)))
                self.outcome.arrived.append(self.outcome.delivered)
                noted += every
            count = self.plan.load(now) * self.plan.step
            missed = sum(node.died <= now < node.died + CHECKED for node in self.nodes)
            self.outcome.offered += count
            self.outcome.refused += count * (missed / (len(self.live()) + missed) if self.is_up() else 1)
            self._ask(count)
            await trio.sleep_until(now + self.plan.step)

    def _ask(self, count: float) -> None:
        """Requests that a load balancer distributes, or whose clients try again."""
        live = self.live()
        for node in live:
            node.asking += count / len(live)

    def _finish(self) -> Outcome:
        plan, database, outcome = self.plan, self.database, self.outcome
        lived = sum(min(node.died, plan.seconds) for node in self.nodes)
        outcome.used = {
            "node": sum(node.busy for node in self.nodes) / lived,
            "database": database.busy / database.cores / plan.seconds,
            "WAL": database.bytes / database.bytes_rate / plan.seconds,
            "machine": self._machine_share(plan.seconds),
        }
        for each in plan.receivers:
            outcome.used[each.name] = self.sent[each.name] / (each.rate(plan.nodes) * lived)
        through = (outcome.accepted + outcome.delivered) / 2 or 1.0
        outcome.node_cost = self.spent / through * MICRO
        outcome.database_cost = database.busy / through * MICRO
        outcome.database_cores = database.busy / plan.seconds
        outcome.wal = database.bytes / plan.seconds
        return outcome


def _beat_before(time: float, offset: float) -> float:
    return math.floor((time - offset) / BEAT) * BEAT + offset


def simulate(plan: Plan, costs: Costs) -> Outcome:
    return trio.run(Cluster(plan, costs).run, clock=MockClock(autojump_threshold=0))
