"""Counts the outcomes of attempts in the metrics, and writes them to the message log."""

from collections.abc import Iterable

from appliance.deliver.providers import PROVIDERS
from appliance.model.mail import Attempt, BounceClass, Outcome, RecipientStatus
from appliance.store.queue import waiting_since
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ATTEMPT_SECONDS, BOUNCES, DELIVERY_ATTEMPTS, DELIVERY_SECONDS

OTHER_POOLS = "other"  # every pool that is not named in the settings: there may be one for every domain
SANDBOX = "sandbox"
NO_SERVER = "none"  # instead of a pool, or of a reply's class
REPLY_CHARACTERS = 200  # of a server's reply in the log

_REPLY_CLASSES = {number: f"{number}xx" for number in range(2, 6)}
NAMED_POOLS = {provider.name for provider in PROVIDERS}  # with their own metrics; `build` adds the configured pools


def observe(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        status = str(outcome.status)
        for attempt in outcome.attempts:
            code = attempt.smtp_code
            reply = NO_SERVER if code is None else _REPLY_CLASSES.get(code // 100, NO_SERVER)
            # Only a simulated attempt has no decision.
            pool = attempt.pool or (SANDBOX if attempt.decision is None else NO_SERVER)
            named = attempt.pool is None or attempt.pool in NAMED_POOLS
            DELIVERY_ATTEMPTS.add((pool if named else OTHER_POOLS, status, reply))
            ATTEMPT_SECONDS.add((attempt.finished_at - attempt.started_at) / 1_000_000)
        if outcome.status is RecipientStatus.DELIVERED:
            DELIVERY_SECONDS.add((outcome.at - waiting_since(outcome.recipient)) / 1_000_000)
        elif outcome.status is not RecipientStatus.DEFERRED:
            BOUNCES.add((status, (outcome.bounce_class or BounceClass.OTHER).value))
        if MESSAGE_LOG.keep:
            _note(outcome, outcome.attempts[-1] if outcome.attempts else None)


def _note(outcome: Outcome, last: Attempt | None) -> None:
    recipient = outcome.recipient
    fields: dict[str, object] = {
        "message_id": recipient.message_id,
        "recipient_id": recipient.id,
        "domain": recipient.domain,
        "attempt": recipient.attempt_count + len(outcome.attempts),
    }
    if last is not None:
        fields["pool"], fields["mx"], fields["address"] = last.pool, last.mx_host, last.mx_address
        fields["tls"], fields["smtp_code"] = last.tls, last.smtp_code
        fields["reply"] = (last.smtp_response or "")[:REPLY_CHARACTERS]
        if last.route is not None:
            fields["route"] = last.route
        if last.source is not None:
            fields["source"] = last.source
        fields["ms"] = (last.finished_at - last.started_at) // 1000
    if outcome.bounce_class is not None:
        fields["bounce_class"] = outcome.bounce_class.value
    if outcome.mail_from is not None:
        fields |= {"mail_from": outcome.mail_from, "envelope_from": recipient.envelope_from}
    MESSAGE_LOG.note(str(outcome.status), **fields)
