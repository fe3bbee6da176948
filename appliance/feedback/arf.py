"""Complaints of mailbox providers: feedback reports (RFC 5965) as Yahoo, Comcast and Validity send them, and the older
form of Microsoft's JMRP, which only attaches the message. No I/O, nothing raises.

Providers often remove the recipient from a report. What leads to the recipient is what we wrote into the message: the
token of its return path or of its address to unsubscribe, in whatever field the provider kept it, and its DKIM
signature with its Message-ID. All are candidates: the caller checks them.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from appliance.feedback.mime import ReceivedMail, field_groups, first_value, open_mail
from appliance.message.decoding import one_line
from appliance.message.dkim_verify import HeaderSignature, header_signatures

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One report; a field is empty or None where the report has none that can be read."""

    feedback_type: FeedbackType
    reporter: str = ""  # the User-Agent, or who sent the report
    recipients: tuple[str, ...] = ()  # where the provider tells
    return_paths: tuple[str, ...] = ()  # addresses that look like ours, in lower case; not checked
    message_id: str = ""  # without its angle brackets
    signatures: tuple[HeaderSignature, ...] = ()  # of the message inside; not verified

    @property
    def is_complaint(self) -> bool:
        return self.feedback_type not in (FeedbackType.NOT_SPAM, FeedbackType.AUTH_FAILURE)


def read_complaint(mime: bytes, *, attached: bool = False) -> Complaint | None:
    """The report in this message; None when it is none.

    With `attached` any message that has another one attached, and is no bounce, is a complaint: for what comes to the
    address of complaints, where providers without a format of their own send it.
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
    told = [fields.get("original-rcpt-to", ""), first_value(inside, "x-hmxmroriginalrecipient")]
    kept = [*fields.values(), *(value for _, value in inside)]
    paths = _RETURN_PATH.findall(" ".join(kept)[:_SEARCHED])
    message_id = _MESSAGE_ID.search(first_value(inside, "message-id"))
    return Complaint(
        feedback_type=_type(fields.get("feedback-type", "")),
        reporter=_shown(fields.get("user-agent", "") or mail.header("from")),
        recipients=tuple(dict.fromkeys(address for value in told if (address := _address(value)))),
        return_paths=tuple(dict.fromkeys(path.lower().rstrip(".") for path in paths))[:RETURN_PATHS],
        message_id=message_id[1] if message_id else "",
        signatures=tuple(header_signatures(mail.embedded_bytes)),
    )


def _type(value: str) -> FeedbackType:
    name = value.lower().strip()
    return next((kind for kind in FeedbackType if kind == name), FeedbackType.OTHER)


def _shown(value: str) -> str:
    return one_line(value)[:_SHOWN]


def _address(value: str) -> str:
    """The bare address of a field: `<a@b.c>`, `a@b.c`, `rfc822; a@b.c`."""
    bare = value.rpartition(";")[2].rpartition("<")[2].partition(">")[0].strip()
    return _shown(bare) if 0 < bare.find("@") < len(bare) - 1 and " " not in bare else ""
