"""Runs the periodic work of delivery: publishes its state, closes idle connections, detects a wrong clock.

No mail depends on it, so an error is logged and delivery continues.
"""

import trio
from msgspec import Struct

from appliance.concurrency.wake import ClockJumps
from appliance.deliver.attempt import Deliverer
from appliance.deliver.in_flight import InFlight
from appliance.deliver.pending import Pending
from appliance.errors import StorageUnavailable
from appliance.store.new_mail import NewMail
from appliance.telemetry.log import get_logger

BUG_PAUSE = 10.0  # seconds after an error that is logged with its traceback and may repeat
NOT_PUBLISHED = "delivery state not published"

log = get_logger("deliver")


class Intervals(Struct, frozen=True):
    """Seconds between two runs of periodic work."""

    poll_all: float = 1.0  # polls for all due mail, while mail was left in the store
    publish: float = 1.0  # the state of pools and sessions, for commands in other processes
    close_idle: float = 1.0  # connections
    save_warmup: float = 1.0  # after a crash, the mail of this time may be sent twice
    check_clock: float = 600.0  # for mail that a wrong clock postponed


class Upkeep(Struct, frozen=True):
    deliverer: Deliverer
    new_mail: NewMail
    pending: Pending
    in_flight: InFlight
    intervals: Intervals

    def start(self, tasks: trio.Nursery) -> None:
        for work in (self._publish, self._close_idle, self._check_clock, self.deliverer.watch.run):
            tasks.start_soon(work)
        tasks.start_soon(self.deliverer.warmup.keep_saved, self.intervals.save_warmup)

    async def stop(self) -> None:
        with trio.CancelScope(shield=True):
            await self.deliverer.warmup.save()
            try:
                await self.deliverer.sources.publish()
                await self.deliverer.limiters.publish(self.pending, [])
            except Exception:
                log.exception(NOT_PUBLISHED)

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(self.intervals.close_idle)
            await self.deliverer.connections.close_idle()

    async def _publish(self) -> None:
        """Publish the state of delivery for commands in other processes, and notice the commands' changes."""
        version: int | None = None
        store, limiters, sources = self.deliverer.store, self.deliverer.limiters, self.deliverer.sources
        while True:
            pause = self.intervals.publish
            try:
                newer = await store.queue_control.version()
                if version not in (None, newer):
                    self.new_mail.request_poll()
                    store.new_simulated_mail.set()
                await sources.refresh(read=version != newer)
                version = newer
                waiting = await self.in_flight.waiting_accounts(list(self.pending.queues.values()))
                await limiters.publish(self.pending, self.in_flight.sessions(), waiting)
                await sources.publish()
            except StorageUnavailable:
                pass  # the next run publishes it
            except Exception:
                log.exception(NOT_PUBLISHED)
                pause = BUG_PAUSE
            await trio.sleep(pause)

    async def _check_clock(self) -> None:
        """Make mail due that a fast clock postponed: no delay of the retry schedule is that long."""
        env, queue_control = self.deliverer.env, self.deliverer.store.queue_control
        clock = ClockJumps(env)
        while True:
            try:
                if count := await queue_control.bring_forward(env.now() + self.deliverer.retries.longest):
                    log.warning("retries postponed by a fast clock are due now", recipients=count)
                    self.new_mail.request_poll()
            except StorageUnavailable as outage:
                log.warning("postponed retries not checked: storage unavailable", reason=outage.text)
            if seconds := await clock.wait(self.intervals.check_clock):
                log.warning("the clock was set", seconds=round(seconds))
                self.new_mail.request_poll()
