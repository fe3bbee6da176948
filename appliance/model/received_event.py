"""The data of the event `email.received`, which the API returns for a received message, too. No I/O."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from appliance.model.received import CheckResult
from appliance.model.webhooks import EventType
from appliance.times import rfc3339

_VERDICT = "`pass`, `fail`, `softfail`, `neutral`, `none`, `temperror` or `permerror`."


class EnvelopeObject(Struct, gc=False):
    """The SMTP envelope."""

    sender: Annotated[str, Meta(description="MAIL FROM; empty for bounces.")] = msgspec.field(name="from")
    to: Annotated[list[str], Meta(description="RCPT TO: the receiving addresses of the account.")]


class ReceivedHeaderObject(Struct, gc=False):
    """A header field of a received message."""

    name: Annotated[str, Meta(description="Header field name.")]
    value: Annotated[str, Meta(description="Decoded value.")]


class ReceivedFileObject(Struct, gc=False):
    """A file attached to a received message."""

    number: Annotated[int, Meta(description="Number of the file, starting at 1.")]
    filename: Annotated[str, Meta(description="File name, as the sender wrote it.")]
    content_type: Annotated[str, Meta(description="Media type, as the sender wrote it.")]
    size: Annotated[int, Meta(description="Decoded size in bytes.")]
    url: Annotated[str, Meta(description="Link to the file, valid for an hour.")]
    content_id: Annotated[str | UnsetType, Meta(description="Content id of an inline image; omitted without one.")] = (
        UNSET
    )


class AnsweredEmailObject(Struct, gc=False):
    """The message of the account that a received message answers."""

    id: Annotated[str, Meta(description="Message id, `msg_…`.")]
    metadata: Annotated[dict[str, str], Meta(description="Metadata of the message.")]


class ReceivedData(Struct, gc=False, kw_only=True):
    """A received message."""

    inbound_id: Annotated[str, Meta(description="Id of the received message, `inb_…`.")]
    envelope: Annotated[EnvelopeObject, Meta(description="SMTP envelope.")]
    sender: Annotated[str, Meta(description="From header.")] = msgspec.field(name="from")
    to: Annotated[list[str], Meta(description="Mailboxes of the To header.")]
    cc: Annotated[list[str], Meta(description="Mailboxes of the Cc header.")]
    reply_to: Annotated[list[str], Meta(description="Mailboxes of the Reply-To header.")]
    subject: Annotated[str, Meta(description="Decoded subject.")]
    text: Annotated[str | None, Meta(description="Plain-text body, up to 256 KiB; null without one.")]
    html: Annotated[str | None, Meta(description="HTML body, up to 256 KiB; null without one.")]
    headers: Annotated[list[ReceivedHeaderObject], Meta(description="Decoded header fields, at most 200.")]
    message_id: Annotated[str | None, Meta(description="`Message-ID` without brackets, or null.")]
    in_reply_to: Annotated[str | None, Meta(description="First id of `In-Reply-To` without brackets, or null.")]
    in_reply_to_email: Annotated[
        AnsweredEmailObject | UnsetType, Meta(description="The message it answers, if the account sent it.")
    ] = UNSET
    attachments: Annotated[list[ReceivedFileObject], Meta(description="Attached files.")]
    spf: Annotated[CheckResult, Meta(description=f"SPF result: {_VERDICT}")]
    dkim: Annotated[CheckResult, Meta(description=f"DKIM result: {_VERDICT}")]
    dmarc: Annotated[CheckResult, Meta(description=f"DMARC result: {_VERDICT}")]
    size: Annotated[int, Meta(description="Size of the message in bytes.")]
    raw_url: Annotated[str, Meta(description="Link to the raw message, valid for an hour.")]
    truncated: Annotated[bool | UnsetType, Meta(description="True if a body was cut; omitted otherwise.")] = UNSET
    auto_submitted: Annotated[
        bool | UnsetType, Meta(description="True if a program sent the message, or it loops; omitted otherwise.")
    ] = UNSET
    test: Annotated[bool | UnsetType, Meta(description="True in test events; omitted otherwise.")] = UNSET


class ReceivedEvent(Struct, gc=False):
    """The body of a post about a received message."""

    id: Annotated[str, Meta(description="Event id, `evt_…`. Retries and replays keep it.")]
    type: Annotated[str, Meta(extra_json_schema={"enum": [EventType.RECEIVED]}, description="Event type.")]
    created_at: Annotated[
        str,
        Meta(extra_json_schema={"format": "date-time"}, description="Time of receipt. Retries and replays keep it."),
    ]
    data: Annotated[ReceivedData, Meta(description="The received message.")]


_ENCODER = msgspec.json.Encoder()


def received_envelope(event_id: str, received_at: int, data: ReceivedData) -> bytes:
    return _ENCODER.encode(ReceivedEvent(event_id, EventType.RECEIVED, rfc3339(received_at), data))


def example_received(event_id: str, created_at: int) -> bytes:
    """The JSON body of a test event."""
    data = ReceivedData(
        inbound_id="inb_00000000000000000000000000000000",
        envelope=EnvelopeObject("ada@example.net", ["support@in.example.com"]),
        sender="Ada Lovelace <ada@example.net>",
        to=["support@in.example.com"],
        cc=[],
        reply_to=[],
        subject="Re: Your order",
        text="It has arrived. Thank you!\r\n",
        html=None,
        headers=[ReceivedHeaderObject("Subject", "Re: Your order")],
        message_id="answer@example.net",
        in_reply_to=f"{'0' * 32}@example.com",
        attachments=[],
        spf=CheckResult.PASS,
        dkim=CheckResult.PASS,
        dmarc=CheckResult.PASS,
        size=420,
        raw_url="https://mail.example.com/inbound/example",
        test=True,
    )
    return received_envelope(event_id, created_at, data)
