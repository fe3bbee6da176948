"""Posts due events to webhooks: reads them from the store, starts posts while there are slots, and records the results.

All state is in the store, so a restart continues the schedule. In memory there is one queue per lane (a webhook's
events, pings or replays) with due posts, holding a few of them. `receivers.py` decides which queue is next.
"""

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush
from math import ceil, inf
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from appliance.concurrency.wake import RECORDING_REST, SLEEP_LIMIT, STORAGE_PAUSE, BatchWriter
from appliance.config.settings import Config
from appliance.config.values import is_address
from appliance.dns.resolver import DnsResolver, Resolver
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.keys.secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, Lane, PostResult
from appliance.net.address_policy import Address
from appliance.net.dial import SHORTAGE_PAUSE, Shortage
from appliance.net.local_addresses import LocalAddresses
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.tls.certificate import https_context
from appliance.webhook.post import Attempts, Poster, observe
from appliance.webhook.received_posts import ReceivedPosts
from appliance.webhook.receivers import DEAD_INTERVAL, POST_SLOTS, PostSlot, ReceiverQueue, Slots

POSTS_PER_QUEUE = 64  # in memory: waiting, in flight, or being recorded
POSTS_IN_MEMORY = 10_000  # of all queues, as long as each may have POSTS_PER_QUEUE_AT_LEAST
POSTS_PER_QUEUE_AT_LEAST = 2
DEAD_AT_FULL_PACE = 2  # queues with a dead receiver; more of them share the pace of two
POLL_EVERY = 5.0  # seconds between two scans of all lanes
POLL_SHARE = 50  # scans take at most one fiftieth of the time: with many lanes there are fewer scans
NEW_POSTS_EVERY = 0.02  # seconds between two reads of new posts while posts are being started
PAUSE_POLL_EVERY = 1.0  # seconds between two reads of the pause of all mail
UNREADABLE_PAUSE = 60.0  # seconds until a webhook whose row cannot be parsed is read again
SHORTAGE_LOG_EVERY = 60.0  # seconds without a shortage after which the next one is logged again
RETRY_CLOCK_SLACK = 60_000_000  # microseconds; a post due later than any retry was postponed by a wrong clock

DISABLED = "the webhook was disabled before this was delivered"

log = get_logger("webhook")


class Dispatcher:
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
        self._env = env
        self._attempts = attempts
        self._poll_every = poll_every
        self._posts_in_memory = posts_in_memory
        self._recording = BatchWriter(
            "webhook", self._posts.record, lambda result: {"delivery_id": result.post.id}, RECORDING_REST
        )
        self._slots = Slots(slots)
        self._is_paused = False  # all mail
        self._pause_poll_at = -inf  # Trio's clock
        self._later: list[tuple[int, Lane]] = []  # a heap: when lanes will have a due post, up to the next scan
        self._poll_at = 0.0  # Trio's clock
        self._shortage_at = -inf  # Trio's clock: the last shortage
        self._dead_interval = DEAD_INTERVAL  # seconds between two posts to a dead receiver

    async def run(self) -> None:
        """Post due events until cancelled; then finish the posts in flight and record them."""
        async with trio.open_nursery() as recording:
            recording.start_soon(self._recording.run, self._recorded)
            try:
                async with trio.open_nursery() as posts:
                    while True:
                        try:
                            await self._poll()
                            await self._queue_due()
                            if not await self._check_pause():
                                await self._start_posts(posts)
                        except StorageUnavailable as outage:
                            log.warning("webhook posts paused: storage unavailable", reason=outage.text)
                            self._poll_at = 0.0  # the scan queues lanes that were being queued
                            await trio.sleep(STORAGE_PAUSE)
                        await self._posts.wait_for_new(self._seconds_until_due())
            finally:
                self._recording.close()

    async def _check_pause(self) -> bool:
        """Whether all mail is paused: a restored installation must not post events a second time."""
        if not self._store.engine.holds_lease():  # another node may be posting these events
            return True
        now = trio.current_time()
        if now >= self._pause_poll_at:
            try:
                paused = await self._store.pools.paused() is not None
            except StorageUnavailable:  # no result could be recorded
                return True
            self._pause_poll_at = now + PAUSE_POLL_EVERY
            was_paused, self._is_paused = self._is_paused, paused
            if paused and not was_paused:
                log.warning("webhook posts paused with all mail; run `appliance resume` to continue")
            elif was_paused and not paused:
                log.info("webhook posts resumed")
        return self._is_paused

    # ---- lanes with due posts

    async def _poll(self) -> None:
        """Scan all lanes at intervals, for posts due soon and for posts of other processes."""
        started = trio.current_time()
        if started < self._poll_at:
            return
        lanes, seconds = await self._posts.lanes()
        interval = max(self._poll_every, POLL_SHARE * seconds)
        now, self._poll_at = self._env.now(), started + interval
        soon = [row for row in lanes if row.first_due <= now + interval * 1_000_000]
        self._later = [(row.first_due, row.lane) for row in soon]
        heapify(self._later)
        known = {row.lane for row in lanes}
        self.queues = {lane: queue for lane, queue in self.queues.items() if lane in known or not queue.idle}
        dead = sum(queue.dead for queue in self.queues.values())
        self._dead_interval = DEAD_INTERVAL * max(1.0, dead / DEAD_AT_FULL_PACE)
        latest = now + round(max(self._attempts.retry_delays) * 1_000_000) + RETRY_CLOCK_SLACK
        postponed = [row for row in lanes if row.last_due > latest]
        for row in (*soon, *postponed):
            self._know(row.lane, proven=row.proven)
        await self._bring_forward([row.lane for row in postponed], latest)

    async def _bring_forward(self, lanes: list[Lane], latest: int) -> None:
        """Make posts due that a fast clock postponed: no retry delay is that long."""
        for lane in lanes:
            count = 0
            try:
                while batch := await self._posts.bring_forward(lane, latest):
                    count += batch
            except StorageUnavailable as outage:
                log.warning("postponed webhook posts not checked: storage unavailable", reason=outage.text)
                return
            log.warning("webhook posts postponed by a fast clock are due now", posts=count)
            self._queue(lane)

    async def _queue_due(self) -> None:
        if accounts := self._posts.take_new():
            for lane, proven in await self._posts.lanes_of(accounts):
                self._queue(lane, proven=proven)
        now = self._env.now()
        while self._later and self._later[0][0] <= now:
            self._queue(heappop(self._later)[1])

    def _know(self, lane: Lane, *, proven: bool = False) -> ReceiverQueue:
        return self.queues.get(lane) or self.queues.setdefault(lane, ReceiverQueue(lane, proven=proven))

    def _queue(self, lane: Lane, *, proven: bool = False) -> None:
        queue = self._know(lane, proven=proven)
        queue.more_due = True
        self._slots.add(queue)

    def _note_later(self, lane: Lane, due_at: int | None) -> None:
        until_poll = round((self._poll_at - trio.current_time()) * 1_000_000)
        if due_at is not None and due_at <= self._env.now() + until_poll:
            heappush(self._later, (due_at, lane))

    def _seconds_until_due(self) -> float:
        now = trio.current_time()
        seconds = min(self._poll_at - now, self._slots.seconds_until_late(now))
        if self._later:
            seconds = min(seconds, (self._later[0][0] - self._env.now()) / 1_000_000)
        if self._is_paused:
            seconds = min(seconds, PAUSE_POLL_EVERY)
        return max(0.0, min(SLEEP_LIMIT, seconds))

    # ---- starting posts

    async def _start_posts(self, posts: trio.Nursery) -> None:
        """Start posts of the queues in turn while there are slots, until the next scan at most."""
        read_at = trio.current_time()
        while (queue := self._slots.next(trio.current_time())) is not None:
            # A queue that may not start now is added again when one of its posts ends, or at its `not_before`.
            if (started := await self._start(queue)) is not None:
                posts.start_soon(self._run_posts, queue, *started)
                self._slots.add(queue)
            if trio.current_time() >= self._poll_at or await self._check_pause():
                return
            if self._posts.has_new and trio.current_time() >= read_at + NEW_POSTS_EVERY:
                await self._queue_due()  # new posts must not wait until all queues had their turn
                read_at = trio.current_time()

    async def _start(self, queue: ReceiverQueue) -> tuple[DuePost, PostSlot] | None:
        """The queue's next post and a slot for it; None if it has no post, or may not start one now."""
        await self._load(queue)
        if not queue.waiting or self.queues.get(queue.lane) is not queue:  # a scan may have dropped the queue
            return None
        now = trio.current_time()
        if (wait := queue.not_before - now) > 0:
            heappush(self._later, (self._env.now() + ceil(wait * 1_000_000), queue.lane))
            return None
        if queue.in_flight >= queue.in_flight_limit:
            return None
        if not self._slots.has_free(queue.health):
            self._slots.add(queue)
            return None
        slot = self._slots.take(queue, now)
        return queue.start(now, self._dead_interval), slot

    async def _load(self, queue: ReceiverQueue) -> None:
        """Read due posts, one task at a time. A read may return posts that were recorded since it began: skip them."""
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
        except StorageUnavailable:
            queue.pause(trio.current_time() + STORAGE_PAUSE)
        finally:
            queue.recorded = None

    # ---- running posts

    async def _run_posts(self, queue: ReceiverQueue, post: DuePost, slot: PostSlot) -> None:
        """Attempt a post, then the queue's next ones while no other queue waits for the slot."""
        while True:
            result = None
            try:
                await trio.lowlevel.checkpoint_if_cancelled()
                # An unrecorded post would be repeated, so it is finished; that takes seconds at most.
                with trio.CancelScope(shield=True):
                    result = await self._attempt(queue, post)
            finally:
                self._slots.give_back(slot)
                queue.finish(post, result)
            if result is not None:
                self._recording.add(result)
            if await self._check_pause() or not self._slots.may_continue(queue):
                break
            if (started := await self._start(queue)) is None:
                break
            post, slot = started
        self._slots.add(queue)
        self._posts.wake()

    async def _attempt(self, queue: ReceiverQueue, post: DuePost) -> PostResult | None:
        try:
            webhook = await self._store.webhooks.by_id(post.lane.webhook_id)
        except StorageUnavailable:
            queue.pause(trio.current_time() + STORAGE_PAUSE)
            return None
        except Exception as error:  # a stored value that this version cannot parse must not stop other webhooks
            log.exception("webhook skipped: unreadable settings", error, webhook_id=post.lane.webhook_id)
            queue.pause(trio.current_time() + UNREADABLE_PAUSE)
            return None
        if webhook is not None and webhook.enabled:
            try:
                return await self._attempts.make(webhook, post)
            except Shortage as shortage:
                now = trio.current_time()
                queue.pause(now + SHORTAGE_PAUSE)
                if now >= self._shortage_at + SHORTAGE_LOG_EVERY:
                    log.warning("webhook posts paused: out of local resources", of=str(shortage))
                self._shortage_at = now
            return None
        queue.drop()
        try:  # fail the due posts of a disabled webhook; it may be enabled again before later ones are due
            while webhook is not None and await self._posts.give_up(queue.lane, DISABLED):
                pass
        except StorageUnavailable as outage:
            log.warning("posts of a disabled webhook not failed: storage unavailable", reason=outage.text)
        return None

    def _recorded(self, results: list[PostResult], on_disk: bool) -> None:
        """Unload posts whose results are on disk. One that cannot be recorded stays loaded, so it is not repeated."""
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


# ---- the service

CLOSE_IDLE_EVERY = 5.0  # seconds between two checks for idle connections


class WebhookService(Struct, frozen=True):
    poster: Poster
    dispatcher: Dispatcher

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.dispatcher.run)
                while True:
                    await trio.sleep(CLOSE_IDLE_EVERY)
                    await self.poster.idle.close_idle()
        finally:
            with trio.CancelScope(shield=True):
                await self.poster.idle.aclose()


def build(config: Config, env: Environment, store: Store, key: bytes) -> WebhookService:
    others = store.engine.others
    poster = build_poster(config, DnsResolver(config.dns.resolvers), env, lambda: others().addresses)
    return WebhookService(poster, Dispatcher(store, env, build_attempts(config, env, store, key, poster)))


def build_attempts(config: Config, env: Environment, store: Store, key: bytes, poster: Poster) -> Attempts:
    received = ReceivedPosts(store.received.mime)
    return Attempts(poster.post, WebhookSecrets(key, env), env, config.webhooks.retry_delays, received)


def build_poster(
    config: Config, resolver: Resolver, env: Environment, others: Callable[[], Container[Address]] = frozenset
) -> Poster:
    """Build the poster; raises ConfigError if `webhooks.ca_file` cannot be used.

    `others` returns the addresses of other nodes, which are refused like this machine's own.
    """
    return Poster(
        resolver,
        env.dial,
        https_context(config, "webhooks.ca_file", config.webhooks.ca_file),
        ports=frozenset(config.webhooks.ports),
        own_names=own_names(config),
        allowed=config.webhooks.allow_networks,
        own=LocalAddresses(frozenset(config.delivery.own_addresses), others),
        plain_loopback=config.local_webhooks,
    )


def own_names(config: Config) -> frozenset[str]:
    """The names of this service, and `*.domain` for all names below `server.own_domains`.

    Names below the host name or the base URL's host are allowed: `hooks.example.com` may belong to a customer while
    this service is at `example.com`. An address in the base URL is not a name: `webhooks.allow_networks` decides.
    """
    names = {config.server.hostname, urlsplit(config.http.base_url).hostname or ""}
    names = {name for name in names if not is_address(name)}
    domains = config.server.own_domains
    return frozenset({*names, *domains, *(f"*.{domain}" for domain in domains)} - {""})
