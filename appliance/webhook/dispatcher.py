"""Posts due events: which receiver is next, and what happens to a post after each attempt.

All state is in the store, so a restart continues the schedule. In memory there is one queue for each lane (a webhook's
events, its pings, its replays) that has something due, with a few posts in it. Queues share the slots in turn, and
those whose receiver may hang have a part of them at most (`slots`), so that no receiver waits for another.
"""

from heapq import heapify, heappop, heappush
from math import ceil, inf

import trio

from appliance.concurrency.batch_writer import BatchWriter
from appliance.concurrency.wake import SLEEP_LIMIT
from appliance.errors import Refused
from appliance.model.webhooks import DuePost, Lane, PostResult, Trigger
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.outside import Outside
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.webhook.post import Attempts, observe
from appliance.webhook.receiver import DEAD_INTERVAL, POST_SLOTS, PostSlot, ReceiverQueue, Slots

POSTS_PER_QUEUE = 64  # in memory: waiting, in flight, or being recorded
POSTS_IN_MEMORY = 10_000  # of all queues together, as long as each may have POSTS_PER_QUEUE_AT_LEAST
POSTS_PER_QUEUE_AT_LEAST = 2
DEAD_AT_FULL_PACE = 2  # queues with a dead receiver; more of them share the posts that these may start
POLL_EVERY = 5.0  # seconds between two scans of all lanes
POLL_SHARE = 50  # a scan takes at most this fraction of the time: with many lanes there are fewer scans
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
        outside: Outside,
        attempts: Attempts,
        *,
        slots: int = POST_SLOTS,
        poll_every: float = POLL_EVERY,
        posts_in_memory: int = POSTS_IN_MEMORY,
    ) -> None:
        self.queues: dict[Lane, ReceiverQueue] = {}
        self._store, self._posts = store, store.webhook_posts
        self._outside = outside
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
                        await self._poll()
                        self._queue_due()
                        if not self._is_paused():
                            self._start_posts(posts)
                        await self._posts.wait_for_new(self._seconds_until_due())
            finally:
                self._recording.close()

    def _is_paused(self) -> bool:
        """Whether all mail is paused: a restored installation must not post events that were posted before."""
        now = trio.current_time()
        if now >= self._pause_poll_at:
            self._pause_poll_at = now + PAUSE_POLL_EVERY
            before, self._paused = self._paused, self._store.pools.paused() is not None
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
        lanes = self._posts.lanes()
        interval = max(self._poll_every, POLL_SHARE * (trio.current_time() - began))
        now, self._poll_at = self._outside.now(), began + interval
        self._later = [(first, lane) for lane, first, _ in lanes if first <= now + interval * 1_000_000]
        heapify(self._later)
        waiting = {lane for lane, _, _ in lanes}
        self.queues = {lane: queue for lane, queue in self.queues.items() if lane in waiting or not queue.idle}
        dead = sum(queue.dead for queue in self.queues.values())
        self._dead_interval = DEAD_INTERVAL * max(1.0, dead / DEAD_AT_FULL_PACE)
        latest = now + round(max(self._attempts.retry_delays) * 1_000_000) + RETRY_CLOCK_SLACK
        await self._bring_forward([lane for lane, _, last in lanes if last > latest], latest)

    async def _bring_forward(self, lanes: list[Lane], latest: int) -> None:
        """Make due what was put off while the clock was ahead: no retry delay is that long."""
        for lane in lanes:
            count = 0
            try:
                while some := await self._posts.bring_forward(lane, latest):
                    count += some
            except Refused as refused:
                log.warning("posts put off by a wrong clock wait for the storage", reason=refused.text)
                return
            log.warning("posts were put off by a clock that was ahead, and are due now", posts=count)
            self._queue(lane)

    def _queue_due(self) -> None:
        """Queue the lanes with new posts, and those whose next post has become due."""
        for account_id in self._posts.take_new():
            if (webhook := self._store.webhooks.of(account_id)) is not None:
                for trigger in Trigger:
                    self._queue(Lane(webhook.id, trigger))
        now = self._outside.now()
        while self._later and self._later[0][0] <= now:
            self._queue(heappop(self._later)[1])

    def _queue(self, lane: Lane) -> None:
        queue = self.queues.get(lane)
        if queue is None:
            webhook = self._store.webhooks.by_id(lane.webhook_id)
            succeeded_at, failed_at = (webhook.last_success_at, webhook.last_failure_at) if webhook else (None, None)
            # Proven: the last post to the receiver, be it before a restart, was a success.
            queue = self.queues[lane] = ReceiverQueue(lane, proven=(succeeded_at or 0) > (failed_at or 0))
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

    def _start_posts(self, posts: trio.Nursery) -> None:
        """Let the queues start posts in turn while there are slots."""
        while (queue := self._slots.next(trio.current_time())) is not None:
            # A queue that may not start now is added again when one of its posts ends or its time has come.
            if (started := self._start(queue)) is not None:
                posts.start_soon(self._run_posts, queue, *started)
                self._slots.add(queue)

    def _start(self, queue: ReceiverQueue) -> tuple[DuePost, PostSlot] | None:
        """The queue's next post and a slot for it; None when nothing waits or it may not start now."""
        self._load(queue)
        if not queue.waiting:
            return None
        now = trio.current_time()
        if (wait := queue.not_before - now) > 0:
            heappush(self._later, (self._outside.now() + ceil(wait * 1_000_000), queue.lane))
            return None
        if queue.in_flight >= queue.in_flight_limit:
            return None
        slot = self._slots.take(queue, now)
        return queue.start(now, self._dead_interval), slot

    def _load(self, queue: ReceiverQueue) -> None:
        limit = max(POSTS_PER_QUEUE_AT_LEAST, min(POSTS_PER_QUEUE, self._posts_in_memory // len(self.queues)))
        if queue.more_due and (room := queue.room(limit)) > 0:
            count, read_at = room + len(queue.loaded), self._outside.now()
            due = self._posts.due(queue.lane, count)
            queue.load([post for post in due if post.id not in queue.loaded][:room])
            queue.more_due = len(due) >= count
            if not queue.more_due:
                self._note_later(queue.lane, self._posts.next_due(queue.lane, after=read_at))

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
            if self._is_paused() or not self._slots.may_continue(queue):
                break
            if (started := self._start(queue)) is None:
                break
            post, slot = started
        self._slots.add(queue)
        self._posts.wake()

    async def _attempt(self, queue: ReceiverQueue, post: DuePost) -> PostResult | None:
        """The result of one attempt; None when there was none."""
        webhook = self._store.webhooks.by_id(post.lane.webhook_id)
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
        except Refused as refused:
            log.warning("posts to a disabled webhook wait for the storage", reason=refused.text)
        return None

    def _recorded(self, result: PostResult, on_disk: bool) -> None:
        """Unload a post whose result is on disk; one that cannot be recorded stays loaded, so is not repeated."""
        if not on_disk:
            return
        observe(result)
        lane = result.post.lane
        self._note_later(lane, result.next_attempt_at)
        queue = self.queues[lane]
        queue.loaded.discard(result.post.id)
        if queue.more_due:
            self._slots.add(queue)
        self._posts.wake()
