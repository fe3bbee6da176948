"""In charge of writing down what came of parcels, ahead of other writes: what a server has taken is not sent again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.concurrency.batch_writer import BatchWriter
from appliance.deliver.attempt import Parcel
from appliance.deliver.pool_limiter import Gate
from appliance.model.mail import Outcome
from appliance.store import Store


class Result(NamedTuple):
    """What came of one parcel."""

    parcel: Parcel
    outcomes: list[Outcome]
    gate: Gate | None = None  # through which it went


Done = Callable[[Result, bool], None]


@dataclass(slots=True)
class Recorder:
    """Takes results and writes them; `done` is called with each, and whether it is on disk."""

    store: Store
    _recording: BatchWriter[Result] = field(init=False)

    def __post_init__(self) -> None:
        """Have nothing to write yet."""
        self._recording = BatchWriter("deliver", self._write, _named)

    def add(self, parcel: Parcel, outcomes: list[Outcome], gate: Gate | None = None) -> None:
        """Have it written down."""
        self._recording.add(Result(parcel, outcomes, gate))

    def close(self) -> None:
        """There will be no more: end once everything is written, or cannot be."""
        self._recording.close()

    async def run(self, done: Done) -> None:
        """Write until closed."""
        await self._recording.run(done)

    async def _write(self, batch: list[Result]) -> None:
        if outcomes := [outcome for result in batch for outcome in result.outcomes]:
            await self.store.queue.record(outcomes)


def _named(result: Result) -> dict[str, str]:
    return {"message_id": result.parcel.message_id, "domain": result.parcel.domain}
