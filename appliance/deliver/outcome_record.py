"""Turns what a server said into what is recorded of a recipient: the attempt, its status, the next attempt, and the
decision in words. No I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from appliance.deliver.outcome import Disposition, FaultSide, Judgement
from appliance.deliver.smtp.results import TranscriptLine
from appliance.message.addresses import parse
from appliance.model.mail import Attempt, DueRecipient, Outcome, RecipientStatus, Suppression
from appliance.times import rfc3339

JITTER = 0.1  # of a delay, to either side: what was deferred together need not come back together
RECORDED_RESPONSE = 1_000  # kept of a reply

_FAULTS = {
    FaultSide.RECIPIENT: "the address does not exist, and is suppressed from now on",
    FaultSide.SENDER: "the server does not want mail from us; the address is not to blame",
    FaultSide.DOMAIN: "DNS leads to no mail server that can be asked, so none was",
    FaultSide.MESSAGE: "the server does not offer what this message needs",
    FaultSide.OTHER: "the server refuses this message for good",
    None: "the server refuses this message for good",
}


class Contact(NamedTuple):
    """Which server an attempt reached: shared by all recipients of one transaction."""

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
    random: Callable[[], float]  # gives numbers from 0 to 1, for jitter

    @property
    def longest(self) -> int:
        """The longest wait for the next attempt, in microseconds."""
        return round(max(self.delays, default=0.0) * (1 + JITTER) * 1_000_000)

    def next_attempt(self, now: int, attempts: int) -> int | None:
        """When to try again after so many attempts (microseconds); None when they are used up."""
        if attempts > len(self.delays):
            return None
        factor = 1 - JITTER + 2 * JITTER * self.random()
        return now + round(self.delays[attempts - 1] * factor * 1_000_000)


def outcome(
    recipient: DueRecipient,
    judgement: Judgement,
    *,
    code: int | None,
    text: str,
    contact: Contact,
    now: int,
    retries: Retries,
    signature: bytes | None = None,
) -> Outcome:
    count = recipient.attempt_count + 1
    status, again, decision = _decide(judgement, count, now, retries)
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
    suppress = None
    if judgement.suppresses:
        suppress = Suppression(parse(recipient.address, "to").key, f"bounced: {text[:200]}", now)
    kept = signature if again is not None else None
    return Outcome(recipient, status, (attempt,), now, again, suppress=suppress, signature=kept)


def _decide(judgement: Judgement, count: int, now: int, retries: Retries) -> tuple[RecipientStatus, int | None, str]:
    """The status of a recipient after so many attempts, when to try again, and the decision in words."""
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
