"""In charge of posting whatever is due: which receiver's turn it is, one attempt, and what becomes of it.

State is in the store: a restart simply goes on. In memory there is a line for each lane (a webhook's events, its pings,
its replays) of which something is due, with a few posts in it. Lines take turns for the slots, and those whose receiver
may hang have a part of them at most (see `turns`), so that nobody waits for somebody else's receiver.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Protocol

import trio

from appliance.concurrency.batch_writer import BatchWriter
from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.errors import Refused
from appliance.keys.sealing import UnsealError
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, Lane, PostResult, Trigger, Webhook
from appliance.outside import Outside
from appliance.store import Store
from appliance.system.shortage import SHORTAGE_PAUSE, Shortage
from appliance.telemetry.log import get_logger
from appliance.webhook.metrics import observe
from appliance.webhook.pause import LOOK_EVERY as PAUSE_LOOK
from appliance.webhook.pause import Pause
from appliance.webhook.post import Posted
from appliance.webhook.receiver import PACE, Line
from appliance.webhook.retry import judge
from appliance.webhook.signature import signature_header
from appliance.webhook.slots import SLOTS, Slot, Turns

IN_HAND = 64  # posts of one line that are in memory: waiting, on their way, or being recorded
ALL_IN_HAND = 10_000  # of all lines together, as long as each of them has its least
LEAST_IN_HAND = 2
FEW_DEAD = 2  # lines whose receiver is dead that go at their own pace; more of them share what these may do
LOOK_EVERY = 5.0  # seconds between two looks at all lanes
LOOK_SHARE = 50  # a look takes at most this fraction of the time: with many lanes there are fewer looks
SHORT_LOG_EVERY = 60.0  # seconds without a lack of this machine after which the next one is logged again
CLOCK_SLACK = 60_000_000  # microseconds; what waits longer than any wait of the schedule was put off by a wrong clock

CONTENT_TYPE = ("Content-Type", "application/json")
USER_AGENT = ("User-Agent", "Service-Webhook/1.0")

DISABLED = "the webhook was disabled before this was delivered"
BROKEN_SEAL = "the signing secret cannot be read: rotate it, or have the operator restore the key file"
OWN_FAULT = "the attempt failed on our side; the operator's log has the details"

log = get_logger("webhook")


class Posts(Protocol):
    """Who posts: see `post.Poster`."""

    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Posted:
        """Post once; whatever happens is in the result."""
        ...


@dataclass(slots=True)
class Dispatcher:
    """The loop, and what it remembers between two looks."""

    store: Store
    outside: Outside
    secrets: WebhookSecrets
    poster: Posts
    delays: Sequence[float]  # seconds before each further attempt
    slots: int = SLOTS
    look_every: float = LOOK_EVERY
    _recording: BatchWriter[PostResult] = field(init=False)
    _turns: Turns = field(init=False)
    _pause: Pause = field(init=False)
    _lines: dict[Lane, Line] = field(default_factory=dict)
    _later: list[tuple[int, Lane]] = field(default_factory=list)  # a heap: what will be due before the next look
    _look_at: float = 0.0  # Trio's clock
    _short_at: float = float("-inf")  # Trio's clock: when a lack of this machine was met last
    _pace: float = PACE  # seconds between two posts to a dead receiver

    async def run(self) -> None:
        """Post whatever is due, for ever. What is on its way at the end is finished, and recorded."""
        self._recording = BatchWriter("webhook", self.store.webhook_posts.record, _named)
        self._turns, self._pause = Turns(self.slots), Pause(self.store)
        async with trio.open_nursery() as recording:
            recording.start_soon(self._recording.run, self._recorded)
            try:
                async with trio.open_nursery() as flights:
                    while True:
                        await self._look()
                        self._hear()
                        if not self._pause.holds():
                            self._begin(flights)
                        await self.store.webhook_posts.bell.wait(self._seconds_until_look())
            finally:
                self._recording.close()

    # ---- who has something to post

    async def _look(self) -> None:
        """Look at all lanes now and then: for what is due by and by, and for what another process has written."""
        began = trio.current_time()
        if began < self._look_at:
            return
        lanes = self.store.webhook_posts.lanes()
        pause = max(self.look_every, LOOK_SHARE * (trio.current_time() - began))
        now, self._look_at = self.outside.now(), began + pause
        self._later = [(first, lane) for lane, first, _ in lanes if first <= now + pause * 1_000_000]
        heapify(self._later)
        waiting = {lane for lane, _, _ in lanes}
        self._lines = {lane: line for lane, line in self._lines.items() if lane in waiting or not line.idle}
        self._pace = PACE * max(1.0, sum(line.dead for line in self._lines.values()) / FEW_DEAD)
        await self._mind_the_clock([lane for lane, _, last in lanes if last > self._latest(now)])

    def _latest(self, now: int) -> int:
        return now + round(max(self.delays) * 1_000_000) + CLOCK_SLACK

    async def _mind_the_clock(self, lanes: list[Lane]) -> None:
        """Bring back what was put off while the clock was ahead: no wait of the schedule is that long."""
        for lane in lanes:
            count = 0
            try:
                while some := await self.store.webhook_posts.bring_forward(lane, self._latest(self.outside.now())):
                    count += some
            except Refused as refused:
                log.warning("posts put off by a wrong clock wait for the storage", reason=refused.text)
                return
            log.warning("posts were put off by a clock that was ahead, and are due now", posts=count)
            self._has_more(lane)

    def _hear(self) -> None:
        """Those who rang, and those whose time has come."""
        for account_id in self.store.webhook_posts.bell.take():
            webhook = self.store.webhooks.of(account_id)
            if webhook is not None:
                for trigger in Trigger:
                    self._has_more(Lane(webhook.id, trigger))
        now = self.outside.now()
        while self._later and self._later[0][0] <= now:
            self._has_more(heappop(self._later)[1])

    def _has_more(self, lane: Lane) -> None:
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = Line(lane, proven=self._is_proven(lane))
        line.perhaps_more = True
        self._turns.add(line)

    def _is_proven(self, lane: Lane) -> bool:
        """Whether the last that was heard of a receiver, be it before a restart, was good."""
        webhook = self.store.webhooks.by_id(lane.webhook_id)
        if webhook is None or webhook.last_success_at is None:
            return False
        return webhook.last_failure_at is None or webhook.last_failure_at < webhook.last_success_at

    def _note_later(self, lane: Lane, due_at: int | None) -> None:
        """Remember when something will be due, unless the next look is in time for it."""
        until_look = round((self._look_at - trio.current_time()) * 1_000_000)
        if due_at is not None and due_at <= self.outside.now() + until_look:
            heappush(self._later, (due_at, lane))

    def _seconds_until_look(self) -> float:
        seconds = self._look_at - trio.current_time()
        if self._later:
            seconds = min(seconds, (self._later[0][0] - self.outside.now()) / 1_000_000)
        if self._pause.on:
            seconds = min(seconds, PAUSE_LOOK)
        seconds = min(seconds, self._turns.wait(trio.current_time()))
        return max(0.0, min(SLEEP_LIMIT, seconds))

    # ---- whose turn it is

    def _begin(self, flights: trio.Nursery) -> None:
        """Let lines begin a post, each in its turn, while there are slots."""
        while (line := self._turns.next(trio.current_time())) is not None:
            # Else there is nothing; or it is back when one of its posts has ended, or its time has come.
            if self._fill(line) and self._may_begin(line):
                flights.start_soon(self._fly, line, *self._take_off(line))
                self._turns.add(line)

    def _fill(self, line: Line) -> bool:
        """Take more of what is due into hand; whether anything waits."""
        share = max(LEAST_IN_HAND, min(IN_HAND, ALL_IN_HAND // len(self._lines)))
        if line.perhaps_more and (room := line.room(share)) > 0:
            most = room + len(line.taken)
            due = self.store.webhook_posts.due(line.lane, most)
            line.take([post for post in due if post.id not in line.taken][:room])
            line.perhaps_more = len(due) >= most
            if not line.perhaps_more:
                self._note_later(line.lane, self.store.webhook_posts.next_due(line.lane))
        return bool(line.waiting)

    def _may_begin(self, line: Line) -> bool:
        wait = line.may_begin_at - trio.current_time()
        if wait > 0:
            heappush(self._later, (self.outside.now() + ceil(wait * 1_000_000), line.lane))
        return wait <= 0 and line.flying < line.allowed

    def _take_off(self, line: Line) -> tuple[DuePost, Slot]:
        now = trio.current_time()
        slot = self._turns.take_slot(line, now)
        return line.begin(now, self._pace), slot

    # ---- one post after another

    async def _fly(self, line: Line, post: DuePost, slot: Slot) -> None:
        """Post, and go on with the line's next one as long as nobody else waits for the slot."""
        while True:
            result = None
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                # What is posted should be recorded, or it will be posted again; it takes seconds at most.
                with trio.CancelScope(shield=True):
                    result = await self._attempt(line, post)
            finally:
                self._turns.give_back(slot)
                line.ended(post, result)
            if result is not None:
                self._recording.add(result)
            if self._pause.holds():
                break
            if not (self._turns.may_go_on(line) and self._fill(line) and self._may_begin(line)):
                break
            post, slot = self._take_off(line)
        self._turns.add(line)
        self.store.webhook_posts.bell.stir()

    async def _attempt(self, line: Line, post: DuePost) -> PostResult | None:
        """What came of posting; None when there is nobody to be posted to any more."""
        webhook = self.store.webhooks.by_id(post.lane.webhook_id)
        if webhook is None:
            line.drop()
            return None
        if not webhook.enabled:
            await self._give_up(line)
            return None
        began_at = self.outside.now()
        try:
            posted = await self._post(webhook, post, began_at)
        except Shortage as shortage:
            self._wait_for_room(line, shortage)
            return None
        except Exception as error:
            log.exception("a post failed", error, delivery_id=post.id, webhook_id=webhook.id)
            posted = Posted(None, b"", OWN_FAULT, 0)
        return judge(post, webhook.url, posted, began_at, self.outside.now(), self.delays)

    def _wait_for_room(self, line: Line, shortage: Shortage) -> None:
        """Put a line off that met a lack of this machine: that is no attempt."""
        now = trio.current_time()
        line.wait_until(now + SHORTAGE_PAUSE)
        if now >= self._short_at + SHORT_LOG_EVERY:
            log.warning("events wait: this machine is short", of=str(shortage))
        self._short_at = now

    async def _post(self, webhook: Webhook, post: DuePost, now: int) -> Posted:
        try:
            secret = self.secrets.open(webhook)
        except UnsealError as broken:
            log.warning("a signing secret cannot be read", webhook_id=webhook.id, reason=str(broken))
            return Posted(None, b"", BROKEN_SEAL, 0)
        signature = signature_header(secret, now // 1_000_000, post.body)
        return await self.poster.post(
            webhook.url, (CONTENT_TYPE, USER_AGENT, ("Service-Signature", signature)), post.body
        )

    async def _give_up(self, line: Line) -> None:
        """Nothing is posted to a disabled webhook: what is due fails. What is due later may find it enabled again."""
        line.drop()
        try:
            while await self.store.webhook_posts.give_up(line.lane, DISABLED):
                pass
        except Refused as refused:
            log.warning("posts to a disabled webhook wait for the storage", reason=refused.text)

    def _recorded(self, result: PostResult, on_disk: bool) -> None:
        """A result is on disk: if it is to be posted again, it will be found again. If it is not, never."""
        if not on_disk:
            return
        observe(result)
        lane = result.post.lane
        self._note_later(lane, result.next_attempt_at)
        line = self._lines[lane]
        line.taken.discard(result.post.id)
        if line.perhaps_more:
            self._turns.add(line)
        self.store.webhook_posts.bell.stir()


def _named(result: PostResult) -> dict[str, str]:
    return {"delivery_id": result.post.id}
