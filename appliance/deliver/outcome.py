"""What an answer means for a recipient: delivered, bounced and by whose fault, or to be tried again; and what is
recorded of it: the attempt, its status, the next attempt, the decision in words, metrics, and a log line.

The rules, from the top; the first that fits decides. "Errors are assumed to be temporary by default" (maddy): whatever
no rule names is tried again.

1. 2xx after the end of data: delivered.
2. No usable answer of the server (a lost connection, TLS, DNS, anything unknown): temporary.
3. What we know without asking (no such domain, no SMTPUTF8, too large): bounced, no address at fault. DNS is told
   apart from a server: where no server was asked, none has refused.
4. 4xx: temporary. Whether it slows the pool stands in the table of replies.
5. 5xx about the session (the greeting, EHLO, TLS, AUTH, a MAIL answered with a code that asks for AUTH, and by the
   operator's relay anything so answered): temporary, for it is neither about this recipient nor about this message.
   Another server, or this one on another day, may take it.
6. 5xx to a recipient that means only that the transaction has too many, where it has others: temporary.
7. 5xx to the message or the recipient: bounced; whose fault it is stands in the table of replies.

That table is `feedback/reply_rules.toml`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec

from appliance.deliver.providers import PROVIDERS
from appliance.deliver.route import NoRoute
from appliance.deliver.smtp.protocol import ResultKind, Stage, TranscriptLine, Verdict
from appliance.environment import identifier_time
from appliance.errors import Refused
from appliance.feedback.reply_rules import Fault, Rule, judge_reply
from appliance.message.addresses import parse
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus, Suppression
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ATTEMPT_SECONDS, BOUNCES, DELIVERY_ATTEMPTS, DELIVERY_SECONDS
from appliance.times import rfc3339


class Disposition(StrEnum):
    DELIVERED = "delivered"
    BOUNCED = "bounced"
    DEFERRED = "deferred"


class FaultSide(StrEnum):
    RECIPIENT = "recipient"  # there is no such mailbox: the address is suppressed
    SENDER = "sender"  # we are not wanted: never suppresses, and counts towards pausing the pool
    DOMAIN = "domain"  # DNS leads to no server that could be asked
    MESSAGE = "message"  # the server does not offer what this message needs, and was not asked
    OTHER = "other"  # none of these, or it cannot be told


class Judgement(NamedTuple):
    """What an attempt means for one recipient, and for the pool it went through."""

    result: Disposition
    fault: FaultSide | None = None  # None: nothing is wrong, or it will pass
    throttle: bool = False  # the server wants less of us: slow the pool
    if_repeated: bool = False  # the same, once this verdict meets recipients that the pool accepted before

    @property
    def suppresses(self) -> bool:
        return self.result is Disposition.BOUNCED and self.fault is FaultSide.RECIPIENT


_TOO_MANY_RECIPIENTS = re.compile(r"too many recipients", re.IGNORECASE)
_WHOLE_MESSAGE = frozenset((Stage.DATA, Stage.END_OF_DATA))
_ABOUT_THE_SESSION = frozenset((530, 534, 535, 538))  # asks for AUTH or TLS, RFC 4954 6, RFC 3207 4

RECORDED_RESPONSE = 1_000  # characters kept of a reply

DELIVERED = Judgement(Disposition.DELIVERED)
TEMPORARY = Judgement(Disposition.DEFERRED)


def judge(verdict: Verdict, recipients: int = 1, *, relayed: bool = False) -> Judgement:
    """What a verdict means; `recipients` counts those of the transaction, `relayed`: our own relay said it."""
    match verdict.kind:
        case ResultKind.ACCEPTED if verdict.stage is Stage.END_OF_DATA:
            return DELIVERED
        case ResultKind.LOCAL:
            return Judgement(Disposition.BOUNCED, FaultSide.MESSAGE)
        case ResultKind.DEFERRED:
            return _deferred(verdict, judge_reply(verdict.code, verdict.enhanced, verdict.text))
        case ResultKind.REJECTED if verdict.reply is not None:
            return _rejected(verdict, judge_reply(verdict.code, verdict.enhanced, verdict.text), recipients, relayed)
        case _:
            return TEMPORARY


def judge_no_route(no_route: NoRoute) -> Judgement:
    """What it means that there is nowhere to send to.

    No address is suppressed for it, although a missing domain is 5.1.2: were our own resolver to lie, it would cost an
    account all its addresses at once.
    """
    return Judgement(Disposition.BOUNCED, FaultSide.DOMAIN) if no_route.permanent else TEMPORARY


def _deferred(verdict: Verdict, rule: Rule) -> Judgement:
    """A 4xx. Before a recipient is named it is about this machine or the sender, so it need not be repeated."""
    if rule.hold != "if repeated":
        return Judgement(Disposition.DEFERRED, throttle=rule.holds)
    names_recipient = verdict.stage is Stage.RCPT or verdict.stage in _WHOLE_MESSAGE
    asks = verdict.code == 421 or (verdict.enhanced or "").startswith("4.7.")
    return Judgement(Disposition.DEFERRED, throttle=asks and not names_recipient, if_repeated=names_recipient)


def _rejected(verdict: Verdict, rule: Rule, recipients: int, relayed: bool) -> Judgement:
    fault = _fault(verdict, rule, recipients, relayed)
    asks_for_login = verdict.code in _ABOUT_THE_SESSION and (verdict.stage is Stage.MAIL or relayed)
    if verdict.is_before_mail or asks_for_login:
        # Still the sender's fault if it says so: the pool must learn of a greeting that says our address is blocked.
        unwanted = fault is FaultSide.SENDER
        return Judgement(Disposition.DEFERRED, FaultSide.SENDER if unwanted else None, throttle=unwanted)
    # RFC 5321 4.5.3.1.10: some servers say permanently that one transaction has too many recipients.
    too_many = verdict.enhanced == "5.5.3" or (verdict.code == 552 and _TOO_MANY_RECIPIENTS.search(verdict.text))
    if verdict.stage is Stage.RCPT and recipients > 1 and too_many:
        return TEMPORARY
    return Judgement(Disposition.BOUNCED, fault)


def _fault(verdict: Verdict, rule: Rule, recipients: int, relayed: bool) -> FaultSide:
    if rule.suppress:
        # Whether this recipient is meant: not by MAIL, and after DATA only if there is no other.
        meant = verdict.stage is Stage.RCPT or (verdict.stage in _WHOLE_MESSAGE and recipients == 1)
        return FaultSide.RECIPIENT if meant else FaultSide.OTHER
    if rule.bounce_class is BounceClass.POLICY and rule.fault is Fault.SERVER:
        # Refused relaying. The domain's MX names a server that is not its own, and other mail must not wait for that;
        # from the operator's own relay, and before a recipient is named, it is about us.
        return FaultSide.OTHER if verdict.stage is Stage.RCPT and not relayed else FaultSide.SENDER
    return FaultSide.SENDER if rule.fault is Fault.SENDER and rule.holds else FaultSide.OTHER


# ---- what is recorded

# Of a delay, at most, and added to it: what was deferred together need not come back together. Never taken from it: a
# greylist that asks for 300 seconds, as most do, would refuse the second attempt as well.
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
    """What is recorded of an attempt; `status` is the enhanced one (RFC 3463) of the reply, or of what was found."""
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
    kept = signature if again is not None else None
    return Outcome(
        recipient,
        result,
        (attempt,),
        now,
        again,
        suppress=suppress,
        signature=kept,
        bounce_class=_bounce_class(judgement, code, status, text[:RECORDED_RESPONSE]),
        mail_from=mail_from,
    )


def _suppression(recipient: DueRecipient, text: str, now: int) -> Suppression | None:
    try:
        return Suppression(parse(recipient.address, "to").key, f"bounced: {text[:200]}", now)
    except (Refused, ValueError):  # another version accepted the address; this one would accept no mail for it
        return None


def _bounce_class(judgement: Judgement, code: int | None, status: str | None, text: str) -> BounceClass | None:
    """The class of what is no success. A deferral is `temporary`, unless the mailbox is full or we are not wanted."""
    if judgement.result is Disposition.DELIVERED:
        return None
    deferred = judgement.result is Disposition.DEFERRED and judgement.fault is not FaultSide.SENDER
    if deferred and (code is None or code // 100 != 4):
        return BounceClass.TEMPORARY
    if judgement.fault is FaultSide.MESSAGE:
        return BounceClass.CONTENT
    rule = judge_reply(code, status, text)
    if judgement.fault is FaultSide.OTHER and rule.suppress:
        return BounceClass.OTHER  # said of the whole message, which has other recipients, or of the sender
    return rule.bounce_class


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


# ---- metrics and the message log

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
