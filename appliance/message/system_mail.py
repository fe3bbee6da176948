"""Writes the mail that the server itself sends: delivery status notifications (RFC 3464), forwarded feedback, notices.

A notification comes from `postmaster` at the sender's domain, whose keys sign it. Texts of clients and other servers
are written as printable ASCII within one field, so they cannot add another. `Auto-Submitted` (RFC 3834 5) marks
forwarded mail, so two servers that forward to each other do not loop. No I/O, no state.
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

DIAGNOSTIC_CHARACTERS: Final = 500  # of a server's reply
REPORTER_NAME: Final = "Mail Delivery System"

ACTIONS: Final = {
    # Not `delivered`: the next server may still fail, and it is not asked to report.
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
    DsnCondition.DELAY: "Your message has not been delivered yet, and delivery is still being retried, to:",
}
_indented = partial(textwrap.wrap, width=76, initial_indent="    ", subsequent_indent="    ")
_EIGHT_BIT: Final = "Content-Transfer-Encoding: 8bit\r\n"
_CLASSES: Final = {DsnCondition.SUCCESS: "2", DsnCondition.FAILURE: "5", DsnCondition.DELAY: "4"}
_STATUS: Final = re.compile(r"(?:[245][0-9]{2}[ -])?([245])\.([0-9]{1,3}\.[0-9]{1,3})(?![0-9.])")


class ReportedRecipient(NamedTuple):
    address: str
    request: DsnRequest
    code: int | None  # of the last reply
    response: str  # of the server, or the local reason
    remote_host: str | None = None
    attempted_at: int | None = None
    expired: bool = False  # failed because all attempts are used up


class OriginalMessage(NamedTuple):
    beginning: bytes
    whole: bool


def reporter(sender: Address) -> Address:
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
    """Return the report to `sender`; `message_id` is new and occurs in none of its parts."""
    boundary = f"=_r{message_id}"
    parts = [_for_people(condition, recipients), _for_programs(condition, recipients, accepted_at)]
    if original.beginning:
        parts.append(_returned(original, full=condition is DsnCondition.FAILURE and recipients[0].request.full))
    eight_bit = "" if all(part.isascii() for part in parts) else _EIGHT_BIT
    head = _head(message_id, reporter(sender), sender, SUBJECTS[condition], now, "auto-replied")
    head += f'Content-Type: multipart/report; report-type=delivery-status;\r\n boundary="{boundary}"\r\n{eight_bit}'
    bodies = b"".join(b"--%b\r\n%b\r\n" % (boundary.encode("ascii"), part) for part in parts)
    return b"%b\r\n%b--%b--\r\n" % (head.encode(), bodies, boundary.encode("ascii"))


def _head(message_id: str, sender: Address, recipient: Address, subject: str, now: int, submitted: str) -> str:
    """Return the header without Content-Type; RFC 3834 5 defines Auto-Submitted."""
    people = header_lines.mailboxes("From", (sender,)) + header_lines.mailboxes("To", (recipient,))
    identity = f"Message-ID: <{message_id.removeprefix('msg_')}@{sender.domain}>\r\nAuto-Submitted: {submitted}\r\n"
    return f"{people}{header_lines.subject(subject)}{header_lines.date(now // SECOND)}{identity}MIME-Version: 1.0\r\n"


def _for_people(condition: DsnCondition, recipients: Sequence[ReportedRecipient]) -> bytes:
    lines = ["This is the mail server at " + recipients[0].request.reporter + ".", "", _OPENINGS[condition], ""]
    for recipient in recipients:
        words = _words(recipient)
        if recipient.remote_host and recipient.code is not None:
            words = [f"{recipient.remote_host} said:", *words]
        lines += [f"<{recipient.address}>", *_indented(" ".join(words)), ""]
    if condition is DsnCondition.DELAY:
        lines.append("You do not have to do anything. If you requested it, you will get a report if delivery fails.")
    return _text_part("".join(f"{line}\r\n" for line in lines))


def _text_part(text: str) -> bytes:
    head = "Content-Type: text/plain; charset=utf-8\r\n"
    if text.isascii():
        return f"{head}\r\n{text}".encode("ascii")
    encoding, pieces = encode_lines([text.encode()])
    return f"{head}Content-Transfer-Encoding: {encoding}\r\n\r\n".encode("ascii") + b"".join(pieces)


def _words(recipient: ReportedRecipient) -> list[str]:
    text, code = recipient.response, recipient.code
    if code is not None and not text.startswith(str(code)):
        text = f"{code} {text}"
    return _ascii(text[:DIAGNOSTIC_CHARACTERS]).split()


def _for_programs(condition: DsnCondition, recipients: Sequence[ReportedRecipient], accepted_at: int) -> bytes:
    first = recipients[0].request
    groups = [f"Reporting-MTA: dns; {first.reporter}\r\n"]
    if first.envelope_id:
        groups[0] = f"Original-Envelope-Id: {_ascii(first.envelope_id)}\r\n" + groups[0]
    groups[0] += f"Arrival-{header_lines.date(accepted_at // SECOND)}"
    groups += [_group(condition, recipient) for recipient in recipients]
    return ("Content-Type: message/delivery-status\r\n\r\n" + "\r\n".join(groups)).encode("ascii")


def _group(condition: DsnCondition, recipient: ReportedRecipient) -> str:
    lines = []
    if recipient.request.original:
        lines.append(f"Original-Recipient: {_ascii(recipient.request.original)}\r\n")
    escaped = "".join(char if char.isascii() else f"\\x{{{ord(char):X}}}" for char in recipient.address)
    typed = f"rfc822; {_ascii(escaped)}" if recipient.address.isascii() else f"utf-8; {escaped}"
    lines.append(f"Final-Recipient: {typed}\r\n")
    lines += [f"Action: {ACTIONS[condition]}\r\n", f"Status: {_status(condition, recipient)}\r\n"]
    if recipient.remote_host:
        lines.append(f"Remote-MTA: dns; {_ascii(recipient.remote_host)}\r\n")
    if words := _words(recipient):
        kind = " x-appliance;" if recipient.code is None else " smtp;"
        lines.append(header_lines.folded("Diagnostic-Code", [kind, *(f" {word}" for word in words)]))
    if recipient.attempted_at is not None:
        lines.append(f"Last-Attempt-{header_lines.date(recipient.attempted_at // SECOND)}")
    return "".join(lines)


def _status(condition: DsnCondition, recipient: ReportedRecipient) -> str:
    if recipient.expired:
        return "4.4.7"
    expected, match = _CLASSES[condition], _STATUS.match(recipient.response)
    return f"{expected}.{match[2]}" if match is not None and match[1] == expected else f"{expected}.0.0"


def _returned(original: OriginalMessage, *, full: bool) -> bytes:
    if full and original.whole:
        kind, content = b"message/rfc822", original.beginning
    else:
        header, empty_line, _ = original.beginning.partition(b"\r\n\r\n")
        if not empty_line and not original.whole:  # cut: keep complete lines
            header = header.rpartition(b"\r\n")[0]
        kind, content = b"text/rfc822-headers", header.removesuffix(b"\r\n") + b"\r\n"
    if not content.isascii():
        kind += b"; charset=utf-8" if kind.startswith(b"text/") else b""
        kind += b"\r\nContent-Transfer-Encoding: 8bit"
    return b"Content-Type: %b\r\n\r\n%b" % (kind, content)


def _ascii(text: str) -> str:
    return "".join(character if " " <= character <= "~" else "?" for character in text)


SUBJECT_CHARACTERS: Final = 150  # of the forwarded mail


def forwarded_subject(address: str, subject: str) -> str:
    return f"[{address}] {subject[:SUBJECT_CHARACTERS]}".strip()


def forwarded_mail(
    message_id: str, sender: Address, recipient: Address, *, address: str, subject: str, mime: bytes, now: int
) -> bytes:
    """Attach `mime`, which has CRLF line ends, to a new mail; `message_id` does not occur in it."""
    boundary = f"=_f{message_id}"
    eight_bit = b"" if mime.isascii() else _EIGHT_BIT.encode("ascii")
    fields = _head(message_id, sender, recipient, forwarded_subject(address, subject), now, "auto-forwarded")
    head = f'{fields}Content-Type: multipart/mixed; boundary="{boundary}"\r\n'.encode()
    text = (
        f"This mail server received the attached mail for {address}.\r\n"
        "It forwards mail to that address to you because of the setting inbound.forward_to.\r\n"
    ).encode("ascii", "replace")
    mark = boundary.encode("ascii")
    return (
        b"%b%b\r\n--%b\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n%b\r\n"
        b"--%b\r\nContent-Type: message/rfc822\r\n%bContent-Disposition: attachment\r\n\r\n%b\r\n--%b--\r\n"
    ) % (head, eight_bit, mark, text, mark, eight_bit, mime, mark)


# ---- notices: problems, invitations, forgotten passwords


def notice_mail(message_id: str, sender: Address, recipient: Address, subject: str, text: str, now: int) -> bytes:
    """Return a mail with these lines of text, which must not contain CR."""
    head = _head(message_id, sender, recipient, subject, now, "auto-generated")
    return head.encode() + _text_part(text.replace("\n", "\r\n"))
