"""In charge of who is delivered when: takes due recipients, tries them, records what came of it."""

import trio

from appliance.concurrency.wake import SLEEP_LIMIT, Wake
from appliance.deliver.metrics import observe
from appliance.deliver.sandbox_replies import DEFERRAL, simulate
from appliance.errors import Refused
from appliance.outside import Outside
from appliance.store import Store
from appliance.telemetry.log import get_logger

BATCH = 64  # simulated recipients recorded in one transaction: a few milliseconds' work
STORAGE_PAUSE = 1.0  # seconds before trying again what the storage refused
LONGEST_WAIT = DEFERRAL + 10_000_000  # microseconds; nothing simulated is put off for longer by a clock that is right
PAUSE_LOOK = 1.0  # seconds between two looks whether a pause of all mail is over

log = get_logger("deliver")


async def run_sandbox(store: Store, outside: Outside, wake: Wake, attempts_allowed: int) -> None:
    """Simulate whatever is due, for ever. State is in the store, so a restart simply goes on."""
    while True:
        if store.pools.paused() is not None:
            await wake.wait(PAUSE_LOOK)
            continue
        try:
            worked = await deliver_due(store, outside, attempts_allowed) or await _bring_back(store, outside)
        except Refused as refused:
            # The storage takes no writes for now (disk full, or locked from outside): nothing was recorded, so the
            # same recipients are due again.
            log.warning("delivery waits for the storage", reason=refused.text)
            await trio.sleep(STORAGE_PAUSE)
            continue
        if not worked:
            await wake.wait(_seconds_until_due(store, outside))


async def deliver_due(store: Store, outside: Outside, attempts_allowed: int) -> int:
    """Simulate one batch of due recipients and record it; how many there were."""
    due = store.queue.due(simulated=True, most=BATCH)
    now = outside.now()
    if due:
        outcomes = [simulate(recipient, now, attempts_allowed) for recipient in due]
        await store.queue.record(outcomes)
        observe(outcomes)
    return len(due)


async def _bring_back(store: Store, outside: Outside) -> int:
    """Make due what was put off by a clock that was ahead; how many recipients that were."""
    return await store.queue_control.bring_forward(outside.now() + LONGEST_WAIT, simulated=True)


def _seconds_until_due(store: Store, outside: Outside) -> float:
    due_at = store.queue.next_due(simulated=True)
    return SLEEP_LIMIT if due_at is None else max(0.0, (due_at - outside.now()) / 1_000_000)
