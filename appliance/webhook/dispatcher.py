"""Posts due events: which receiver is next, how many posts it may have, and what happens to a post after each attempt.

All state is in the store, so a restart continues the schedule. In memory there is one queue for each lane (a webhook's
events, its pings, its replays) that has something due, with a few posts in it.

- A lane's posts are started in order. A receiver that answers well gets several at once. One that keeps failing gets
  one at a time, and after more failures only a few in a second: a long queue then costs next to nothing, and the first
  success lifts both limits.
- Queues share the slots in turn. A receiver that hangs holds its slot until the attempt times out, so troubled ones
  have a quarter of the slots at most, unknown ones half, and the rest is for those that answer. Receivers can begin to
  hang all at once, so a post that takes longer than LATE_AFTER gives its slot back and goes on without one; of such
  posts there are at most as many as there are slots.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import ceil, inf

import trio

from appliance.concurrency.batch_writer import STORAGE_PAUSE, BatchWriter
from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.webhooks import DuePost, Lane, PostResult, PostStatus
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.webhook.post import Attempts, observe

# ---- one receiver

POSTS_PER_RECEIVER = 8  # in flight at once
FAILING_AFTER = 3  # failures in a row; then one post at a time
DEAD_AFTER = 20  # failures in a row; then DEAD_INTERVAL between two posts
DEAD_INTERVAL = 0.1  # seconds
SLOW_MS = 1_000  # an answer that takes longer makes the receiver one of the troubled


class ReceiverHealth(StrEnum):
    """How the next post to a receiver is likely to go."""

    GOOD = "good"  # it has been answering in time
    UNKNOWN = "unknown"  # it has never answered in time
    TROUBLED = "troubled"  # it is slow, or keeps failing


@dataclass(slots=True, eq=False)
class ReceiverQueue:
    """The posts of one lane in memory, and what is known of its receiver."""

    lane: Lane
    proven: bool = False  # it has answered in time, in this process or by what the store says
    waiting: deque[DuePost] = field(default_factory=deque)
    loaded: set[str] = field(default_factory=set)  # ids of all posts in memory; for the store they are still due
    in_flight: int = 0
    failures: int = 0  # in a row
    slow: bool = False
    not_before: float = 0.0  # Trio's clock: no post is started earlier
    queued: bool = False  # it waits for a slot
    more_due: bool = True  # the store may have more posts that are due
    recorded: set[str] | None = None  # while due posts are being read: those that were recorded since

    @property
    def health(self) -> ReceiverHealth:
        if self.slow or self.failures >= FAILING_AFTER:
            return ReceiverHealth.TROUBLED
        return ReceiverHealth.GOOD if self.proven else ReceiverHealth.UNKNOWN

    @property
    def dead(self) -> bool:
        return self.failures >= DEAD_AFTER

    @property
    def idle(self) -> bool:
        """Whether none of its posts are in memory."""
        return not self.loaded and not self.in_flight and not self.queued

    @property
    def in_flight_limit(self) -> int:
        """How many posts may be in flight at once; one, until an answer has come in time."""
        return POSTS_PER_RECEIVER if self.proven and self.failures < FAILING_AFTER else 1

    def room(self, limit: int) -> int:
        """How many more posts may be loaded, with so many in memory at most; none while enough of them wait."""
        return 0 if len(self.waiting) > limit // 8 else max(0, limit - len(self.loaded))

    def load(self, posts: list[DuePost]) -> None:
        self.waiting.extend(posts)
        self.loaded.update([post.id for post in posts])

    def unload(self, post_id: str) -> None:
        """Forget a post whose result is on disk."""
        self.loaded.discard(post_id)
        if self.recorded is not None:
            self.recorded.add(post_id)

    def start(self, now: float, dead_interval: float = DEAD_INTERVAL) -> DuePost:
        """The next post, which is in flight from now on."""
        self.in_flight += 1
        if self.dead:
            self.not_before = now + dead_interval
        return self.waiting.popleft()

    def finish(self, post: DuePost, result: PostResult | None) -> None:
        """End a post in flight. It stays loaded until its result is recorded; without one it was not attempted."""
        self.in_flight -= 1
        if result is None:
            self.loaded.discard(post.id)
        else:
            self.failures = 0 if result.status is PostStatus.SUCCESS else self.failures + 1
            self.slow = result.duration_ms > SLOW_MS
            self.proven = self.proven or (self.failures == 0 and not self.slow)

    def drop(self) -> None:
        """Forget the waiting posts, and that the store may have more."""
        self.loaded.difference_update([post.id for post in self.waiting])
        self.waiting.clear()
        self.more_due = False


# ---- slots of all receivers

POST_SLOTS = 200  # posts in flight to all receivers together; and as many that are late
SHARE_OF_SLOTS = {ReceiverHealth.GOOD: 1, ReceiverHealth.UNKNOWN: 2, ReceiverHealth.TROUBLED: 4}  # one slot in so many
LATE_AFTER = 1.0  # seconds within which a post should be answered


@dataclass(slots=True, eq=False)
class PostSlot:
    health: ReceiverHealth  # of its receiver, when the post was started
    since: float  # Trio's clock
    late: bool = False  # the slot was given back


@dataclass(slots=True)
class Slots:
    """The queues that wait for a slot, by the health of their receivers, and the slots in use by each."""

    count: int = POST_SLOTS
    _waiting: dict[ReceiverHealth, deque[ReceiverQueue]] = field(
        default_factory=lambda: {each: deque() for each in ReceiverHealth}
    )
    _in_use: dict[ReceiverHealth, int] = field(default_factory=lambda: dict.fromkeys(ReceiverHealth, 0))
    _in_time: dict[PostSlot, None] = field(default_factory=dict)  # slots in use, the oldest first
    _late: int = 0  # posts without a slot
    _first: ReceiverHealth = ReceiverHealth.UNKNOWN  # these two alternate
    _second: ReceiverHealth = ReceiverHealth.GOOD

    def add(self, queue: ReceiverQueue) -> None:
        """Let a queue wait for a slot, behind the others of its health."""
        if not queue.queued:
            queue.queued = True
            self._waiting[queue.health].append(queue)

    def next(self, now: float = 0.0) -> ReceiverQueue | None:
        """The next queue, if there is a slot for it; troubled ones come after all others."""
        while self._in_time and self._late < self.count:
            oldest = next(iter(self._in_time))
            if oldest.since + LATE_AFTER > now:
                break
            self._free(oldest)
            oldest.late = True
            self._late += 1
        self._first, self._second = self._second, self._first
        for health in (self._first, self._second, ReceiverHealth.TROUBLED):
            waiting = self._waiting[health]
            while waiting and self.has_free(health):
                queue = waiting.popleft()
                if queue.health is health:
                    queue.queued = False
                    return queue
                self._waiting[queue.health].append(queue)  # its health changed while it waited
        return None

    def take(self, queue: ReceiverQueue, now: float = 0.0) -> PostSlot:
        slot = PostSlot(queue.health, now)
        self._in_use[slot.health] += 1
        self._in_time[slot] = None
        return slot

    def give_back(self, slot: PostSlot) -> None:
        if slot.late:
            self._late -= 1
        else:
            self._free(slot)

    def seconds_until_late(self, now: float) -> float:
        """Seconds until a slot may become free because its post is late; infinite when no queue waits for one."""
        if not any(self._waiting.values()) or not self._in_time or self._late >= self.count:
            return inf
        return next(iter(self._in_time)).since + LATE_AFTER - now

    def may_continue(self, queue: ReceiverQueue) -> bool:
        """Whether a queue may start another post without waiting: there is a slot that no other queue waits for."""
        health = queue.health
        before = ReceiverHealth if health is ReceiverHealth.TROUBLED else (ReceiverHealth.GOOD, ReceiverHealth.UNKNOWN)
        wanted = any(self._waiting[other] and self.has_free(other) for other in before)
        return self.has_free(health) and (not wanted or self.has_free(health, 2))

    def _free(self, slot: PostSlot) -> None:
        del self._in_time[slot]
        self._in_use[slot.health] -= 1

    def has_free(self, health: ReceiverHealth, count: int = 1) -> bool:
        """Whether so many slots are free for receivers of this health."""
        limit = max(1, self.count // SHARE_OF_SLOTS[health])
        return sum(self._in_use.values()) + count <= self.count and self._in_use[health] + count <= limit


# ---- the dispatcher

POSTS_PER_QUEUE = 64  # in memory: waiting, in flight, or being recorded
POSTS_IN_MEMORY = 10_000  # of all queues together, as long as each may have POSTS_PER_QUEUE_AT_LEAST
POSTS_PER_QUEUE_AT_LEAST = 2
DEAD_AT_FULL_PACE = 2  # queues with a dead receiver; more of them share the posts that these may start
POLL_EVERY = 5.0  # seconds between two scans of all lanes
POLL_SHARE = 50  # a scan takes at most this fraction of the time: with many lanes there are fewer scans
NEW_POSTS_EVERY = 0.02  # seconds between two looks at what is new while posts are being started
PAUSE_POLL_EVERY = 1.0  # seconds between two reads of whether all mail is paused
SHORTAGE_LOG_EVERY = 60.0  # seconds without a shortage after which the next one is logged again
RETRY_CLOCK_SLACK = 60_000_000  # microseconds; what waits longer than any retry delay was put off by a wrong clock

DISABLED = "the webhook was disabled before this was delivered"

log = get_logger("webhook")


class Dispatcher:
    """The loop that starts posts, and the queues of those that are due."""

    def __init__(
        self,
        store: Store,
        env: Environment,
        attempts: Attempts,
        *,
        slots: int = POST_SLOTS,
        poll_every: float = POLL_EVERY,
        posts_in_memory: int = POSTS_IN_MEMORY,
    ) -> None:
        self.queues: dict[Lane, ReceiverQueue] = {}
        self._store, self._posts = store, store.webhook_posts
        self._outside = env
        self._attempts = attempts
        self._poll_every = poll_every
        self._posts_in_memory = posts_in_memory
        self._recording = BatchWriter("webhook", self._posts.record, lambda result: {"delivery_id": result.post.id})
        self._slots = Slots(slots)
        self._paused = False  # all mail
        self._pause_poll_at = -inf  # Trio's clock
        self._later: list[tuple[int, Lane]] = []  # a heap: what will be due before the next scan
        self._poll_at = 0.0  # Trio's clock
        self._shortage_at = -inf  # Trio's clock: when the last shortage was met
        self._dead_interval = DEAD_INTERVAL  # seconds between two posts to a dead receiver

    async def run(self) -> None:
        """Post what is due until cancelled; then finish the posts in flight and record them."""
        async with trio.open_nursery() as recording:
            recording.start_soon(self._recording.run, self._recorded)
            try:
                async with trio.open_nursery() as posts:
                    while True:
                        try:
                            await self._poll()
                            await self._queue_due()
                            if not await self._is_paused():
                                await self._start_posts(posts)
                        except StorageUnavailable as refused:  # the storage is away; a scan finds what was being queued
                            log.warning("events wait for the storage", reason=refused.text)
                            self._poll_at = 0.0
                            await trio.sleep(STORAGE_PAUSE)
                        await self._posts.wait_for_new(self._seconds_until_due())
            finally:
                self._recording.close()

    async def _is_paused(self) -> bool:
        """Whether all mail is paused: a restored installation must not post events that were posted before."""
        if not self._store.engine.holds_lease():  # another node may be posting these
            return True
        now = trio.current_time()
        if now >= self._pause_poll_at:
            try:
                paused = await self._store.pools.paused() is not None
            except StorageUnavailable:  # the storage is away, and nothing could be recorded
                return True
            self._pause_poll_at = now + PAUSE_POLL_EVERY
            before, self._paused = self._paused, paused
            if self._paused and not before:
                log.warning("no events are posted while all mail is paused: `appliance resume` lets them go")
            elif before and not self._paused:
                log.info("events are posted again")
        return self._paused

    # ---- which lanes have something due

    async def _poll(self) -> None:
        """Scan all lanes now and then: for what will be due soon, and for what another process has written."""
        began = trio.current_time()
        if began < self._poll_at:
            return
        lanes, seconds = await self._posts.lanes()
        interval = max(self._poll_every, POLL_SHARE * seconds)
        now, self._poll_at = self._outside.now(), began + interval
        soon = [each for each in lanes if each.first_due <= now + interval * 1_000_000]
        self._later = [(each.first_due, each.lane) for each in soon]
        heapify(self._later)
        waiting = {each.lane for each in lanes}
        self.queues = {lane: queue for lane, queue in self.queues.items() if lane in waiting or not queue.idle}
        dead = sum(queue.dead for queue in self.queues.values())
        self._dead_interval = DEAD_INTERVAL * max(1.0, dead / DEAD_AT_FULL_PACE)
        latest = now + round(max(self._attempts.retry_delays) * 1_000_000) + RETRY_CLOCK_SLACK
        put_off = [each for each in lanes if each.last_due > latest]
        for each in (*soon, *put_off):
            self._know(each.lane, proven=each.proven)
        await self._bring_forward([each.lane for each in put_off], latest)

    async def _bring_forward(self, lanes: list[Lane], latest: int) -> None:
        """Make due what was put off while the clock was ahead: no retry delay is that long."""
        for lane in lanes:
            count = 0
            try:
                while some := await self._posts.bring_forward(lane, latest):
                    count += some
            except StorageUnavailable as refused:
                log.warning("posts put off by a wrong clock wait for the storage", reason=refused.text)
                return
            log.warning("posts were put off by a clock that was ahead, and are due now", posts=count)
            self._queue(lane)

    async def _queue_due(self) -> None:
        """Queue the lanes with new posts, and those whose next post has become due."""
        if accounts := self._posts.take_new():
            for lane, proven in await self._posts.lanes_of(accounts):
                self._know(lane, proven=proven)
                self._queue(lane)
        now = self._outside.now()
        while self._later and self._later[0][0] <= now:
            self._queue(heappop(self._later)[1])

    def _know(self, lane: Lane, *, proven: bool = False) -> None:
        if lane not in self.queues:
            self.queues[lane] = ReceiverQueue(lane, proven=proven)

    def _queue(self, lane: Lane) -> None:
        self._know(lane)
        queue = self.queues[lane]
        queue.more_due = True
        self._slots.add(queue)

    def _note_later(self, lane: Lane, due_at: int | None) -> None:
        """Remember when something will be due, unless the next scan is in time for it."""
        until_poll = round((self._poll_at - trio.current_time()) * 1_000_000)
        if due_at is not None and due_at <= self._outside.now() + until_poll:
            heappush(self._later, (due_at, lane))

    def _seconds_until_due(self) -> float:
        now = trio.current_time()
        seconds = min(self._poll_at - now, self._slots.seconds_until_late(now))
        if self._later:
            seconds = min(seconds, (self._later[0][0] - self._outside.now()) / 1_000_000)
        if self._paused:
            seconds = min(seconds, PAUSE_POLL_EVERY)
        return max(0.0, min(SLEEP_LIMIT, seconds))

    # ---- which queue is next

    async def _start_posts(self, posts: trio.Nursery) -> None:
        """Let the queues start posts in turn while there are slots, until the next scan at most."""
        looked_at = trio.current_time()
        while (queue := self._slots.next(trio.current_time())) is not None:
            # A queue that may not start now is added again when one of its posts ends or its time has come.
            if (started := await self._start(queue)) is not None:
                posts.start_soon(self._run_posts, queue, *started)
                self._slots.add(queue)
            if trio.current_time() >= self._poll_at or await self._is_paused():
                return
            if self._posts.has_new and trio.current_time() >= looked_at + NEW_POSTS_EVERY:
                await self._queue_due()  # of a receiver that others in their turn must not keep waiting
                looked_at = trio.current_time()

    async def _start(self, queue: ReceiverQueue) -> tuple[DuePost, PostSlot] | None:
        """The queue's next post and a slot for it; None when nothing waits or it may not start now."""
        await self._load(queue)
        if not queue.waiting or self.queues.get(queue.lane) is not queue:  # a scan may have forgotten it meanwhile
            return None
        now = trio.current_time()
        if (wait := queue.not_before - now) > 0:
            heappush(self._later, (self._outside.now() + ceil(wait * 1_000_000), queue.lane))
            return None
        if queue.in_flight >= queue.in_flight_limit:
            return None
        if not self._slots.has_free(queue.health):  # any more
            self._slots.add(queue)
            return None
        slot = self._slots.take(queue, now)
        return queue.start(now, self._dead_interval), slot

    async def _load(self, queue: ReceiverQueue) -> None:
        """Read what is due, by one task at a time: what was recorded since the read began may be in it as still due."""
        limit = max(POSTS_PER_QUEUE_AT_LEAST, min(POSTS_PER_QUEUE, self._posts_in_memory // max(1, len(self.queues))))
        if queue.recorded is not None or not queue.more_due or (room := queue.room(limit)) <= 0:
            return
        recorded: set[str] = set()
        queue.recorded = recorded
        try:
            count = room + len(queue.loaded)
            queue.more_due = False
            due, next_due = await self._posts.due(queue.lane, count)
            new = [post for post in due if post.id not in queue.loaded and post.id not in recorded]
            queue.load(new[:room])
            queue.more_due = queue.more_due or len(due) >= count
            if not queue.more_due:
                self._note_later(queue.lane, next_due)
        except StorageUnavailable:  # the storage is away
            queue.more_due, queue.not_before = True, trio.current_time() + STORAGE_PAUSE
        finally:
            queue.recorded = None

    # ---- one post after another

    async def _run_posts(self, queue: ReceiverQueue, post: DuePost, slot: PostSlot) -> None:
        """Attempt a post, then the queue's next ones as long as no other queue waits for the slot."""
        while True:
            result = None
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                # A post that is not recorded would be repeated, so it is finished; it takes seconds at most.
                with trio.CancelScope(shield=True):
                    result = await self._attempt(queue, post)
            finally:
                self._slots.give_back(slot)
                queue.finish(post, result)
            if result is not None:
                self._recording.add(result)
            if await self._is_paused() or not self._slots.may_continue(queue):
                break
            if (started := await self._start(queue)) is None:
                break
            post, slot = started
        self._slots.add(queue)
        self._posts.wake()

    async def _attempt(self, queue: ReceiverQueue, post: DuePost) -> PostResult | None:
        """The result of one attempt; None when there was none."""
        try:
            webhook = await self._store.webhooks.by_id(post.lane.webhook_id)
        except StorageUnavailable:  # the storage is away
            queue.more_due, queue.not_before = True, trio.current_time() + STORAGE_PAUSE
            return None
        if webhook is not None and webhook.enabled:
            try:
                return await self._attempts.make(webhook, post)
            except Shortage as shortage:
                now = trio.current_time()
                queue.not_before, queue.more_due = now + SHORTAGE_PAUSE, True
                if now >= self._shortage_at + SHORTAGE_LOG_EVERY:
                    log.warning("events wait: this machine is short", of=str(shortage))
                self._shortage_at = now
            return None
        queue.drop()
        try:  # fail what is due of a disabled webhook; what is due later may find it enabled again
            while webhook is not None and await self._posts.give_up(queue.lane, DISABLED):
                pass
        except StorageUnavailable as refused:
            log.warning("posts to a disabled webhook wait for the storage", reason=refused.text)
        return None

    def _recorded(self, results: list[PostResult], on_disk: bool) -> None:
        """Unload posts whose results are on disk; one that cannot be recorded stays loaded, so is not repeated."""
        if not on_disk:
            return
        for result in results:
            observe(result)
            lane = result.post.lane
            self._note_later(lane, result.next_attempt_at)
            queue = self.queues[lane]
            queue.unload(result.post.id)
            if queue.more_due:
                self._slots.add(queue)
        self._posts.wake()
