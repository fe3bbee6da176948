"""Outcomes of attempts: judges a server's verdict, makes the record of the attempt, and counts and logs it.

The first rule that matches a verdict decides. Anything that no rule names is temporary.

1. 2xx after the end of data: delivered.
2. No usable reply (a lost connection, TLS, DNS, anything unknown): temporary.
3. Known without a reply (no such domain, no SMTPUTF8, too large): bounced, and the address is not at fault.
4. 4xx: temporary. The table of replies (`feedback/reply_rules.toml`) decides whether it slows the pool.
5. 5xx about the session (greeting, EHLO, TLS, AUTH, a reply to MAIL whose code asks for AUTH, and such a code from the
   operator's relay at any stage): temporary. It is about neither this recipient nor this message.
6. 5xx to a recipient because the transaction has too many, if it has others: temporary.
7. 5xx to the message or the recipient: bounced. The table of replies decides who is at fault.

Sandbox mail has simulated outcomes: the local part of a recipient selects its outcome, and no mail is sent.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

import msgspec
import trio
from msgspec import Struct

from appliance.concurrency.wake import SLEEP_LIMIT, STORAGE_PAUSE, BatchWriter, Wake
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.preparing import Envelope
from appliance.deliver.providers import PROVIDERS
from appliance.deliver.route import NoRoute
from appliance.deliver.smtp.protocol import Dialogue, ResultKind, Stage, Verdict
from appliance.environment import Environment
from appliance.errors import Refused, StorageUnavailable
from appliance.feedback.reply_rules import Fault, Rule, judge_reply
from appliance.message.addresses import parse
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus, Suppression
from appliance.model.ramp import Via
from appliance.store import Store
from appliance.store.queue import waiting_since
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import ATTEMPT_SECONDS, BOUNCES, DELIVERY_ATTEMPTS, DELIVERY_SECONDS
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

RECORDING_REST = 0.015  # seconds between two transactions while there is new mail: its commits wait for them


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

    return BatchWriter("deliver", write, fields, lambda: RECORDING_REST if store.new_mail.is_sparse() else 0.0)


# ---- metrics and the message log

OTHER_POOLS = "other"  # every pool that is not named in the settings: there may be one for every domain
SANDBOX = "sandbox"
NO_SERVER = "none"  # instead of a pool, or of a reply's class
REPLY_CHARACTERS = 200  # of a server's reply in the log

_REPLY_CLASSES = {number: f"{number}xx" for number in range(2, 6)}
NAMED_POOLS = {provider.name for provider in PROVIDERS}  # with their own metrics; `build` adds the configured pools


def observe(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        status = outcome.status.value
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
    MESSAGE_LOG.note(outcome.status.value, **fields)


# ---- simulated outcomes

DEFERRAL = 2_000_000  # microseconds until a simulated deferral is tried again
SIMULATED_ACCEPTANCE = (250, "250 2.0.0 OK: accepted by the sandbox")
UNKNOWN_USER = (550, "550 5.1.1 User unknown (simulated by the sandbox)")
TRY_LATER = (451, "451 4.3.0 Try again later (simulated by the sandbox)")
_SIMULATED_CLASSES = {UNKNOWN_USER: BounceClass.INVALID_RECIPIENT, TRY_LATER: BounceClass.TEMPORARY}
SANDBOX_BATCH = 64  # recipients recorded in one transaction: a few milliseconds' work
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
        polled_at = env.now()
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
        if not count:
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
