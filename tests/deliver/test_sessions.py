"""With thousands of waiting pools, no pass over them keeps the event loop for long: other tasks run in between."""

from collections.abc import Iterator
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from appliance.concurrency.fair_share import Shares
from appliance.deliver.attempt import Holder
from appliance.deliver.in_flight import STALLED_CHECK, STALLED_LONG, STEPS_PER_SLICE, Lack, SlowSessions
from appliance.deliver.pending import Pending
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Ready, Routed
from appliance.deliver.providers import PoolLimits
from appliance.deliver.route import Host, Route
from appliance.deliver.scheduler import POOLS_PER_SLICE, SessionRunner
from tests.deliver.test_admission import envelope

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

    def is_open(self, limiter: PoolLimiter) -> bool:
        """As `InFlight.is_open`."""
        return True

    def may_start(self, ready: Ready) -> bool:
        """As `InFlight.may_start`."""
        self.steps += 1
        return False

    def lack(self, ready: Ready) -> Lack:
        """As `InFlight.lack`."""
        self.steps += 1
        return Lack.SESSION

    def claim(self, routed: Routed) -> tuple[Holder, int]:
        """As `InFlight.claim`."""
        self.steps += 1
        return Holder(routed.envelope.account_id, False), 4


def waiting_pools() -> Pending:
    """One ready envelope in each pool, each of another account."""
    pending, route = Pending(), Route("a.test", (Host("mx.a.test", (ip_address("192.0.2.1"),)),), 25)
    for number in range(POOLS):
        limiter = PoolLimiter(f"pool{number}", PoolLimits())
        routed = Routed(envelope(f"acc{number}", "a.test"), route, limiter, [], None, -STALLED_CHECK, False)
        pending.add(limiter.pool, f"acc{number}")
        pending.enqueue(Ready(routed, b""))
    return pending


class Session(SimpleNamespace):
    """A fake that can be in a set."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity
    __eq__ = object.__eq__


def hanging_session(number: int) -> Any:
    """A session without progress for longer than any limit, of an account with one session."""
    progress = SimpleNamespace(moved_at=-STALLED_LONG - number, handed_over=False, address=None)
    slot = SimpleNamespace(limiter=PoolLimiter(f"slow{number}", PoolLimits()), account=f"slow{number}")
    return Session(progress=progress, slot=slot, holder=Holder(f"slow{number}", False), gives_way=False)


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


async def test_the_search_for_stalled_sessions_is_sliced(autojump_clock: MockClock) -> None:
    """Two thousand accounts wait, and none of five hundred hanging sessions may end for them: the worst case."""
    machine = FullMachine()
    for number in range(SESSIONS):
        machine.active.add(session := hanging_session(number))
        machine.slots.take(session.holder)
    in_flight: Any = machine
    for number in range(POOLS):
        machine.slots.take(Holder(f"acc{number}", False))
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
