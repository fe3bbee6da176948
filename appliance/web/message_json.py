"""The two operations of `/emails`, which the edge answers, and the object of `GET /emails/{id}`."""

import msgspec

from appliance.errors import Code
from appliance.intake.receipt import Receipt
from appliance.message.limits import KEY_LENGTH
from appliance.message.schema import SendRequest
from appliance.model.mail import Billing, Message, MessageStatus, RecipientStatus, Source
from appliance.times import rfc3339
from appliance.web.answer import Time, time_or_none
from appliance.web.operations import SEND, Operation, parameter


class RecipientObject(msgspec.Struct):
    """One recipient in a message object."""

    id: str
    email: str
    status: RecipientStatus
    billing_status: Billing
    attempt_count: int
    last_smtp_code: int | None
    last_smtp_response: str | None
    delivered_at: Time | None
    bounced_at: Time | None


class MessageObject(msgspec.Struct, rename={"sender": "from"}):
    """The body of `GET /emails/{id}`."""

    id: str
    status: MessageStatus
    source: Source
    sender: str
    subject: str
    billing_status: Billing
    recipient_count: int
    credits_reserved: int
    created_at: Time
    recipients: list[RecipientObject]
    request_id: str


def message_json(message: Message, request_id: str) -> bytes:
    recipients = [
        RecipientObject(
            each.id,
            each.email,
            each.status,
            each.billing_status,
            each.attempt_count,
            each.last_smtp_code,
            each.last_smtp_response,
            time_or_none(each.delivered_at),
            time_or_none(each.bounced_at),
        )
        for each in message.recipients
    ]
    return msgspec.json.encode(
        MessageObject(
            id=message.id,
            status=message.status,
            source=message.source,
            sender=message.sender,
            subject=message.subject,
            billing_status=message.billing_status,
            recipient_count=message.recipient_count,
            credits_reserved=message.credits_reserved,
            created_at=rfc3339(message.created_at),
            recipients=recipients,
            request_id=request_id,
        )
    )


KEY_PARAMETER = parameter(
    "Idempotency-Key",
    "header",
    "Chosen by the client, valid for 24 hours; a retry with the same key and body is safe.",
    {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    required=True,
)
MESSAGE_ID = parameter("id", "path", "The `id` of the send response.", {"type": "string"})


EMAIL_OPERATIONS = (
    Operation(
        "POST /emails",
        (202, Receipt, "Accepted and on disk. A retry also has `Idempotent-Replayed` and `Original-Request-ID`."),
        tuple(code for code in Code if code is not Code.NOT_FOUND and code is not Code.CONFLICT),
        SendRequest,
        SEND,
        (KEY_PARAMETER,),
        ("Idempotent-Replayed", "Original-Request-ID"),
        id="sendEmail",
        summary="Accept a message for delivery.",
        description=(
            "One credit is reserved for each unique recipient. A 202 means that the message is on disk and will be "
            "delivered, not that it was: read that with `getEmail`, or have it posted to a webhook.\n\n"
            "A request that was not answered, or answered with 429, 503 or `idempotency_in_progress`, is safe to send "
            "again with the same `Idempotency-Key` and body: it is never accepted twice."
        ),
        links={
            "getEmail": {
                "operationId": "getEmail",
                "parameters": {"id": "$response.body#/id"},
                "description": "What became of the message.",
            }
        },
    ),
    Operation(
        "GET /emails/{id}",
        (200, MessageObject, "The message."),
        (Code.UNAUTHORIZED, Code.NOT_FOUND),
        security=SEND,
        parameters=(MESSAGE_ID,),
        id="getEmail",
        summary="Read a message and what became of each recipient.",
        description=(
            "`status` is `queued` until every recipient is final, then `delivered`, `failed`, or `partial` for a mix. "
            "A message of another account is not found. An API key needs the scope `full`, `read` or `manage` for this."
        ),
    ),
)
