"""The objects of `GET /emails/{id}` and `/v1/emails`: messages, their recipients and attempts. No I/O."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from appliance.model import mail
from appliance.model.dashboard import MailPage, MessageFacts
from appliance.model.queue import PoolView
from appliance.model.ramp import Via
from appliance.report import explain
from appliance.times import rfc3339
from appliance.web.exchange import ApiAnswer, CreatedAt, NextPage, RequestId, Time, object_from, time_or_none

MessageId = Annotated[str, Meta(description="Message id, `msg_…`.")]
MessageState = Annotated[
    mail.MessageStatus,
    Meta(description="`queued` until every recipient is final, then `delivered`, `partial` or `failed`."),
]
MessageSource = Annotated[mail.Source, Meta(description="Where the message came from: `api`, `smtp` or `test`.")]
Sender = Annotated[str, Meta(description="Sender, as submitted.")]
Subject = Annotated[str, Meta(description="Subject.")]
Metadata = Annotated[dict[str, str] | UnsetType, Meta(description="Metadata of the send request; omitted without any.")]
Tags = Annotated[list[str], Meta(description="Tags.")]
RecipientCount = Annotated[int, Meta(description="Number of unique recipients.")]
CreditsReserved = Annotated[int, Meta(description="Credits reserved: one per recipient, none for test mail.")]
BillingState = Annotated[
    mail.Billing, Meta(description="`reserved`, then `settled` (delivered or failed) or `released` (credit returned).")
]
RecipientState = Annotated[
    mail.RecipientStatus,
    Meta(description="`scheduled`, `queued`, `deferred` (will be retried), `delivered`, `bounced` or `failed`."),
]
Outcome = Annotated[
    mail.RecipientOutcome,
    Meta(description="As `status`, or `suppressed`, `cancelled`, or after delivery `late_bounced` or `complained`."),
]
BareAddress = Annotated[str, Meta(description="Address without a display name.")]
LastCode = Annotated[int | None, Meta(description="Last SMTP reply code; null if no server replied.")]
LastResponse = Annotated[str | None, Meta(description="Last SMTP reply or error; null before the first attempt.")]
LastClass = Annotated[mail.BounceClass | None, Meta(description="Class of the last refusal, or null.")]
ScheduledTime = Annotated[Time | None, Meta(description="Scheduled time; null without one.")]
NextAttemptAt = Annotated[Time | None, Meta(description="Time of the next attempt, or null.")]

StreamOfMessage = Annotated[str, Meta(description="Stream of the message.")]
_SPEAKERS: dict[str, Literal["C", "S"]] = {"C": "C", "S": "S"}


class RecipientObject(msgspec.Struct):
    """One recipient of a message."""

    id: Annotated[str, Meta(description="Recipient id, `rcp_…`.")]
    email: BareAddress
    status: RecipientState
    billing_status: BillingState
    attempt_count: Annotated[int, Meta(description="Number of delivery attempts.")]
    last_smtp_code: LastCode
    last_smtp_response: LastResponse
    delivered_at: Annotated[Time | None, Meta(description="Time of delivery; null if not delivered.")]
    bounced_at: Annotated[Time | None, Meta(description="Time of the bounce; null if it did not bounce.")]


class _MessageFields(msgspec.Struct, rename={"sender": "from"}):
    id: MessageId
    status: MessageState
    source: MessageSource
    sender: Sender
    subject: Subject
    billing_status: BillingState
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved
    created_at: CreatedAt


class MessageObject(_MessageFields):
    """The body of `GET /emails/{id}`."""

    recipients: Annotated[list[RecipientObject], Meta(description="Recipients, in the order of `to`, `cc` and `bcc`.")]
    request_id: RequestId
    scheduled_at: Annotated[Time | UnsetType, Meta(description="Scheduled time; omitted without one.")] = UNSET
    metadata: Metadata = UNSET


class LineObject(msgspec.Struct):
    """One line of an SMTP dialogue."""

    ms: Annotated[int, Meta(description="Milliseconds since the start of the attempt.")]
    speaker: Annotated[Literal["C", "S", "*"], Meta(description="`C`: this server, `S`: remote server, `*`: remark.")]
    text: Annotated[str, Meta(description="The line without its line break.")]


class AttemptObject(msgspec.Struct):
    """One delivery attempt for one recipient."""

    number: Annotated[int, Meta(description="Number of the attempt, starting at 1.")]
    started_at: Annotated[Time, Meta(description="Start of the attempt.")]
    duration_ms: Annotated[int, Meta(description="Duration of the attempt in milliseconds.")]
    pool: Annotated[str | None, Meta(description="Provider pool; null until the domain has been looked up.")]
    source: Annotated[
        str | None, Meta(description="Source address of the settings that it left from; null if the system chose one.")
    ]
    mx_host: Annotated[str | None, Meta(description="Host name of the mail server; null if no server was reached.")]
    mx_address: Annotated[str | None, Meta(description="IP address of the mail server; null if no server was reached.")]
    tls: Annotated[str | None, Meta(description="TLS version, cipher and verification; null without TLS.")]
    smtp_code: Annotated[int | None, Meta(description="SMTP reply code of the attempt; null if no server replied.")]
    smtp_response: Annotated[str | None, Meta(description="SMTP reply of the attempt, or the error instead of one.")]
    decision: Annotated[str | None, Meta(description="Result of the attempt and next step; null in the sandbox.")]
    dialogue: Annotated[list[LineObject], Meta(description="Recorded lines of the SMTP session.")]
    route: Annotated[
        Via | None,
        Meta(description="`direct` to a mail server of the domain, or by the `relay`; null for simulated attempts."),
    ]


class LateBounceObject(msgspec.Struct, rename={"bounce_class": "class"}):
    """A bounce received by mail after the recipient's server had accepted the message."""

    at: Annotated[Time, Meta(description="Time of receipt.")]
    code: Annotated[int | None, Meta(description="Reported SMTP code; null if none is reported.")]
    response: Annotated[str, Meta(description="Reported reason.")]
    bounce_class: Annotated[mail.BounceClass, Meta(description="Class of the bounce.")]


class ComplaintObject(msgspec.Struct):
    """A report by the recipient's provider that the recipient marked the message as spam."""

    at: Annotated[Time, Meta(description="Time of receipt.")]
    kind: Annotated[str, Meta(description="Kind of the report (RFC 5965 7.3), usually `abuse`.")]


class TimelineObject(RecipientObject):
    """One recipient with every delivery attempt."""

    outcome: Outcome
    explanation: Annotated[str, Meta(description="Current state of the recipient, its cause and the next step.")]
    pool: Annotated[str | None, Meta(description="Provider pool; null until the domain has been looked up.")]
    simulated: Annotated[bool, Meta(description="Whether delivery is simulated.")]
    bounce_class: LastClass
    late_bounce: Annotated[LateBounceObject | None, Meta(description="Bounce after delivery, or null.")]
    complaint: Annotated[ComplaintObject | None, Meta(description="Spam complaint after delivery, or null.")]
    suppression: Annotated[
        mail.SuppressionOrigin | None,
        Meta(
            description="Why the account sends no such message to this address now; null if it does. "
            "`unsubscribe`: the recipient unsubscribed from the message's tag, template or stream."
        ),
    ]
    next_attempt_at: NextAttemptAt
    attempts: Annotated[list[AttemptObject], Meta(description="Delivery attempts, oldest first.")]


class MessageDetails(_MessageFields):
    """A message with the timeline of each recipient."""

    envelope_from: Annotated[str, Meta(description="Envelope sender (MAIL FROM).")]
    tags: Tags
    template: Annotated[str | None, Meta(description="Alias of the template; null without one.")]
    template_version: Annotated[int | None, Meta(description="Version of the template; null without one.")]
    size: Annotated[int, Meta(description="Size in bytes.")]
    accepted_request_id: Annotated[str, Meta(description="Id of the request that submitted the message.")]
    body_kept: Annotated[bool, Meta(description="Whether the body is still stored.")]
    stream: StreamOfMessage
    scheduled_at: ScheduledTime
    recipients: Annotated[list[TimelineObject], Meta(description="Recipients, in the order of `to`, `cc` and `bcc`.")]
    request_id: RequestId
    metadata: Metadata = UNSET


class ListedRecipientObject(msgspec.Struct):
    """One of a message's first recipients."""

    email: BareAddress
    status: RecipientState
    outcome: Outcome


class ListedMessageObject(msgspec.Struct, rename={"sender": "from"}):
    """A message in a list."""

    id: MessageId
    status: MessageState
    source: MessageSource
    sender: Sender
    subject: Subject
    tags: Tags
    recipient_count: RecipientCount
    recipients: Annotated[list[ListedRecipientObject], Meta(description="The first three recipients.")]
    outcomes: Annotated[dict[str, int], Meta(description="Number of recipients by outcome, of all recipients.")]
    created_at: CreatedAt
    scheduled_at: ScheduledTime
    stream: StreamOfMessage


class EmailsAnswer(ApiAnswer):
    """A page of messages, newest first. Pass `next` as `before` to get the next page."""

    emails: Annotated[list[ListedMessageObject], Meta(description="Messages, newest first.")]
    next: NextPage


class ResentAnswer(ApiAnswer):
    """The new message and the original."""

    id: Annotated[str, Meta(description="Id of the new message, `msg_…`.")]
    repeats: Annotated[str, Meta(description="Id of the original message.")]
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved


def message_json(message: mail.Message, request_id: str) -> bytes:
    recipients = [object_from(RecipientObject, recipient) for recipient in message.recipients]
    created_at = rfc3339(message.created_at)
    due_at = UNSET if message.scheduled_at is None else rfc3339(message.scheduled_at)
    others = {"recipients": recipients, "request_id": request_id, "metadata": message.metadata or UNSET}
    times = {"created_at": created_at, "scheduled_at": due_at}
    return msgspec.json.encode(object_from(MessageObject, message, **times, **others))


def encoded_details(
    record: mail.MessageRecord,
    facts: MessageFacts,
    pools: Mapping[str, PoolView],
    suppressed: Mapping[str, mail.SuppressionOrigin],
    now: int,
    attempts: int,
    request_id: str,
) -> bytes:
    """The MessageDetails as JSON; `attempts` is the maximum per recipient, `suppressed` is by recipient id."""
    details = object_from(
        MessageDetails,
        record.message,
        envelope_from=facts.envelope_from,
        tags=list(facts.tags),
        template=facts.template_alias,
        template_version=facts.template_version,
        size=facts.size,
        accepted_request_id=facts.request_id,
        body_kept=facts.body_kept,
        recipients=[
            _timeline(tried, pools[tried.domain], suppressed.get(tried.recipient.id), now, attempts)
            for tried in record.recipients
        ],
        request_id=request_id,
        metadata=record.message.metadata or UNSET,
    )
    return msgspec.json.encode(details)


def _timeline(
    tried: mail.TriedRecipient, pool: PoolView, suppression: mail.SuppressionOrigin | None, now: int, attempts: int
) -> TimelineObject:
    late, complaint = tried.recipient.late_bounce, tried.recipient.complaint
    return object_from(
        TimelineObject,
        tried.recipient,
        outcome=tried.recipient.outcome,
        explanation=explain.standing(tried, replace(pool, for_operator=False), now, attempts),
        pool=None if tried.simulated else pool.name,
        simulated=tried.simulated,
        late_bounce=late and object_from(LateBounceObject, late, at=rfc3339(late.at)),
        complaint=complaint and ComplaintObject(rfc3339(complaint.at), complaint.kind),
        suppression=suppression,
        next_attempt_at=time_or_none(tried.next_attempt_at),
        attempts=[_attempt(number, attempt) for number, attempt in enumerate(tried.attempts, 1)],
    )


def _attempt(number: int, attempt: mail.Attempt) -> AttemptObject:
    duration = (attempt.finished_at - attempt.started_at) // 1000
    lines = explain.dialogue(attempt)
    dialogue = [LineObject(line.milliseconds, _SPEAKERS.get(line.speaker, "*"), line.text) for line in lines]
    return object_from(AttemptObject, attempt, number=number, duration_ms=duration, dialogue=dialogue)


def encoded_page(page: MailPage, request_id: str) -> bytes:
    emails = [
        object_from(
            ListedMessageObject,
            message,
            tags=list(message.tags),
            recipients=[object_from(ListedRecipientObject, recipient) for recipient in message.recipients],
            outcomes={outcome.value: count for outcome, count in message.outcomes.items()},
        )
        for message in page.messages
    ]
    return msgspec.json.encode(EmailsAnswer(emails, page.next, request_id=request_id))
