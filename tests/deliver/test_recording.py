"""Writing down what came of envelopes: together, whatever happens to one of them, and before the end."""

from collections.abc import Sequence
from typing import Any

import trio
from trio.testing import MockClock

from appliance.concurrency.wake import RESULTS_PER_TRANSACTION, BatchWriter
from appliance.deliver.due_mail import Envelope
from appliance.deliver.scheduler import AttemptResult, recording
from appliance.errors import StorageUnavailable


class FakeQueue:
    """A queue in the store that notes what it is given, or fails as told."""

    def __init__(self) -> None:
        self.written: list[list[Any]] = []
        self.refusals = 0
        self.unwritable: set[Any] = set()

    async def record(self, outcomes: Sequence[Any]) -> None:
        """As `Queue.record`."""
        await trio.sleep(0.01)
        if self.refusals:
            self.refusals -= 1
            raise StorageUnavailable("full")
        if self.unwritable & {outcome.name for outcome in outcomes}:
            raise RuntimeError("a bug")
        self.written.append([outcome.name for outcome in outcomes])


class FakeOutcome:
    """Something to write."""

    def __init__(self, name: str) -> None:
        self.name = name


class FakeStore:
    """A store of which only the queue is used."""

    def __init__(self) -> None:
        self.queue = FakeQueue()


def recorder() -> tuple[BatchWriter[AttemptResult], FakeQueue]:
    """A recorder, and where it writes."""
    store = FakeStore()
    return recording(store), store.queue  # type: ignore[arg-type]  # a fake


def add(made: BatchWriter[AttemptResult], *names: str) -> None:
    """One envelope with an outcome of its own each."""
    for name in names:
        made.add(AttemptResult(Envelope(name, "acc", "a.test", ()), [FakeOutcome(name)]))  # type: ignore[list-item]  # a fake


async def close_and_run(made: BatchWriter[AttemptResult]) -> list[str]:
    """Write all there is; the envelopes that are on disk."""
    done: list[str] = []
    made.close()

    def note(results: list[AttemptResult], on_disk: bool) -> None:
        done.extend(result.envelope.message_id + ("" if on_disk else " is lost") for result in results)

    await made.run(note)
    return done


async def test_what_waits_together_is_written_together(autojump_clock: MockClock) -> None:
    """Many results are one transaction, as far as one may hold them, in their order."""
    made, queue = recorder()
    names = [f"m{number}" for number in range(RESULTS_PER_TRANSACTION + 3)]
    add(made, *names)
    assert await close_and_run(made) == names
    assert queue.written == [names[:RESULTS_PER_TRANSACTION], names[RESULTS_PER_TRANSACTION:]]


async def test_an_envelope_without_a_result_is_let_go(autojump_clock: MockClock) -> None:
    """One that is not wanted any more needs no transaction."""
    made, queue = recorder()
    made.add(AttemptResult(Envelope("m", "acc", "a.test", ()), []))
    assert await close_and_run(made) == ["m"]
    assert queue.written == []


async def test_one_that_cannot_be_written_stops_no_other(autojump_clock: MockClock) -> None:
    """The others of its transaction are written without it, and it is said not to be on disk."""
    made, queue = recorder()
    queue.unwritable = {"b"}
    add(made, "a", "b", "c")
    assert await close_and_run(made) == ["a", "b is lost", "c"]
    assert queue.written == [["a"], ["c"]]


async def test_a_storage_that_refuses_is_asked_again(autojump_clock: MockClock) -> None:
    """Results wait for the disk, and come to it in their order."""
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
    """Cancelled with results waiting and more to come, it goes on until it is closed."""
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
