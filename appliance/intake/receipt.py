"""The body of a 202: what `POST /emails` accepted, in the caller's own spelling."""

from typing import Literal

import msgspec

from appliance.message.compose import Draft
from appliance.model.mail import Billing


class AttachmentReceipt(msgspec.Struct, omit_defaults=True):
    filename: str
    content_type: str
    size: int
    content_id: str | msgspec.UnsetType = msgspec.UNSET


class Receipt(msgspec.Struct, rename={"sender": "from"}):
    id: str
    status: Literal["queued"]
    source: Literal["api"]
    request_id: str
    sender: str
    to: list[str]
    cc: list[str]
    bcc: list[str]
    subject: str
    billing_status: Billing
    recipient_count: int
    credits_reserved: int
    headers: dict[str, str]
    tags: list[str]
    attachments: list[AttachmentReceipt]
    reply_to: str | msgspec.UnsetType = msgspec.UNSET


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
