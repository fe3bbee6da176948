"""Reads complaints of mailbox providers: feedback reports (RFC 5965), and the older form of Microsoft's JMRP, which
only attaches the message. No I/O, nothing raises.

Providers often remove the recipient from a report. The message itself identifies it: by the token of its return path or
its unsubscribe address, in any field, or by its DKIM signature and Message-ID. The caller checks these candidates.
"""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct

from appliance.feedback.mime import ReceivedMail, field_groups, first_value, open_mail
from appliance.message.decoding import one_line
from appliance.message.dkim import HeaderSignature, header_signatures

RETURN_PATHS: Final = 20  # candidates in one report
_SHOWN: Final = 255  # characters of a field
_SEARCHED: Final = 64 * 1024  # characters of the header of the message inside

_RETURN_PATH: Final = re.compile(r"\b(?:b\+[a-z2-7]{24}|u\+[a-z2-7]{25})@[a-z0-9.-]{1,253}", re.ASCII | re.IGNORECASE)
_MESSAGE_ID: Final = re.compile(r"<([^<>\s]{1,250})>")
_JMRP: Final = re.compile(r"complaint about message from|staff@hotmail\.com", re.IGNORECASE)


class FeedbackType(StrEnum):
    """RFC 5965 7.3, RFC 6591, RFC 6430. All but `not-spam` and `auth-failure` are complaints."""

    ABUSE = "abuse"
    FRAUD = "fraud"
    VIRUS = "virus"
    OPT_OUT = "opt-out"
    NOT_SPAM = "not-spam"
    AUTH_FAILURE = "auth-failure"
    OTHER = "other"


class Complaint(Struct, frozen=True, kw_only=True):
    feedback_type: FeedbackType
    reporter: str = ""  # the User-Agent, or the sender of the report
    return_paths: tuple[str, ...] = ()  # addresses that look like ours, in lower case; not checked
    message_id: str = ""  # without its angle brackets
    signatures: tuple[HeaderSignature, ...] = ()  # of the message inside; not verified

    @property
    def is_complaint(self) -> bool:
        return self.feedback_type not in (FeedbackType.NOT_SPAM, FeedbackType.AUTH_FAILURE)


def read_complaint(mime: bytes, *, attached: bool = False) -> Complaint | None:
    """Return the complaint in a message, or None.

    `attached`: any mail with an attached message that is not a bounce is a complaint, as some providers send them.
    """
    mail = open_mail(mime)
    part = mail.part("/feedback-report")
    if part is not None:
        groups = field_groups(part)
        return _complaint(mail, {name: value for group in reversed(groups) for name, value in group.items()})
    if mail.part("/delivery-status", "/disposition-notification") is not None or not mail.embedded:
        return None
    jmrp = first_value(mail.embedded, "x-hmxmroriginalrecipient") or _JMRP.search(
        f"{mail.header('subject')} {mail.header('from')}"
    )
    return _complaint(mail, {"feedback-type": "abuse"}) if attached or jmrp else None


def _complaint(mail: ReceivedMail, fields: dict[str, str]) -> Complaint:
    inside = mail.embedded
    kept = [*fields.values(), *(value for _, value in inside)]
    paths = _RETURN_PATH.findall(" ".join(kept)[:_SEARCHED])
    name = fields.get("feedback-type", "").lower().strip()
    message_id = _MESSAGE_ID.search(first_value(inside, "message-id"))
    return Complaint(
        feedback_type=next((kind for kind in FeedbackType if kind == name), FeedbackType.OTHER),
        reporter=one_line(fields.get("user-agent", "") or mail.header("from"))[:_SHOWN],
        return_paths=tuple(dict.fromkeys(path.lower().rstrip(".") for path in paths))[:RETURN_PATHS],
        message_id=message_id[1] if message_id else "",
        signatures=tuple(header_signatures(mail.embedded_bytes)),
    )
