"""With thousands of waiting pools, no pass over them keeps the event loop for long: other tasks run in between."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from appliance.concurrency.fair_share import Shares
from appliance.concurrency.wake import RECORDING_REST, RESULTS_AWAITED, RESULTS_PER_TRANSACTION, BatchWriter
from appliance.deliver.attempt import Holder
from appliance.deliver.in_flight import (
    POOLS_PER_ROUND,
    STALLED_CHECK,
    STALLED_LONG,
    START_PAUSE,
    STARTS_PER_ROUND,
    STEPS_PER_SLICE,
    Lack,
    RoundLimit,
    SlowSessions,
)
from appliance.deliver.outcome import AttemptResult, recording
from appliance.deliver.pending import Pending, PoolQueue
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Envelope, Flow, Ready, Routed
from appliance.deliver.providers import PoolLimits
from appliance.deliver.route import Host, Route
from appliance.deliver.scheduler import POOLS_PER_SLICE, SessionRunner
from appliance.errors import StorageUnavailable
from appliance.store.new_mail import LOAD_MESSAGES, NEW_MAIL_RECENT, NewMail
from tests.deliver.test_pending import envelope

POOLS = 2_000
SESSIONS = 500


class FullMachine:
    """As `InFlight` with every session in use by servers that never reply; counts the decisions."""

    def __init__(self) -> None:
        self.steps = 0
        self.urgent: Ready | None = None
        self.brake = SimpleNamespace(is_on=False)
        self.slots, self.large_slots = Shares[Holder](SESSIONS), Shares[str](16)
        self.active: set[Any] = set()

    def serve_all(self) -> None:
        """As `InFlight.serve_all`."""

    def is_open(self, queue: PoolQueue) -> bool:
        return True

    def may_start(self, ready: Ready) -> bool:
        self.steps += 1
        return False

    def lack(self, ready: Ready) -> Lack:
        self.steps += 1
        return Lack.SESSION

    def claim(self, routed: Routed) -> tuple[Holder, int]:
        self.steps += 1
        return Holder(routed.envelope.account_id, 0, 0, False), 4


def waiting_pools() -> Pending:
    pending, route = Pending(), Route("a.test", (Host("mx.a.test", (ip_address("192.0.2.1"),)),), 25)
    for number in range(POOLS):
        limiter = PoolLimiter(f"pool{number}", PoolLimits())
        routed = Routed(envelope(f"acc{number}", "a.test"), route, limiter, [], None, -STALLED_CHECK, False)
        pending.add(limiter.pool, Flow(f"acc{number}"))
        pending.enqueue(Ready(routed, b""))
    return pending


class Session(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity
    __eq__ = object.__eq__


def hanging_session(number: int) -> Any:
    progress = SimpleNamespace(moved_at=-STALLED_LONG - number, handed_over=False, address=None)
    slot = SimpleNamespace(limiter=PoolLimiter(f"slow{number}", PoolLimits()), account=f"slow{number}")
    return Session(progress=progress, slot=slot, holder=Holder(f"slow{number}", 0, 0, False), gives_way=False)


async def test_serving_all_pools_is_sliced(autojump_clock: MockClock) -> None:
    """Every pool is asked once, and never more than one slice of them between two checkpoints."""
    machine, longest, seen = FullMachine(), 0, 0

    async def watch() -> None:
        nonlocal longest, seen
        while True:
            longest, seen = max(longest, machine.steps - seen), machine.steps
            await trio.lowlevel.checkpoint()

    no_sessions: Any = SimpleNamespace(replaced=lambda ready: None, stalled=lambda queues: iter(()))
    unused: Any = None
    async with trio.open_nursery() as tasks:
        in_flight: Any = machine
        runner = SessionRunner(
            pending=waiting_pools(),
            in_flight=in_flight,
            slow=no_sessions,
            deliverer=unused,
            results=unused,
            new_mail=unused,
            tasks=tasks,
        )
        tasks.start_soon(watch)
        await runner.start_all()
        tasks.cancel_scope.cancel()
    assert machine.steps == POOLS
    assert longest <= 2 * POOLS_PER_SLICE  # Trio may run one of two tasks twice in a row


async def test_a_round_of_the_event_loop_starts_little_of_a_backlog() -> None:
    """Pools take turns, and all that may start does so in the end."""
    limit, ready = RoundLimit(), {f"pool{number}": 5 for number in range(POOLS_PER_ROUND + 10)}
    ready["blocked"] = 0
    order, rounds = list[str](), list[int]()

    def start(pool: str) -> None:
        while ready[pool] and limit.left > 0:
            limit.left, ready[pool] = limit.left - 1, ready[pool] - 1
            order.append(pool)
        if ready[pool]:
            limit.delay(pool)

    async def watch() -> None:
        while True:
            rounds.append(len(order))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as tasks:
        tasks.start_soon(limit.run, start)
        tasks.start_soon(watch)
        for pool in ready:
            limit.delay(pool)
        for _ in range(10 * sum(ready.values())):  # rounds
            await trio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert not any(ready.values())
    assert order[: 2 * STARTS_PER_ROUND : STARTS_PER_ROUND] == ["pool0", "pool1"]
    # Trio may run one of two tasks twice in a row.
    assert max(after - before for before, after in pairwise(rounds)) <= 2 * STARTS_PER_ROUND


async def test_a_backlog_gives_way_to_new_mail(autojump_clock: MockClock) -> None:
    """It starts one attempt at intervals while messages come now and then, and is not slowed beside a load of them."""
    new_mail, started = NewMail(), list[float]()
    limit = RoundLimit(has_new_mail=new_mail.is_sparse)

    def start(pool: str) -> None:
        if limit.left > 0:
            limit.left -= 1
            started.append(trio.current_time())
        limit.delay(pool)

    async with trio.open_nursery() as tasks:
        new_mail.expect("newsletter", low=1)
        assert not new_mail.is_sparse()
        new_mail.expect("login code")
        tasks.start_soon(limit.run, start)
        limit.delay("pool")
        await trio.sleep(10.5 * START_PAUSE)
        tasks.cancel_scope.cancel()
    assert len(started) == 10
    assert all(after - before >= 0.99 * START_PAUSE for before, after in pairwise(started))
    await trio.sleep(NEW_MAIL_RECENT)
    assert not new_mail.is_sparse()
    for number in range(LOAD_MESSAGES):
        assert new_mail.is_sparse() == (number > 0)
        new_mail.expect(f"message {number}")
    assert not new_mail.is_sparse()


async def test_the_search_for_stalled_sessions_is_sliced(autojump_clock: MockClock) -> None:
    """Two thousand accounts wait, and none of five hundred hanging sessions may end for them: the worst case."""
    machine = FullMachine()
    for number in range(SESSIONS):
        machine.active.add(session := hanging_session(number))
        machine.slots.take(session.holder)
    in_flight: Any = machine
    for number in range(POOLS):
        machine.slots.take(Holder(f"acc{number}", 0, 0, False))
    steps, ended = list[int](), 0
    search: Iterator[Any] = SlowSessions(in_flight).stalled(waiting_pools().queues.values())
    for active in search:
        ended += active is not None
        steps.append(machine.steps)
        machine.steps = 0
    assert ended == 0
    assert len(steps) > POOLS / 2
    assert max(steps) <= STEPS_PER_SLICE + SESSIONS + 1


async def test_mail_of_an_account_with_fewer_sessions_ends_a_stalled_one(autojump_clock: MockClock) -> None:
    """The session that has been idle for longest ends first, and none ends twice."""
    machine = FullMachine()
    machine.active = {first := hanging_session(2), second := hanging_session(1)}
    for session in (first, second):
        machine.slots.take(session.holder, 2)
    in_flight: Any = machine
    ended = []
    for active in SlowSessions(in_flight).stalled(waiting_pools().queues.values()):
        if active is not None:
            active.gives_way = True
            ended.append(active)
    assert ended == [first, second]


@pytest.mark.parametrize("answers", [True, False])
async def test_a_session_that_answers_during_a_sliced_search_is_not_ended(
    autojump_clock: MockClock, answers: bool
) -> None:
    machine: Any = FullMachine()
    machine.active = {session := hanging_session(1)}
    machine.slots.take(session.holder, 2)
    calls = count()
    machine.lack = lambda ready: None if next(calls) < STEPS_PER_SLICE else Lack.SESSION
    ended = []
    for active in SlowSessions(machine).stalled(waiting_pools().queues.values()):
        if active is not None:
            active.gives_way = True
            ended.append(active)
        elif answers:
            session.progress.moved_at = trio.current_time()
    assert ended == ([] if answers else [session])


class FakeQueue:
    def __init__(self) -> None:
        self.written: list[list[Any]] = []
        self.refusals = 0
        self.unwritable: set[Any] = set()

    async def record(self, outcomes: Sequence[Any]) -> None:
        await trio.sleep(0.01)
        if self.refusals:
            self.refusals -= 1
            raise StorageUnavailable("full")
        if self.unwritable & {outcome.name for outcome in outcomes}:
            raise RuntimeError("a bug")
        self.written.append([outcome.name for outcome in outcomes])


class FakeOutcome:
    def __init__(self, name: str) -> None:
        self.name = name


class FakeStore:
    def __init__(self) -> None:
        self.queue, self.new_mail = FakeQueue(), NewMail()


def recorder() -> tuple[BatchWriter[AttemptResult], FakeQueue]:
    store = FakeStore()
    return recording(store), store.queue  # type: ignore[arg-type]  # a fake


def add(made: BatchWriter[AttemptResult], *names: str) -> None:
    for name in names:
        made.add(AttemptResult(Envelope(name, "acc", "a.test", ()), [FakeOutcome(name)]))  # type: ignore[list-item]  # a fake


async def close_and_run(made: BatchWriter[AttemptResult]) -> list[str]:
    done: list[str] = []
    made.close()

    def note(results: list[AttemptResult], on_disk: bool) -> None:
        done.extend(result.envelope.message_id + ("" if on_disk else " is lost") for result in results)

    await made.run(note)
    return done


async def test_what_waits_together_is_written_together(autojump_clock: MockClock) -> None:
    made, queue = recorder()
    names = [f"m{number}" for number in range(RESULTS_PER_TRANSACTION + 3)]
    add(made, *names)
    assert await close_and_run(made) == names
    assert queue.written == [names[:RESULTS_PER_TRANSACTION], names[RESULTS_PER_TRANSACTION:]]


async def test_results_that_come_singly_are_collected(autojump_clock: MockClock) -> None:
    """The first is written at once. Later ones wait for a rest, for enough of them, or for an urgent one."""
    made, queue = recorder()
    many = [f"m{number}" for number in range(RESULTS_AWAITED)]
    written = list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, lambda *_: None)
        for name in "abcd":
            add(made, name)
            await trio.sleep(RECORDING_REST / 4)
        await trio.sleep(RECORDING_REST)
        written.append(len(queue.written))
        add(made, *many[:-1])
        await trio.testing.wait_all_tasks_blocked()
        written.append(len(queue.written))
        add(made, many[-1])
        await trio.sleep(0.015)
        written.append(len(queue.written))
        add(made, "e")
        made.add(AttemptResult(Envelope("f", "acc", "a.test", ()), [FakeOutcome("f")]), urgent=True)  # type: ignore[list-item]  # a fake
        await trio.sleep(0.015)
        written.append(len(queue.written))
        made.close()
    assert queue.written == [["a"], ["b", "c", "d"], many, ["e", "f"]]
    assert written == [2, 2, 3, 4]


async def test_an_envelope_without_a_result_is_let_go(autojump_clock: MockClock) -> None:
    made, queue = recorder()
    made.add(AttemptResult(Envelope("m", "acc", "a.test", ()), []))
    assert await close_and_run(made) == ["m"]
    assert queue.written == []


async def test_one_that_cannot_be_written_stops_no_other(autojump_clock: MockClock) -> None:
    made, queue = recorder()
    queue.unwritable = {"b"}
    add(made, "a", "b", "c")
    assert await close_and_run(made) == ["a", "b is lost", "c"]
    assert queue.written == [["a"], ["c"]]


async def test_a_storage_that_refuses_is_asked_again(autojump_clock: MockClock) -> None:
    made, queue = recorder()
    queue.refusals = 3
    done: list[AttemptResult] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, lambda results, _: done.extend(results))
        add(made, "a")
        await trio.sleep(0.5)
        add(made, "b")
        assert done == []
        await trio.sleep(5)
        made.close()
    assert queue.written == [["a"], ["b"]]


async def test_at_the_end_a_storage_that_refuses_is_left(autojump_clock: MockClock) -> None:
    """A process that ends because of its disk is not kept alive by it."""
    made, queue = recorder()
    queue.refusals = 10**6
    add(made, "a", "b")
    assert await close_and_run(made) == []


async def test_a_cancellation_loses_nothing(autojump_clock: MockClock) -> None:
    made, queue = recorder()
    done: list[AttemptResult] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, lambda results, _: done.extend(results))
        add(made, "a")
        await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
            add(made, "b")
            await trio.sleep(1)
        made.close()
    assert queue.written == [["a"], ["b"]]
    assert len(done) == 2
