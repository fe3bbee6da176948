"""Simulates the outcomes of sandbox mail: the local part of a recipient selects its outcome, and no mail is sent."""

from collections.abc import Callable, Sequence

import trio

from appliance.concurrency.wake import SLEEP_LIMIT, STORAGE_PAUSE, Wake
from appliance.deliver.observation import observe
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus
from appliance.store import Store
from appliance.telemetry.log import get_logger

DEFERRAL = 2_000_000  # microseconds until a simulated deferral is tried again
SIMULATED_ACCEPTANCE = (250, "250 2.0.0 OK: accepted by the sandbox")
UNKNOWN_USER = (550, "550 5.1.1 User unknown (simulated by the sandbox)")
TRY_LATER = (451, "451 4.3.0 Try again later (simulated by the sandbox)")
_SIMULATED_CLASSES = {UNKNOWN_USER: BounceClass.INVALID_RECIPIENT, TRY_LATER: BounceClass.TEMPORARY}
SANDBOX_BATCH = 64  # recipients recorded in one transaction: a few milliseconds' work
# Simulated mail is not urgent: its results are collected, and it leaves most of the event loop to new mail.
MIN_PAUSE, MAX_PAUSE = 0.05, 0.25  # seconds after a transaction
PAUSE_FACTOR = 4  # times the duration of the transaction
LONGEST_DEFERRAL = DEFERRAL + 10_000_000  # microseconds; no correct clock postpones a recipient for longer
PAUSE_CHECK = 1.0  # seconds between two reads of the pause of all mail

log = get_logger("deliver")


def simulate(recipient: DueRecipient, now: int, attempts_allowed: int) -> Outcome:
    """A simulated outcome. A bounce suppresses no address: a test must not stop real mail to that address later."""
    local, tries, retry_at = recipient.address.lower(), 1, None
    status, reply = RecipientStatus.DELIVERED, SIMULATED_ACCEPTANCE
    if local.startswith("bounce"):
        status, reply = RecipientStatus.BOUNCED, UNKNOWN_USER
    elif local.startswith("fail"):
        status, reply, tries = RecipientStatus.FAILED, TRY_LATER, attempts_allowed - recipient.attempt_count
    elif local.startswith("defer") and recipient.attempt_count == 0:
        status, reply, retry_at = RecipientStatus.DEFERRED, TRY_LATER, now + DEFERRAL
    attempts = (Attempt(now, now, *reply),) * tries
    bounce_class = _SIMULATED_CLASSES.get(reply)
    return Outcome(recipient, status, attempts, at=now, next_attempt_at=retry_at, bounce_class=bounce_class)


async def run_sandbox(
    store: Store,
    env: Environment,
    wake: Wake,
    attempts_allowed: int,
    notify: Callable[[Sequence[Outcome]], None] = observe,
) -> None:
    """Simulate the results of due recipients; `notify` gets them once they are recorded."""
    while True:
        polled_at, began = env.now(), trio.current_time()
        try:
            if await store.pools.paused() is not None or not store.engine.holds_lease():
                await wake.wait(PAUSE_CHECK)
                continue
            count = await deliver_due(store, env, attempts_allowed, notify)
            if not count:  # a fast clock may have postponed recipients: make them due
                latest = env.now() + LONGEST_DEFERRAL
                count = await store.queue_control.bring_forward(latest, simulated=True)
            due_at = None if count else await store.queue.next_due(simulated=True, after=polled_at)
        except StorageUnavailable as outage:  # nothing was recorded, so the same recipients are due again
            log.warning("delivery paused: storage unavailable", reason=outage.text)
            await trio.sleep(STORAGE_PAUSE)
            continue
        if count:
            await trio.sleep(min(max(MIN_PAUSE, PAUSE_FACTOR * (trio.current_time() - began)), MAX_PAUSE))
        else:
            await wake.wait(SLEEP_LIMIT if due_at is None else max(0.0, (due_at - env.now()) / 1_000_000))


async def deliver_due(
    store: Store, env: Environment, attempts_allowed: int, notify: Callable[[Sequence[Outcome]], None] = observe
) -> int:
    due = await store.queue.due(simulated=True, most=SANDBOX_BATCH)
    now = env.now()
    if due:
        outcomes = [simulate(recipient, now, attempts_allowed) for recipient in due]
        await store.queue.record(outcomes)
        notify(outcomes)
    return len(due)
