"""In charge of telling a message's story: every attempt for every recipient, and in words what happens next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import msgspec

from appliance.model.dashboard import MessageFacts
from appliance.model.mail import Attempt, Billing, MessageRecord, MessageStatus, RecipientStatus, Source, TriedRecipient
from appliance.model.queue import PoolView
from appliance.report import explain
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.lists import time_or_none


class LineObject(msgspec.Struct):
    """One line of an SMTP dialogue: `C` we said it, `S` the server did, `*` a remark."""

    ms: int
    speaker: Literal["C", "S", "*"]
    text: str


class AttemptObject(msgspec.Struct):
    """One try at one recipient."""

    number: int
    started_at: Time
    duration_ms: int
    pool: str | None
    mx_host: str | None
    mx_address: str | None
    tls: str | None
    smtp_code: int | None
    smtp_response: str | None
    decision: str | None
    dialogue: list[LineObject]


class TimelineObject(msgspec.Struct):
    """One recipient with all that was tried; `explanation` says where it stands and what happens next."""

    id: str
    email: str
    status: RecipientStatus
    billing_status: Billing
    explanation: str
    pool: str | None
    simulated: bool
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: Time | None
    bounced_at: Time | None
    next_attempt_at: Time | None
    attempts: list[AttemptObject]


class MessageDetails(msgspec.Struct, rename={"sender": "from"}):
    """A message with its timeline. `body_kept` says whether its body can still be read."""

    id: str
    status: MessageStatus
    source: Source
    sender: str
    envelope_from: str
    subject: str
    tags: list[str]
    template: str | None
    template_version: int | None
    size: int
    billing_status: Billing
    recipient_count: int
    credits_reserved: int
    created_at: Time
    accepted_request_id: str
    body_kept: bool
    recipients: list[TimelineObject]
    request_id: str


def details(
    record: MessageRecord, facts: MessageFacts, pools: Mapping[str, PoolView], now: int, attempts: int, request_id: str
) -> MessageDetails:
    """All that is known of a message; `attempts` is how many a recipient may have."""
    message = record.message
    return MessageDetails(
        id=message.id,
        status=message.status,
        source=message.source,
        sender=message.sender,
        envelope_from=facts.envelope_from,
        subject=message.subject,
        tags=list(facts.tags),
        template=facts.template_alias,
        template_version=facts.template_version,
        size=facts.size,
        billing_status=message.billing_status,
        recipient_count=message.recipient_count,
        credits_reserved=message.credits_reserved,
        created_at=rfc3339(message.created_at),
        accepted_request_id=facts.request_id,
        body_kept=facts.body_kept,
        recipients=[_timeline(tried, pools[tried.domain], now, attempts) for tried in record.recipients],
        request_id=request_id,
    )


def _timeline(tried: TriedRecipient, pool: PoolView, now: int, attempts: int) -> TimelineObject:
    recipient = tried.recipient
    return TimelineObject(
        id=recipient.id,
        email=recipient.email,
        status=recipient.status,
        billing_status=recipient.billing_status,
        explanation=explain.standing(tried, replace(pool, for_operator=False), now, attempts),
        pool=None if tried.simulated else pool.name,
        simulated=tried.simulated,
        attempt_count=recipient.attempt_count,
        last_smtp_code=recipient.last_smtp_code,
        last_smtp_response=recipient.last_smtp_response,
        delivered_at=time_or_none(recipient.delivered_at),
        bounced_at=time_or_none(recipient.bounced_at),
        next_attempt_at=time_or_none(tried.next_attempt_at),
        attempts=[_attempt(number, attempt) for number, attempt in enumerate(tried.attempts, 1)],
    )


def _attempt(number: int, attempt: Attempt) -> AttemptObject:
    return AttemptObject(
        number=number,
        started_at=rfc3339(attempt.started_at),
        duration_ms=(attempt.finished_at - attempt.started_at) // 1000,
        pool=attempt.pool,
        mx_host=attempt.mx_host,
        mx_address=attempt.mx_address,
        tls=attempt.tls,
        smtp_code=attempt.smtp_code,
        smtp_response=attempt.smtp_response,
        decision=attempt.decision,
        dialogue=[LineObject(line.milliseconds, _speaker(line), line.text) for line in explain.dialogue(attempt)],
    )


def _speaker(line: explain.Spoken) -> Literal["C", "S", "*"]:
    match line.speaker:
        case "C":
            return "C"
        case "S":
            return "S"
        case _:
            return "*"
