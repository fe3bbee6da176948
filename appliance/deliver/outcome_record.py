"""In charge of turning what a server said into what is recorded: attempt, outcome, and the decision in words. PURE."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from appliance.deliver.outcome import Fault, Judgement, Result
from appliance.deliver.retry import JITTER, next_attempt
from appliance.deliver.smtp.transcript import Line
from appliance.message.addresses import parse
from appliance.model.mail import Attempt, DueRecipient, Outcome, RecipientStatus, Suppression
from appliance.times import rfc3339

RESPONSE_CHARACTERS = 1_000  # kept of a reply

_FAULTS = {
    Fault.RECIPIENT: "the address does not exist, and is suppressed from now on",
    Fault.SENDER: "the server does not want mail from us; the address is not to blame",
    Fault.DOMAIN: "DNS leads to no mail server that can be asked, so none was",
    Fault.MESSAGE: "the server does not offer what this message needs",
    Fault.OTHER: "the server refuses this message for good",
    None: "the server refuses this message for good",
}


class Contact(NamedTuple):
    """Where an attempt got to: shared by all recipients of one transaction."""

    started_at: int
    pool: str | None = None
    host: str | None = None
    address: str | None = None
    tls: str | None = None
    dialogue: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Retries:
    """The schedule: seconds before each further attempt, and the dice for jitter."""

    delays: Sequence[float]
    random: Callable[[], float]

    @property
    def longest(self) -> int:
        """The longest that anybody may have to wait for the next attempt, in microseconds."""
        return round(max(self.delays, default=0.0) * (1 + JITTER) * 1_000_000)

    @property
    def attempts(self) -> int:
        """How often a recipient is tried in all."""
        return len(self.delays) + 1


def outcome(
    recipient: DueRecipient,
    judgement: Judgement,
    code: int | None,
    text: str,
    contact: Contact,
    now: int,
    retries: Retries,
    signature: bytes | None = None,
) -> Outcome:
    """What one attempt means for one recipient, ready to be recorded."""
    count = recipient.attempt_count + 1
    status, again = _status(judgement, count, now, retries)
    decision = _decision(status, judgement, count, again, retries)
    attempt = Attempt(
        started_at=contact.started_at,
        finished_at=now,
        smtp_code=code,
        smtp_response=text[:RESPONSE_CHARACTERS],
        pool=contact.pool,
        mx_host=contact.host,
        mx_address=contact.address,
        tls=contact.tls,
        decision=decision,
        dialogue=msgspec.json.encode(contact.dialogue).decode() if contact.dialogue else None,
    )
    suppress = None
    if judgement.suppresses:
        suppress = Suppression(parse(recipient.address, "to").key, f"bounced: {text[:200]}", now)
    kept = signature if again is not None else None
    return Outcome(recipient, status, (attempt,), now, again, suppress=suppress, signature=kept)


def _status(judgement: Judgement, count: int, now: int, retries: Retries) -> tuple[RecipientStatus, int | None]:
    if judgement.result is Result.DELIVERED:
        return RecipientStatus.DELIVERED, None
    if judgement.result is Result.BOUNCED:
        return RecipientStatus.BOUNCED, None
    again = next_attempt(now, count, retries.delays, retries.random)
    return (RecipientStatus.FAILED, None) if again is None else (RecipientStatus.DEFERRED, again)


def _decision(status: RecipientStatus, judgement: Judgement, count: int, again: int | None, retries: Retries) -> str:
    if status is RecipientStatus.DELIVERED:
        return "delivered: the server took the message"
    if status is RecipientStatus.BOUNCED:
        return f"bounced: {_FAULTS[judgement.fault]}"
    if again is None:
        return f"failed: {count} attempts are used up"
    slowed = "; mail to this pool slows down" if judgement.throttle else ""
    return f"deferred: attempt {count + 1} of {retries.attempts} at {rfc3339(again)}{slowed}"
