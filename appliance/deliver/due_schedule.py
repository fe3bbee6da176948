"""Queues scheduled messages when they are due, in small transactions with rests, so that other mail is not delayed."""

import trio

from appliance.concurrency.wake import STORAGE_PAUSE
from appliance.errors import StorageUnavailable
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

POLL = 1.0  # seconds between two looks at the schedule; a change of the clock delays a message no longer than this
REST = 0.005  # seconds between two transactions while more is due: 100,000 messages take less than a minute

log = get_logger("deliver")


async def release_scheduled(store: Store) -> None:
    while True:
        try:
            await trio.sleep(await _release_some(store))
        except StorageUnavailable as outage:
            log.warning("scheduled messages not queued: storage unavailable", reason=outage.text)
            await trio.sleep(STORAGE_PAUSE)


async def _release_some(store: Store) -> float:
    """Queue some messages that are due; return the seconds to rest."""
    scheduled = store.scheduled
    if not store.engine.holds_lease():
        return POLL
    due_at = await scheduled.next_due()
    if due_at is not None and due_at <= scheduled.now():
        taken = await scheduled.release_due()
    else:
        taken = await scheduled.release_held()
    if taken:
        return REST
    return POLL if due_at is None else min(POLL, max(REST, (due_at - scheduled.now()) / SECOND))
