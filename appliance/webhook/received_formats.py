"""Shapes a received message like other providers' inbound webhooks, for receivers that were written for them. No I/O.

These bodies contain the whole message, so they are made at each attempt and not stored; retries and replays have the
same content. Text comes from strangers: the boundary of a form cannot be predicted, and no text ends its part.
docs/webhook-formats.md documents each shape. Resend's event has no content, so received messages keep the native body.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pybase64
from msgspec import Struct

from appliance.message.header_lines import quoted
from appliance.message.limits import MESSAGE_SIZE
from appliance.message.reader import AttachedFile, read_attachments
from appliance.message.seven_bit import CannotEncode, seven_bit
from appliance.model.received_event import ReceivedData, ReceivedEvent
from appliance.model.webhooks import WebhookFormat
from appliance.webhook.signatures import mailgun_signature

Json = dict[str, Any]

# The user name is that of Rails Action Mailbox, which accepts no other.
BASIC_USER: Final = "actionmailbox"
BASIC_PURPOSE: Final = b"basic auth of received mail"

# Fields of the header that Postmark shows apart, and those that describe the encoding of the bodies.
_SHOWN_APART: Final = frozenset(("from", "to", "cc", "bcc", "subject", "date", "reply-to"))
_OF_ENCODING: Final = frozenset(("content-type", "content-transfer-encoding", "mime-version"))
_MAILGUN_FIELDS: Final = ("To", "Cc", "Reply-To", "Date", "Message-Id", "In-Reply-To", "References")


class ShapedMessage(NamedTuple):
    body: bytes
    content_type: str
    headers: Sequence[tuple[str, str]] = ()


class Received(Struct, frozen=True):
    """What a shape is made from."""

    event_id: str
    data: ReceivedData
    mime: bytes
    secret: bytes  # of the webhook
    seconds: int  # since 1970: time of the attempt
    url: str

    @property
    def recipient(self) -> str:
        return self.data.envelope.to[0]

    @property
    def raw(self) -> str:
        """The message as text. If it is not UTF-8, its 8-bit parts are re-encoded in seven bits."""
        try:
            return self.mime.decode("utf-8")
        except UnicodeDecodeError:
            pass
        try:
            return seven_bit(self.mime).decode("ascii")
        except CannotEncode:
            return self.mime.decode("utf-8", "replace")

    @property
    def files(self) -> list[tuple[AttachedFile, bytes]]:
        return read_attachments(self.mime, MESSAGE_SIZE)

    def field(self, name: str) -> str:
        return next((item.value for item in self.data.headers if item.name.lower() == name.lower()), "")


def has_shape(format: WebhookFormat) -> bool:
    return format in _SHAPES


def read_event(body: bytes) -> ReceivedData:
    return _DECODER.decode(body).data


def shaped_message(format: WebhookFormat, message: Received) -> ShapedMessage:
    return _SHAPES[format](message)


def example_mime(data: ReceivedData) -> bytes:
    """The message of a test event, which is not stored."""
    head = f"From: {data.sender}\r\nTo: {', '.join(data.to)}\r\nSubject: {data.subject}\r\n"
    return f"{head}Message-ID: <{data.message_id}>\r\nMIME-Version: 1.0\r\n\r\n{data.text}".encode()


def basic_password(secret: bytes) -> str:
    return hmac.digest(secret, BASIC_PURPOSE, "sha256").hex()


def _basic(secret: bytes) -> tuple[str, str]:
    credentials = pybase64.b64encode(f"{BASIC_USER}:{basic_password(secret)}".encode()).decode("ascii")
    return "Authorization", f"Basic {credentials}"


# ---- Postmark


def _postmark(message: Received) -> ShapedMessage:
    data, local = message.data, message.recipient.rpartition("@")[0]
    sender, to, cc = _full(data.sender), [*map(_full, data.to)], [*map(_full, data.cc)]
    shown = {box["Email"].lower() for box in (*to, *cc)}
    bcc = [_full(message.recipient)] if message.recipient.lower() not in shown else []
    # Postmark adds the first two; receivers read MAIL FROM there. The sender's own fields of these names are left out.
    spf = f"{data.spf.value} (SPF) identity=mailfrom; envelope-from={quoted(data.envelope.sender)}"
    headers = [{"Name": "Return-Path", "Value": f"<{data.envelope.sender}>"}, {"Name": "Received-SPF", "Value": spf}]
    left_out = _SHOWN_APART | _OF_ENCODING | {"return-path", "received-spf"}
    headers += [{"Name": item.name, "Value": item.value} for item in data.headers if item.name.lower() not in left_out]
    body = {
        "FromName": sender["Name"],
        "MessageStream": "inbound",
        "From": sender["Email"],
        "FromFull": sender,
        "To": ", ".join(data.to),
        "ToFull": to,
        "Cc": ", ".join(data.cc),
        "CcFull": cc,
        "Bcc": message.recipient if bcc else "",
        "BccFull": bcc,
        "OriginalRecipient": message.recipient,
        "Subject": data.subject,
        "MessageID": data.inbound_id,
        "ReplyTo": ", ".join(data.reply_to),
        "MailboxHash": local.partition("+")[2],
        "Date": message.field("date"),
        "TextBody": data.text or "",
        "HtmlBody": data.html or "",
        "StrippedTextReply": "",
        "Tag": "",
        "Headers": headers,
        "Attachments": [
            {
                "Name": file.filename,
                "Content": pybase64.b64encode(content).decode("ascii"),
                "ContentType": file.content_type,
                "ContentLength": len(content),
                **({"ContentID": file.content_id} if file.content_id else {}),
            }
            for file, content in message.files
        ],
        "RawEmail": message.raw,
    }
    return ShapedMessage(_ENCODER.encode(body), "application/json", [_basic(message.secret)])


def _full(mailbox: str) -> Json:
    start = mailbox.rfind("<")
    email = mailbox if start < 0 else mailbox[start + 1 :].partition(">")[0]
    name = "" if start < 0 else mailbox[:start].strip().removeprefix('"').removesuffix('"')
    return {"Email": email.strip(), "Name": name, "MailboxHash": email.strip().rpartition("@")[0].partition("+")[2]}


# ---- Mailgun


def _mailgun(message: Received) -> ShapedMessage:
    """A form; with `body-mime` in place of the parsed message if the path of the URL ends in `mime`."""
    data, form = message.data, FormBody(message)
    form.add("recipient", message.recipient)
    form.add("sender", data.envelope.sender)
    form.add("from", data.sender)
    form.add("subject", data.subject)
    if urlsplit(message.url).path.rstrip("/").endswith("mime"):
        form.add("body-mime", message.raw)
    else:
        _add_parsed(form, message)
    for name, value in mailgun_signature(message.secret, message.event_id, message.seconds).items():
        form.add(name, value)
    return form.ended()


def _add_parsed(form: "FormBody", message: Received) -> None:
    data = message.data
    # Quotes are not removed from an answer: `stripped-…` have the whole text.
    form.add("body-plain", data.text or "")
    form.add("stripped-text", data.text or "")
    if data.html is not None:
        form.add("body-html", data.html)
        form.add("stripped-html", data.html)
    for name in _MAILGUN_FIELDS:
        if value := message.field(name):
            form.add(name, value)
    headers = [[item.name, item.value] for item in data.headers if item.name.lower() != "content-transfer-encoding"]
    form.add("message-headers", _ENCODER.encode(headers).decode())
    files = message.files
    if not files:
        return
    form.add("attachment-count", str(len(files)))
    ids = {
        f"<{file.content_id}>": f"attachment-{number}" for number, (file, _) in enumerate(files, 1) if file.content_id
    }
    if ids:
        form.add("content-id-map", _ENCODER.encode(ids).decode())
    for number, (file, content) in enumerate(files, 1):
        form.add_file(f"attachment-{number}", file, content)


# ---- SendGrid's Inbound Parse, with the raw message


def _sendgrid(message: Received) -> ShapedMessage:
    data, form = message.data, FormBody(message)
    form.add("from", data.sender)
    form.add("to", ", ".join(data.to))
    form.add("cc", ", ".join(data.cc))
    form.add("subject", data.subject)
    form.add("envelope", _ENCODER.encode({"to": data.envelope.to, "from": data.envelope.sender}).decode())
    form.add("charsets", '{"to":"UTF-8","from":"UTF-8","cc":"UTF-8","subject":"UTF-8"}')
    form.add("SPF", data.spf.value)
    form.add("email", message.raw)
    return form.ended(_basic(message.secret))


_SHAPES: Final[dict[WebhookFormat, Callable[[Received], ShapedMessage]]] = {
    WebhookFormat.POSTMARK: _postmark,
    WebhookFormat.MAILGUN: _mailgun,
    WebhookFormat.SENDGRID: _sendgrid,
}


class FormBody:
    """A body of multipart/form-data (RFC 7578). Its boundary depends on the webhook's secret and the event."""

    def __init__(self, message: Received) -> None:
        self._boundary = hmac.digest(message.secret, b"boundary " + message.event_id.encode(), "sha256").hex()[:40]
        self._pieces: list[bytes] = []

    def add(self, name: str, value: str) -> None:
        self._add(f'name="{name}"', value.encode("utf-8", "replace"))

    def add_file(self, name: str, file: AttachedFile, content: bytes) -> None:
        filename = file.filename or f"{name}.bin"
        for character, escaped in (('"', "%22"), ("\r", "%0D"), ("\n", "%0A")):
            filename = filename.replace(character, escaped)
        about = f'name="{name}"; filename="{filename}"\r\nContent-Type: {file.content_type}'
        self._add(about, content)

    def _add(self, about: str, content: bytes) -> None:
        head = f"--{self._boundary}\r\nContent-Disposition: form-data; {about}\r\n\r\n"
        self._pieces += (head.encode("utf-8", "replace"), content, b"\r\n")

    def ended(self, *headers: tuple[str, str]) -> ShapedMessage:
        self._pieces.append(f"--{self._boundary}--\r\n".encode())
        return ShapedMessage(b"".join(self._pieces), f"multipart/form-data; boundary={self._boundary}", headers)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(ReceivedEvent)
