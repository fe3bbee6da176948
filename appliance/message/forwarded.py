"""Writes the mail that forwards another one to the operator, as an attachment. No I/O, no state.

`Auto-Submitted: auto-forwarded` (RFC 3834 5) marks it: mail that carries this field is not forwarded again, so two
servers that forward to each other do not loop.
"""

from typing import Final

from appliance.message import header_lines
from appliance.message.addresses import Address
from appliance.times import SECOND

SUBJECT_CHARACTERS: Final = 150  # of the forwarded mail


def forwarded_subject(address: str, subject: str) -> str:
    """The subject, which names the address that the mail was sent to; `subject` has no control characters."""
    return f"[{address}] {subject[:SUBJECT_CHARACTERS]}".strip()


def forwarded_mail(
    message_id: str, sender: Address, recipient: Address, *, address: str, subject: str, mime: bytes, now: int
) -> bytes:
    """The forwarding mail; `mime` has CRLF line ends, and `message_id` occurs nowhere in it."""
    boundary = f"=_f{message_id}"
    eight_bit = b"" if mime.isascii() else b"Content-Transfer-Encoding: 8bit\r\n"
    head = "".join(
        (
            header_lines.mailboxes("From", (sender,)),
            header_lines.mailboxes("To", (recipient,)),
            header_lines.subject(forwarded_subject(address, subject)),
            header_lines.date(now // SECOND),
            f"Message-ID: <{message_id.removeprefix('msg_')}@{sender.domain}>\r\n",
            "Auto-Submitted: auto-forwarded\r\n",
            "MIME-Version: 1.0\r\n",
            f'Content-Type: multipart/mixed; boundary="{boundary}"\r\n',
        )
    ).encode()
    text = (
        f"This mail server received the attached mail for {address}.\r\n"
        "It forwards mail to that address to you because of the setting inbound.forward_to.\r\n"
    ).encode("ascii", "replace")
    mark = boundary.encode("ascii")
    return (
        b"%b%b\r\n--%b\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n%b\r\n"
        b"--%b\r\nContent-Type: message/rfc822\r\n%bContent-Disposition: attachment\r\n\r\n%b\r\n--%b--\r\n"
    ) % (head, eight_bit, mark, text, mark, eight_bit, mime, mark)
