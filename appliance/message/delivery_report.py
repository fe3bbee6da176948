"""Writes delivery status notifications (RFC 3464): the mail that tells a sender what became of a message.

A report has a text for people, the fields for programs, and the header of the message, or all of it where that was
asked for. It comes from `postmaster` of the sender's own domain, whose keys sign it. No I/O, no state. Whatever was
said by clients and by other servers is written as printable ASCII within one field, so it cannot add another.
"""

import re
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from appliance.message import header_lines
from appliance.message.addresses import Address, parse
from appliance.message.compose import encode_lines
from appliance.model.mail import DsnCondition, DsnRequest
from appliance.times import SECOND

DIAGNOSTIC_CHARACTERS: Final = 500  # of what a server said
REPORTER_NAME: Final = "Mail Delivery System"

ACTIONS: Final = {
    # Not `delivered`: what the next server does with it is unknown here, and it was asked to report nothing.
    DsnCondition.SUCCESS: "relayed",
    DsnCondition.FAILURE: "failed",
    DsnCondition.DELAY: "delayed",
}
SUBJECTS: Final = {
    DsnCondition.SUCCESS: "Successful mail delivery report",
    DsnCondition.FAILURE: "Undelivered mail",
    DsnCondition.DELAY: "Delayed mail (still being retried)",
}
_OPENINGS: Final = {
    DsnCondition.SUCCESS: "Your message was accepted by the mail server of:",
    DsnCondition.FAILURE: "Your message could not be delivered to:",
    DsnCondition.DELAY: "Your message has not been delivered yet, and delivery is still being tried, to:",
}
_indented = partial(textwrap.wrap, width=76, initial_indent="    ", subsequent_indent="    ")
_CLASSES: Final = {DsnCondition.SUCCESS: "2", DsnCondition.FAILURE: "5", DsnCondition.DELAY: "4"}
_STATUS: Final = re.compile(r"(?:[245][0-9]{2}[ -])?([245])\.([0-9]{1,3}\.[0-9]{1,3})(?![0-9.])")


class ReportedRecipient(NamedTuple):
    """What became of one recipient, and what its sender has asked for."""

    address: str
    request: DsnRequest
    code: int | None  # of the last reply
    response: str  # of the server, or what was found without asking one
    remote_host: str | None = None  # that was asked
    attempted_at: int | None = None
    expired: bool = False  # it has failed because all attempts are used up


class OriginalMessage(NamedTuple):
    """What is returned of the message: its beginning, and whether that is all of it."""

    beginning: bytes
    whole: bool


def reporter(sender: Address) -> Address:
    """The From of a report to this address."""
    return parse(f"{REPORTER_NAME} <postmaster@{sender.domain}>", "from")


def delivery_report(
    message_id: str,
    sender: Address,
    condition: DsnCondition,
    recipients: Sequence[ReportedRecipient],
    original: OriginalMessage,
    *,
    accepted_at: int,
    now: int,
) -> bytes:
    """The report to `sender` under a new message id, which no part of it holds already."""
    boundary = f"=_r{message_id}"
    parts = [_for_people(condition, recipients), _for_programs(condition, recipients, accepted_at)]
    if original.beginning:
        parts.append(_returned(original, full=condition is DsnCondition.FAILURE and recipients[0].request.full))
    eight_bit = "" if all(part.isascii() for part in parts) else "Content-Transfer-Encoding: 8bit\r\n"
    head = "".join(
        (
            header_lines.mailboxes("From", (reporter(sender),)),
            header_lines.mailboxes("To", (sender,)),
            header_lines.subject(SUBJECTS[condition]),
            header_lines.date(now // SECOND),
            f"Message-ID: <{message_id.removeprefix('msg_')}@{sender.domain}>\r\n",
            "Auto-Submitted: auto-replied\r\n",
            "MIME-Version: 1.0\r\n",
            f'Content-Type: multipart/report; report-type=delivery-status;\r\n boundary="{boundary}"\r\n',
            eight_bit,
        )
    ).encode()
    bodies = b"".join(b"--%b\r\n%b\r\n" % (boundary.encode("ascii"), part) for part in parts)
    return b"%b\r\n%b--%b--\r\n" % (head, bodies, boundary.encode("ascii"))


def _for_people(condition: DsnCondition, recipients: Sequence[ReportedRecipient]) -> bytes:
    lines = ["This is the mail server at " + recipients[0].request.reporter + ".", "", _OPENINGS[condition], ""]
    for each in recipients:
        said = [f"{each.remote_host} said:"] if each.remote_host and each.code is not None else []
        lines += [f"<{each.address}>", *_indented(" ".join(said + _words(each))), ""]
    if condition is DsnCondition.DELAY:
        lines.append(
            "There is nothing you have to do. You will be told if delivery is given up, if you asked for that."
        )
    text = "".join(f"{line}\r\n" for line in lines)
    head = "Content-Type: text/plain; charset=utf-8\r\n"
    if text.isascii():
        return f"{head}\r\n{text}".encode("ascii")
    encoding, pieces = encode_lines([text.encode()])
    return f"{head}Content-Transfer-Encoding: {encoding}\r\n\r\n".encode("ascii") + b"".join(pieces)


def _words(recipient: ReportedRecipient) -> list[str]:
    """What was said, as words of printable ASCII; the reply with its code."""
    text, code = recipient.response, recipient.code
    if code is not None and not text.startswith(str(code)):
        text = f"{code} {text}"
    return _ascii(text[:DIAGNOSTIC_CHARACTERS]).split()


def _for_programs(condition: DsnCondition, recipients: Sequence[ReportedRecipient], accepted_at: int) -> bytes:
    """The fields of the message, then those of each recipient (RFC 3464 2.2 and 2.3)."""
    first = recipients[0].request
    groups = [f"Reporting-MTA: dns; {first.reporter}\r\n"]
    if first.envelope_id:
        groups[0] = f"Original-Envelope-Id: {_ascii(first.envelope_id)}\r\n" + groups[0]
    groups[0] += f"Arrival-{header_lines.date(accepted_at // SECOND)}"
    groups += [_group(condition, each) for each in recipients]
    return ("Content-Type: message/delivery-status\r\n\r\n" + "\r\n".join(groups)).encode("ascii")


def _group(condition: DsnCondition, recipient: ReportedRecipient) -> str:
    lines = []
    if recipient.request.original:
        lines.append(f"Original-Recipient: {_ascii(recipient.request.original)}\r\n")
    lines.append(f"Final-Recipient: {_typed(recipient.address)}\r\n")
    lines += [f"Action: {ACTIONS[condition]}\r\n", f"Status: {_status(condition, recipient)}\r\n"]
    if recipient.remote_host:
        lines.append(f"Remote-MTA: dns; {_ascii(recipient.remote_host)}\r\n")
    if words := _words(recipient):
        kind = " x-appliance;" if recipient.code is None else " smtp;"
        lines.append(header_lines.folded("Diagnostic-Code", [kind, *(f" {word}" for word in words)]))
    if recipient.attempted_at is not None:
        lines.append(f"Last-Attempt-{header_lines.date(recipient.attempted_at // SECOND)}")
    return "".join(lines)


def _typed(address: str) -> str:
    """An address with its type; one that is not ASCII as RFC 6533 3 writes it in seven bits."""
    if address.isascii():
        return f"rfc822; {_ascii(address)}"
    return "utf-8; " + "".join(each if each.isascii() else f"\\x{{{ord(each):X}}}" for each in address)


def _status(condition: DsnCondition, recipient: ReportedRecipient) -> str:
    """The status (RFC 3463): that of the reply, where it is of the right class."""
    if recipient.expired:
        return "4.4.7"
    expected, found = _CLASSES[condition], _STATUS.match(recipient.response)
    return f"{expected}.{found[2]}" if found is not None and found[1] == expected else f"{expected}.0.0"


def _returned(original: OriginalMessage, *, full: bool) -> bytes:
    """The message, or its header only."""
    if full and original.whole:
        kind, content = b"message/rfc822", original.beginning
    else:
        header, empty_line, _ = original.beginning.partition(b"\r\n\r\n")
        if not empty_line and not original.whole:  # it is cut: only whole lines are of use
            header = header.rpartition(b"\r\n")[0]
        kind, content = b"text/rfc822-headers", header.removesuffix(b"\r\n") + b"\r\n"
    if not content.isascii():
        kind += b"; charset=utf-8" if kind.startswith(b"text/") else b""
        kind += b"\r\nContent-Transfer-Encoding: 8bit"
    return b"Content-Type: %b\r\n\r\n%b" % (kind, content)


def _ascii(text: str) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in text)
