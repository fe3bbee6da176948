"""In charge of writing down what came of parcels: many in one transaction, ahead of other writes, whatever else ends.

What a server has taken must not be sent again. So nothing that is put here is given up but for a storage that refuses
while the process ends, and then it is still due in the store.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import trio

from appliance.deliver.courier import Parcel
from appliance.deliver.gate import Gate
from appliance.errors import Refused
from appliance.log import get_logger
from appliance.model import Outcome
from appliance.outside import Wake
from appliance.store import Store

TOGETHER = 64  # parcels in one transaction
STORAGE_PAUSE = 1.0  # seconds before trying again what the storage refused

log = get_logger("deliver")


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
    _waiting: list[Result] = field(default_factory=list)
    _wake: Wake = field(default_factory=Wake)
    _closing: bool = False

    def add(self, parcel: Parcel, outcomes: list[Outcome], gate: Gate | None = None) -> None:
        """Have it written down."""
        self._waiting.append(Result(parcel, outcomes, gate))
        self._wake.set()

    def close(self) -> None:
        """There will be no more: end once everything is written, or cannot be."""
        self._closing = True
        self._wake.set()

    async def run(self, done: Done) -> None:
        """Write until closed."""
        with trio.CancelScope(shield=True):
            while self._waiting or not self._closing:
                if not self._waiting:
                    await self._wake.wait(inf)
                    continue
                batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                await self._write(batch, done)

    async def _write(self, batch: list[Result], done: Done) -> None:
        while True:
            try:
                if outcomes := [outcome for result in batch for outcome in result.outcomes]:
                    await self.store.queue.record(outcomes)
                break
            except Refused as refused:
                log.warning("results wait for the storage", reason=refused.text)
                if self._closing:
                    return
                await trio.sleep(STORAGE_PAUSE)
            except Exception as error:
                await self._write_alone(batch, error, done)
                return
        for result in batch:
            done(result, True)

    async def _write_alone(self, batch: list[Result], error: Exception, done: Done) -> None:
        """One of them cannot be written: that one is never released, rather not tried again than for ever."""
        if len(batch) > 1:
            for result in batch:
                await self._write([result], done)
            return
        parcel = batch[0].parcel
        log.exception("a result cannot be recorded", error, message_id=parcel.message_id, domain=parcel.domain)
        done(batch[0], False)
