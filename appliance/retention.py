"""In charge of the janitor's rounds: what goes, in which order, and how much at once, so that no sender notices.

A round is a list of chores, each done in slices: transactions of a few milliseconds, with a rest of three times as long
as each has taken from its beginning until all of it is where it belongs on the disk. So the writer and the disk are the
janitor's for a quarter of the time at most, and for less when others wait for them as well.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.config.settings import RetentionSettings
from appliance.errors import Refused
from appliance.outside import Outside
from appliance.store import Store
from appliance.store.slices import START, Slice
from appliance.system.free_space import FreeSpace
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CLEARED

SLICE_TIME = 0.002  # seconds of the writer that a slice should take: a commit takes about as long
REST = 3  # times as long as a slice has taken
LEAST_REST = 0.01  # seconds
LEAST, MOST = 8, 4_000  # what a slice may be made of: about as many pages of the database
FIRST = 64  # what the first one is made of
ANEW = 3600.0  # seconds after which all that was passed over is looked at again
SOON = 2.0  # seconds between two rounds while the disk is nearly full, or the books are not kept up to date
# Of what was deleted, until its pages are copied home. Left to the commits it is done when there are thousands, which
# takes fifty milliseconds that a sender waits for; done here, beside the writer and often, nobody does.
SETTLE_AFTER = 100

log = get_logger("janitor")


@dataclass(slots=True)
class Pace:
    """How much is done at once, by how long it took the last time. PURE."""

    budget: int = FIRST
    least: int = LEAST

    def learn(self, seconds: float) -> None:
        """A slice of this size took so long: the next one is larger or smaller, but not by leaps."""
        change = min(1.5, max(0.5, SLICE_TIME / seconds)) if seconds else 1.5
        self.budget = min(MOST, max(self.least, round(self.budget * change)))


def rest(took: float, *, hurried: bool) -> float:
    """How long to leave the writer to others after a slice; a disk that is nearly full needs its space soon. PURE."""
    return max(LEAST_REST, took if hurried else took * REST)


Step = Callable[[str, int], Awaitable[Slice]]  # from after this row on, about so much


@dataclass(slots=True)
class _Chore:
    """One thing to do in a round, and how far it has come."""

    kind: str
    step: Step
    after: str = START
    pace: Pace = field(default_factory=Pace)


class Janitor:
    """Keeps what the settings say, and no longer."""

    def __init__(self, store: Store, outside: Outside, kept: RetentionSettings, free_space: FreeSpace) -> None:
        self._store, self._outside, self._free_space = store, outside, free_space
        self._bodies, self._metadata, self._logs = (
            round(seconds * 1_000_000) for seconds in (kept.bodies, kept.metadata, kept.webhook_logs)
        )
        self._expired = _Chore("expired", lambda _, budget: store.janitor.expired(self._logs, budget))
        self._contents = _Chore("bodies", self._step_bodies)
        self._parts = _Chore("parts", lambda _, budget: store.body_parts.clear(budget))
        # The later ones look for what the first has left behind.
        self._records = (
            _Chore("messages", lambda after, budget: store.clearing.mail(after, self._old(), budget)),
            _Chore("events", lambda after, budget: store.clearing.events(after, self._old(), budget)),
            _Chore(
                "books",
                lambda after, budget: store.old_books.tidy(after, self._old(), self._outside.now(), budget),
            ),
        )
        # Where many pages are free, SQLite looks through the list of them for each one that it takes away.
        self._space = _Chore("pages", lambda _, budget: store.space.give_back(budget), pace=Pace(1, least=1))
        self._anew_at = 0.0
        self._unsettled = 0
        self._thread = trio.CapacityLimiter(1)

    def _old(self) -> int:
        return self._outside.now() - self._metadata

    async def _step_bodies(self, after: str, budget: int) -> Slice:
        now = self._outside.now()
        return await self._store.clearing.bodies(after, now - self._bodies, now, budget)

    async def run(self) -> None:
        """Go on for ever, once a minute."""
        while True:
            try:
                finished = await self.round()
            except Refused as refused:
                log.warning("the janitor waits", reason=refused.text)
                finished = True
            await trio.sleep(SLEEP_LIMIT if finished and not self._free_space.low() else SOON)

    async def round(self) -> bool:
        """Do all that is to be done now; False when something had to wait for the books."""
        if trio.current_time() >= self._anew_at:
            self._anew_at = trio.current_time() + ANEW
            for chore in (self._contents, *self._records):
                chore.after = START
        done: Counter[str] = Counter()
        counted = self._store.clearing.is_counted(self._old())
        try:
            for chore in (self._expired, self._contents, *(self._records if counted else ())):
                await self._do(chore, done)
            await self._do(self._parts, done)  # of large messages, which the others have only taken off the records
            await self._give_back(done)
        finally:
            if done:
                log.info("cleared", **done)
        return counted

    async def _do(self, chore: _Chore, done: Counter[str]) -> None:
        more = True
        while more:
            more = (await self._slice(chore, chore.pace.budget, done)).more

    async def _slice(self, chore: _Chore, budget: int, done: Counter[str]) -> Slice:
        began = trio.current_time()
        result = await chore.step(chore.after, budget)
        chore.after = result.after
        if result.deleted:
            done[chore.kind] += result.deleted
            CLEARED.add(chore.kind, result.deleted)
            chore.pace.learn(result.seconds)
        await self._settle(result.deleted)
        await trio.sleep(rest(trio.current_time() - began, hurried=self._free_space.low()))
        return result

    async def _give_back(self, done: Counter[str]) -> None:
        """Make the file shorter when much of it is free; all that can be, while the disk is nearly full."""
        left = self._store.space.usage().to_give_back(at_once=self._free_space.low())
        while left > 0:
            result = await self._slice(self._space, min(left, self._space.pace.budget), done)
            left = left - result.deleted if result.more else 0
        if done["pages"]:
            await trio.to_thread.run_sync(self._store.space.settle, limiter=self._thread)

    async def _settle(self, deleted: int) -> None:
        self._unsettled += deleted
        if self._unsettled >= SETTLE_AFTER:
            self._unsettled = 0
            await trio.to_thread.run_sync(self._store.space.settle, limiter=self._thread)
