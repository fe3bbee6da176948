"""Describes a received message: for its event, and for the API."""

from msgspec import UNSET

from appliance.keys.received_links import RAW, ReceivedLinks
from appliance.message.received import ReceivedContent
from appliance.model.received import ReceivedEnvelope, ReceivedFacts
from appliance.model.received_event import (
    AnsweredEmailObject,
    EnvelopeObject,
    ReceivedData,
    ReceivedFileObject,
    ReceivedHeaderObject,
)


def received_data(
    links: ReceivedLinks,
    account_id: str,
    message_id: str,
    envelope: ReceivedEnvelope,
    size: int,
    content: ReceivedContent,
    facts: ReceivedFacts,
    now: int,
) -> ReceivedData:
    """Describe a message, with links that are valid for an hour from `now`."""
    checks, answers = facts.authentication, facts.answers
    return ReceivedData(
        inbound_id=message_id,
        envelope=EnvelopeObject(envelope.sender, list(envelope.recipients)),
        sender=content.sender,
        to=list(content.to),
        cc=list(content.cc),
        reply_to=list(content.reply_to),
        subject=content.subject,
        text=content.text,
        html=content.html,
        headers=[ReceivedHeaderObject(name, value) for name, value in content.headers],
        message_id=content.message_id,
        in_reply_to=content.in_reply_to,
        in_reply_to_email=UNSET if answers is None else AnsweredEmailObject(answers.id, answers.metadata),
        attachments=[
            ReceivedFileObject(
                number,
                file.filename,
                file.content_type,
                file.size,
                links.url(account_id, message_id, number, now),
                file.content_id or UNSET,
            )
            for number, file in enumerate(content.attachments, 1)
        ],
        spf=checks.spf.result,
        dkim=checks.dkim_result,
        dmarc=checks.dmarc.result,
        size=size,
        raw_url=links.url(account_id, message_id, RAW, now),
        truncated=content.truncated or UNSET,
        auto_submitted=content.auto_submitted or UNSET,
    )
