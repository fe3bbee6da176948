"""The object of `GET /v1/emails/{id}`: a message, every attempt for every recipient, and what happens next. No I/O."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import msgspec

from appliance.model.dashboard import MessageFacts
from appliance.model.mail import (
    Attempt,
    Billing,
    BounceClass,
    MessageRecord,
    MessageStatus,
    RecipientOutcome,
    RecipientStatus,
    Source,
    TriedRecipient,
)
from appliance.model.queue import PoolView
from appliance.report import explain
from appliance.times import rfc3339
from appliance.web.answer import Time, object_from, time_or_none

_SPEAKERS: dict[str, Literal["C", "S"]] = {"C": "C", "S": "S"}


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


class LateBounceObject(msgspec.Struct, rename={"bounce_class": "class"}):
    """A bounce that came by mail after the recipient's server had taken the message."""

    at: Time
    code: int | None
    response: str
    bounce_class: BounceClass


class TimelineObject(msgspec.Struct):
    """One recipient with all that was tried; `explanation` says where it stands and what happens next."""

    id: str
    email: str
    status: RecipientStatus
    outcome: RecipientOutcome
    billing_status: Billing
    explanation: str
    pool: str | None
    simulated: bool
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    bounce_class: BounceClass | None
    delivered_at: Time | None
    bounced_at: Time | None
    late_bounce: LateBounceObject | None
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


def encoded_details(
    record: MessageRecord, facts: MessageFacts, pools: Mapping[str, PoolView], now: int, attempts: int, request_id: str
) -> bytes:
    """All that is known of a message; `attempts` is how many a recipient may have."""
    shown = object_from(
        MessageDetails,
        record.message,
        envelope_from=facts.envelope_from,
        tags=list(facts.tags),
        template=facts.template_alias,
        template_version=facts.template_version,
        size=facts.size,
        accepted_request_id=facts.request_id,
        body_kept=facts.body_kept,
        recipients=[_timeline(tried, pools[tried.domain], now, attempts) for tried in record.recipients],
        request_id=request_id,
    )
    return msgspec.json.encode(shown)


def _timeline(tried: TriedRecipient, pool: PoolView, now: int, attempts: int) -> TimelineObject:
    late = tried.recipient.late_bounce
    return object_from(
        TimelineObject,
        tried.recipient,
        outcome=tried.recipient.outcome,
        explanation=explain.standing(tried, replace(pool, for_operator=False), now, attempts),
        pool=None if tried.simulated else pool.name,
        simulated=tried.simulated,
        late_bounce=late and object_from(LateBounceObject, late, at=rfc3339(late.at)),
        next_attempt_at=time_or_none(tried.next_attempt_at),
        attempts=[_attempt(number, attempt) for number, attempt in enumerate(tried.attempts, 1)],
    )


def _attempt(number: int, attempt: Attempt) -> AttemptObject:
    duration = (attempt.finished_at - attempt.started_at) // 1000
    lines = explain.dialogue(attempt)
    dialogue = [LineObject(line.milliseconds, _SPEAKERS.get(line.speaker, "*"), line.text) for line in lines]
    return object_from(AttemptObject, attempt, number=number, duration_ms=duration, dialogue=dialogue)
