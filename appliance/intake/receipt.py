"""The body of a 202: what `POST /emails` accepted, in the caller's own spelling."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from appliance.message.compose import Draft
from appliance.model.mail import Billing


class AttachmentReceipt(msgspec.Struct, omit_defaults=True):
    """An attachment of an accepted message."""

    filename: Annotated[str, Meta(description="File name without a path.")]
    content_type: Annotated[str, Meta(description="Media type.")]
    size: Annotated[int, Meta(description="Decoded size in bytes.")]
    content_id: Annotated[str | msgspec.UnsetType, Meta(description="Content id of an inline image.")] = msgspec.UNSET


class Receipt(msgspec.Struct, rename={"sender": "from"}):
    """An accepted message, in the spelling of the request."""

    id: Annotated[str, Meta(description="Message id, `msg_…`.")]
    status: Annotated[Literal["queued"], Meta(description="Always `queued`.")]
    source: Annotated[Literal["api"], Meta(description="Always `api`.")]
    request_id: Annotated[str, Meta(description="Request id, equal to the header `X-Request-ID`.")]
    sender: Annotated[str, Meta(description="Sender, as submitted.")]
    to: Annotated[list[str], Meta(description="Recipients as submitted, without duplicates.")]
    cc: Annotated[list[str], Meta(description="Cc recipients as submitted, without duplicates.")]
    bcc: Annotated[list[str], Meta(description="Bcc recipients as submitted, without duplicates.")]
    subject: Annotated[str, Meta(description="Subject, with the template's placeholders filled in.")]
    billing_status: Annotated[Billing, Meta(description="Always `reserved`.")]
    recipient_count: Annotated[int, Meta(description="Number of unique recipients.")]
    credits_reserved: Annotated[int, Meta(description="Credits reserved: one per recipient, none for test mail.")]
    headers: Annotated[dict[str, str], Meta(description="Custom headers.")]
    tags: Annotated[list[str], Meta(description="Tags.")]
    attachments: Annotated[list[AttachmentReceipt], Meta(description="Attached files.")]
    reply_to: Annotated[str | msgspec.UnsetType, Meta(description="Reply-To as submitted; omitted without one.")] = (
        msgspec.UNSET
    )


def receipt_of(drafted: Draft, message_id: str, request_id: str, credits_needed: int) -> Receipt:
    return Receipt(
        id=message_id,
        status="queued",
        source="api",
        request_id=request_id,
        sender=drafted.sender.text,
        to=[address.text for address in drafted.to],
        cc=[address.text for address in drafted.cc] if drafted.cc else [],
        bcc=[address.text for address in drafted.bcc] if drafted.bcc else [],
        subject=drafted.subject,
        billing_status=Billing.RESERVED,
        recipient_count=len(drafted.recipients),
        credits_reserved=credits_needed,
        headers=dict(drafted.headers),
        tags=list(drafted.tags),
        attachments=[
            AttachmentReceipt(file.filename, file.content_type, len(file.content), file.content_id or msgspec.UNSET)
            for file in drafted.files
        ],
        reply_to=drafted.reply_to.text if drafted.reply_to else msgspec.UNSET,
    )
