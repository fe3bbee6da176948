"""Outcomes of attempts: judges a server's verdict, and makes and stores the record of the attempt.

The first rule that matches a verdict decides. Anything that no rule names is temporary.

1. 2xx after the end of data: delivered.
2. No usable reply (a lost connection, TLS, DNS, anything unknown): temporary.
3. Known without a reply (no such domain, no SMTPUTF8, too large): bounced, and the address is not at fault.
4. 4xx: temporary. The table of replies (`feedback/reply_rules.toml`) decides whether it slows the pool.
5. 5xx about the session (greeting, EHLO, TLS, AUTH, a reply to MAIL whose code asks for AUTH, and such a code from the
   operator's relay at any stage): temporary. It is about neither this recipient nor this message.
6. 5xx to a recipient because the transaction has too many, if it has others: temporary.
7. 5xx to the message or the recipient: bounced. The table of replies decides who is at fault.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from appliance.concurrency.wake import RECORDING_REST, BatchWriter
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Envelope
from appliance.deliver.route import NoRoute
from appliance.deliver.smtp.protocol import Dialogue, ResultKind, Stage, Verdict
from appliance.errors import Refused
from appliance.feedback.reply_rules import Fault, Rule, judge_reply
from appliance.message.addresses import parse
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus, Suppression
from appliance.model.ramp import Via
from appliance.store import Store
from appliance.times import rfc3339


class FaultSide(StrEnum):
    RECIPIENT = "recipient"  # no such mailbox: the address is suppressed
    SENDER = "sender"  # the server refuses this sender: never suppresses, and counts towards a hold of the pool
    DOMAIN = "domain"  # DNS names no server that delivery could try
    MESSAGE = "message"  # the server lacks an extension that this message needs
    OTHER = "other"  # none of these, or unknown


class Judgement(NamedTuple):
    """The effect of an attempt on one recipient and on the pool."""

    result: RecipientStatus  # delivered, bounced or deferred
    fault: FaultSide | None = None  # None: no fault, or a temporary one
    throttle: bool = False  # the server asks for less mail: slow the pool
    if_repeated: bool = False  # the same, once this verdict meets recipients that the pool accepted before

    @property
    def suppresses(self) -> bool:
        return self.result is RecipientStatus.BOUNCED and self.fault is FaultSide.RECIPIENT


_TOO_MANY_RECIPIENTS = re.compile(r"too many recipients", re.IGNORECASE)
_WHOLE_MESSAGE = frozenset((Stage.DATA, Stage.END_OF_DATA))
_ABOUT_THE_SESSION = frozenset((530, 534, 535, 538))  # asks for AUTH or TLS, RFC 4954 6, RFC 3207 4

DELIVERED = Judgement(RecipientStatus.DELIVERED)
TEMPORARY = Judgement(RecipientStatus.DEFERRED)


def judge(verdict: Verdict, recipients: int = 1, *, relayed: bool = False) -> Judgement:
    """Judge a verdict. `recipients`: number in the transaction; `relayed`: the operator's relay gave it."""
    match verdict.kind:
        case ResultKind.ACCEPTED if verdict.stage is Stage.END_OF_DATA:
            return DELIVERED
        case ResultKind.LOCAL:
            return Judgement(RecipientStatus.BOUNCED, FaultSide.MESSAGE)
        case ResultKind.DEFERRED:
            return _deferred(verdict, judge_reply(verdict.code, verdict.enhanced, verdict.text))
        case ResultKind.REJECTED if verdict.reply is not None:
            return _rejected(verdict, judge_reply(verdict.code, verdict.enhanced, verdict.text), recipients, relayed)
        case _:
            return TEMPORARY


def judge_no_route(no_route: NoRoute) -> Judgement:
    """Judge a missing route. It suppresses no address: a wrong reply of our resolver could suppress them all."""
    return Judgement(RecipientStatus.BOUNCED, FaultSide.DOMAIN) if no_route.permanent else TEMPORARY


def _deferred(verdict: Verdict, rule: Rule) -> Judgement:
    """Judge a 4xx. Before RCPT it is about this machine or the sender, so one is enough to slow the pool."""
    if rule.hold != "if repeated":
        return Judgement(RecipientStatus.DEFERRED, throttle=rule.holds)
    names_recipient = verdict.stage is Stage.RCPT or verdict.stage in _WHOLE_MESSAGE
    asks_for_less = verdict.code == 421 or (verdict.enhanced or "").startswith("4.7.")
    return Judgement(
        RecipientStatus.DEFERRED, throttle=asks_for_less and not names_recipient, if_repeated=names_recipient
    )


def _rejected(verdict: Verdict, rule: Rule, recipients: int, relayed: bool) -> Judgement:
    fault = _fault(verdict, rule, recipients, relayed)
    asks_for_login = verdict.code in _ABOUT_THE_SESSION and (verdict.stage is Stage.MAIL or relayed)
    if verdict.is_before_mail or asks_for_login:
        # Still the sender's fault if it says so: a greeting that says our address is blocked counts for the pool.
        is_sender_fault = fault is FaultSide.SENDER
        return Judgement(
            RecipientStatus.DEFERRED, FaultSide.SENDER if is_sender_fault else None, throttle=is_sender_fault
        )
    # RFC 5321 4.5.3.1.10: some servers refuse permanently the recipients beyond their limit.
    too_many = verdict.enhanced == "5.5.3" or (verdict.code == 552 and _TOO_MANY_RECIPIENTS.search(verdict.text))
    if verdict.stage is Stage.RCPT and recipients > 1 and too_many:
        return TEMPORARY
    return Judgement(RecipientStatus.BOUNCED, fault)


def _fault(verdict: Verdict, rule: Rule, recipients: int, relayed: bool) -> FaultSide:
    if rule.suppress:
        # A reply to MAIL is about no recipient, and one to DATA about this recipient only if it is the only one.
        is_about_recipient = verdict.stage is Stage.RCPT or (verdict.stage in _WHOLE_MESSAGE and recipients == 1)
        return FaultSide.RECIPIENT if is_about_recipient else FaultSide.OTHER
    if rule.bounce_class is BounceClass.POLICY and rule.fault is Fault.SERVER:
        # Relaying refused: the domain's MX names a server that is not its own, which must not hold other mail. From
        # the operator's relay, or before RCPT, it is about this sender.
        return FaultSide.OTHER if verdict.stage is Stage.RCPT and not relayed else FaultSide.SENDER
    return FaultSide.SENDER if rule.fault is Fault.SENDER and rule.holds else FaultSide.OTHER


# ---- the record

RECORDED_RESPONSE = 1_000  # characters kept of a reply
# Share of a delay, at most, that is added to it, so that mail deferred together does not return together. Never
# subtracted: a greylist usually asks for 300 seconds, and would refuse an earlier attempt.
JITTER = 0.2

_FAULTS: dict[FaultSide | None, str] = {
    FaultSide.RECIPIENT: "the address does not exist, and is suppressed from now on",
    FaultSide.SENDER: "the server does not want mail from us; the address is not to blame",
    FaultSide.DOMAIN: "DNS leads to no mail server that can be asked, so none was",
    FaultSide.MESSAGE: "the server does not offer what this message needs",
}


class Contact(NamedTuple):
    started_at: int
    pool: str | None = None
    host: str | None = None
    address: str | None = None
    tls: str | None = None
    source: str | None = None


class Retries(Struct, frozen=True):
    delays: Sequence[float]  # seconds before the second attempt, the third and so on
    random: Callable[[], float]  # returns numbers from 0 to 1

    @property
    def longest(self) -> int:
        return round(max(self.delays, default=0.0) * (1 + JITTER) * 1_000_000)

    def next_attempt(self, now: int, attempts: int) -> int | None:
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
    dialogue: Dialogue = (),
    contact: Contact,
    now: int,
    retries: Retries,
    signature: bytes | None = None,
    mail_from: str | None = None,
    via: Via | None = None,
    provider: str | None = None,
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
        dialogue=msgspec.json.encode(dialogue).decode() if dialogue else None,
        source=contact.source,
        route=None if via is None else via.value,
    )
    suppression = None
    if judgement.suppresses:
        with suppress(Refused, ValueError):  # another version accepted the address; this one accepts no mail for it
            suppression = Suppression(parse(recipient.address, "to").key, f"bounced: {text[:200]}", now)
    return Outcome(
        recipient,
        result,
        (attempt,),
        now,
        again,
        suppress=suppression,
        signature=signature if again is not None else None,
        bounce_class=_bounce_class(judgement, code, status, text[:RECORDED_RESPONSE]),
        mail_from=mail_from,
        provider=None if recipient.bucket is None else provider,
    )


def _bounce_class(judgement: Judgement, code: int | None, status: str | None, text: str) -> BounceClass | None:
    """The class of a failure. A deferral is `temporary`, unless the mailbox is full or the sender is refused."""
    if judgement.result is RecipientStatus.DELIVERED:
        return None
    deferred = judgement.result is RecipientStatus.DEFERRED and judgement.fault is not FaultSide.SENDER
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
    if judgement.result is RecipientStatus.DELIVERED:
        return RecipientStatus.DELIVERED, None, "delivered: the server took the message"
    if judgement.result is RecipientStatus.BOUNCED:
        fault = _FAULTS.get(judgement.fault, "the server refuses this message for good")
        return RecipientStatus.BOUNCED, None, f"bounced: {fault}"
    again = retries.next_attempt(now, count)
    if again is None:
        return RecipientStatus.FAILED, None, f"failed: {count} attempts are used up"
    slowed = "; mail to this pool slows down" if judgement.throttle else ""
    attempts = f"attempt {count + 1} of {len(retries.delays) + 1}"
    return RecipientStatus.DEFERRED, again, f"deferred: {attempts} at {rfc3339(again)}{slowed}"


# ---- recording many together


class AttemptResult(NamedTuple):
    envelope: Envelope
    outcomes: list[Outcome]
    limiter: PoolLimiter | None = None  # counts the result as unrecorded until it is on disk
    postponed_until: int | None = None  # there was no attempt, because all sources of the envelope are out


def recording(store: Store) -> BatchWriter[AttemptResult]:
    async def write(batch: list[AttemptResult]) -> None:
        if outcomes := [outcome for result in batch for outcome in result.outcomes]:
            await store.queue.record(outcomes)
        waiting = [(one, result.postponed_until) for result in batch for one in result.envelope.recipients]
        if postponed := [(recipient, until) for recipient, until in waiting if until is not None]:
            await store.queue.postpone(postponed)

    def fields(result: AttemptResult) -> dict[str, str]:
        return {"message_id": result.envelope.message_id, "domain": result.envelope.domain}

    return BatchWriter("deliver", write, fields, RECORDING_REST)
