"""Counts recorded outcomes for the metrics, and writes a line of each to the message log."""

from collections.abc import Iterable

from appliance.deliver.providers import PROVIDERS
from appliance.model.mail import Attempt, Outcome, RecipientStatus
from appliance.outside import identifier_time
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ATTEMPT_SECONDS, DELIVERY_ATTEMPTS, DELIVERY_SECONDS

OTHER_POOLS = "other"  # every pool without a name in the settings: there may be one for each domain of the world
SANDBOX = "sandbox"
NO_SERVER = "none"  # in the place of a pool, or of a reply's class
REPLY_CHARACTERS = 200  # of a server's reply in the log

_CLASSES = {number: f"{number}xx" for number in range(2, 6)}
NAMED_POOLS = {provider.name for provider in PROVIDERS}  # counted by their names; those of the settings are added


def observe(outcomes: Iterable[Outcome]) -> None:
    """Count and log outcomes that are on disk."""
    for outcome in outcomes:
        status = outcome.status.value
        for attempt in outcome.attempts:
            code = attempt.smtp_code
            reply = NO_SERVER if code is None else _CLASSES.get(code // 100, NO_SERVER)
            # Only simulated attempts decide nothing.
            pool = attempt.pool or (SANDBOX if attempt.decision is None else NO_SERVER)
            named = attempt.pool is None or attempt.pool in NAMED_POOLS
            DELIVERY_ATTEMPTS.add((pool if named else OTHER_POOLS, status, reply))
            ATTEMPT_SECONDS.add((attempt.finished_at - attempt.started_at) / 1_000_000)
        if outcome.status is RecipientStatus.DELIVERED:
            DELIVERY_SECONDS.add((outcome.at - identifier_time(outcome.recipient.message_id)) / 1_000_000)
        if MESSAGE_LOG.keep:
            _note(outcome, outcome.attempts[-1] if outcome.attempts else None)


def _note(outcome: Outcome, last: Attempt | None) -> None:
    recipient = outcome.recipient
    fields = {
        "message_id": recipient.message_id,
        "recipient_id": recipient.id,
        "domain": recipient.domain,
        "attempt": recipient.attempt_count + len(outcome.attempts),
    }
    if last is not None:
        fields |= {
            "pool": last.pool,
            "mx": last.mx_host,
            "address": last.mx_address,
            "tls": last.tls,
            "smtp_code": last.smtp_code,
            "reply": (last.smtp_response or "")[:REPLY_CHARACTERS],
            "ms": (last.finished_at - last.started_at) // 1000,
        }
    MESSAGE_LOG.note(outcome.status.value, **fields)
