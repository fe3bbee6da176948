"""Records the outcome of an attempt: its row, the recipient's status, the next attempt, metrics and the message log."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from appliance.deliver.judgement import Disposition, FaultSide, Judgement
from appliance.deliver.providers import PROVIDERS
from appliance.deliver.smtp.protocol import TranscriptLine
from appliance.environment import identifier_time
from appliance.errors import Refused
from appliance.feedback.reply_rules import judge_reply
from appliance.message.addresses import parse
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus, Suppression
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ATTEMPT_SECONDS, BOUNCES, DELIVERY_ATTEMPTS, DELIVERY_SECONDS
from appliance.times import rfc3339

RECORDED_RESPONSE = 1_000  # characters kept of a reply
# Share of a delay, at most, that is added to it, so that mail deferred together does not return together. Never
# subtracted: a greylist usually asks for 300 seconds, and would refuse an earlier attempt.
JITTER = 0.2

_FAULTS = {
    FaultSide.RECIPIENT: "the address does not exist, and is suppressed from now on",
    FaultSide.SENDER: "the server does not want mail from us; the address is not to blame",
    FaultSide.DOMAIN: "DNS leads to no mail server that can be asked, so none was",
    FaultSide.MESSAGE: "the server does not offer what this message needs",
    FaultSide.OTHER: "the server refuses this message for good",
    None: "the server refuses this message for good",
}


class Contact(NamedTuple):
    """The server of an attempt, shared by all recipients of a transaction."""

    started_at: int
    pool: str | None = None
    host: str | None = None
    address: str | None = None
    tls: str | None = None
    dialogue: tuple[TranscriptLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Retries:
    """The schedule of attempts."""

    delays: Sequence[float]  # seconds before the second attempt, the third and so on
    random: Callable[[], float]  # returns numbers from 0 to 1

    @property
    def longest(self) -> int:
        """The longest delay before the next attempt, in microseconds."""
        return round(max(self.delays, default=0.0) * (1 + JITTER) * 1_000_000)

    def next_attempt(self, now: int, attempts: int) -> int | None:
        """The time of the next attempt after so many; None when all are used."""
        if attempts > len(self.delays):
            return None
        factor = 1 + JITTER * self.random()
        return now + round(self.delays[attempts - 1] * factor * 1_000_000)


def outcome(
    recipient: DueRecipient,
    judgement: Judgement,
    *,
    code: int | None,
    status: str | None,
    text: str,
    contact: Contact,
    now: int,
    retries: Retries,
    signature: bytes | None = None,
    mail_from: str | None = None,
) -> Outcome:
    """The record of an attempt; `status` is the enhanced status (RFC 3463) of the reply or of our own error."""
    count = recipient.attempt_count + 1
    result, again, decision = _decide(judgement, count, now, retries)
    attempt = Attempt(
        started_at=contact.started_at,
        finished_at=now,
        smtp_code=code,
        smtp_response=text[:RECORDED_RESPONSE],
        pool=contact.pool,
        mx_host=contact.host,
        mx_address=contact.address,
        tls=contact.tls,
        decision=decision,
        dialogue=msgspec.json.encode(contact.dialogue).decode() if contact.dialogue else None,
    )
    suppress = _suppression(recipient, text, now) if judgement.suppresses else None
    return Outcome(
        recipient,
        result,
        (attempt,),
        now,
        again,
        suppress=suppress,
        signature=signature if again is not None else None,
        bounce_class=_bounce_class(judgement, code, status, text[:RECORDED_RESPONSE]),
        mail_from=mail_from,
    )


def _suppression(recipient: DueRecipient, text: str, now: int) -> Suppression | None:
    try:
        return Suppression(parse(recipient.address, "to").key, f"bounced: {text[:200]}", now)
    except (Refused, ValueError):  # another version accepted the address; this one would accept no mail for it
        return None


def _bounce_class(judgement: Judgement, code: int | None, status: str | None, text: str) -> BounceClass | None:
    """The class of a failure. A deferral is `temporary`, unless the mailbox is full or the sender is refused."""
    if judgement.result is Disposition.DELIVERED:
        return None
    deferred = judgement.result is Disposition.DEFERRED and judgement.fault is not FaultSide.SENDER
    if deferred and (code is None or code // 100 != 4):
        return BounceClass.TEMPORARY
    if judgement.fault is FaultSide.MESSAGE:
        return BounceClass.CONTENT
    rule = judge_reply(code, status, text)
    if judgement.fault is FaultSide.OTHER and rule.suppress:
        return BounceClass.OTHER  # the reply is about the whole message or the sender, not about this recipient
    return rule.bounce_class


def _decide(judgement: Judgement, count: int, now: int, retries: Retries) -> tuple[RecipientStatus, int | None, str]:
    """The status of a recipient after so many attempts, the next attempt, and the decision in words."""
    if judgement.result is Disposition.DELIVERED:
        return RecipientStatus.DELIVERED, None, "delivered: the server took the message"
    if judgement.result is Disposition.BOUNCED:
        return RecipientStatus.BOUNCED, None, f"bounced: {_FAULTS[judgement.fault]}"
    again = retries.next_attempt(now, count)
    if again is None:
        return RecipientStatus.FAILED, None, f"failed: {count} attempts are used up"
    slowed = "; mail to this pool slows down" if judgement.throttle else ""
    attempts = f"attempt {count + 1} of {len(retries.delays) + 1}"
    return RecipientStatus.DEFERRED, again, f"deferred: {attempts} at {rfc3339(again)}{slowed}"


# ---- metrics and the message log

OTHER_POOLS = "other"  # every pool that is not named in the settings: there may be one for every domain
SANDBOX = "sandbox"
NO_SERVER = "none"  # instead of a pool, or of a reply's class
REPLY_CHARACTERS = 200  # of a server's reply in the log

_CLASSES = {number: f"{number}xx" for number in range(2, 6)}
NAMED_POOLS = {provider.name for provider in PROVIDERS}  # with their own metrics; `build` adds those of the settings


def observe(outcomes: Iterable[Outcome]) -> None:
    """Count and log outcomes that are on disk."""
    for outcome in outcomes:
        status = outcome.status.value
        for attempt in outcome.attempts:
            code = attempt.smtp_code
            reply = NO_SERVER if code is None else _CLASSES.get(code // 100, NO_SERVER)
            # Only a simulated attempt has no decision.
            pool = attempt.pool or (SANDBOX if attempt.decision is None else NO_SERVER)
            named = attempt.pool is None or attempt.pool in NAMED_POOLS
            DELIVERY_ATTEMPTS.add((pool if named else OTHER_POOLS, status, reply))
            ATTEMPT_SECONDS.add((attempt.finished_at - attempt.started_at) / 1_000_000)
        if outcome.status is RecipientStatus.DELIVERED:
            DELIVERY_SECONDS.add((outcome.at - identifier_time(outcome.recipient.message_id)) / 1_000_000)
        elif outcome.status is not RecipientStatus.DEFERRED:
            BOUNCES.add((status, (outcome.bounce_class or BounceClass.OTHER).value))
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
    if outcome.bounce_class is not None:
        fields["bounce_class"] = outcome.bounce_class.value
    if outcome.mail_from is not None:
        fields |= {"mail_from": outcome.mail_from, "envelope_from": recipient.envelope_from}
    MESSAGE_LOG.note(outcome.status.value, **fields)
