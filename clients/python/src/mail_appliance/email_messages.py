"""The email messages of Django and Flask-Mailman as sends: shared by the backends of both, whose classes are alike.

What the interface cannot carry is refused by name, never left out.
"""

import atexit
import mimetypes
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.message import Message as MimePart
from typing import Any

from mail_appliance.client import Client
from mail_appliance.errors import ConfigurationError, MailApplianceError
from mail_appliance.models import Attachment

# What a part may say of itself; X-Attachment-Id repeats the Content-ID for one mail reader.
_PART_HEADERS = frozenset(
    {
        "mime-version",
        "content-type",
        "content-transfer-encoding",
        "content-disposition",
        "content-id",
        "x-attachment-id",
    }
)
_CREDENTIALS = ("username", "password", "token")
OPTIONS = ("url", *_CREDENTIALS, "retries", "connect_timeout", "timeout")


class UnsupportedMessage(ConfigurationError):
    """A message with something that the interface cannot carry; the text names it."""


class Backend:
    """What both backends do; they bring the rest."""

    fail_silently: bool
    _client: Client
    _message_class: Any  # the framework's own

    def send_messages(self, email_messages: Iterable[Any] | None) -> int:
        """Send the messages and return how many were accepted. Each has the result as `mail_appliance_result` then."""
        return sum(self._send(message) for message in email_messages or ())

    def _send(self, message: Any) -> bool:
        if not message.recipients():
            return False
        try:
            if type(message).message is not self._message_class.message:
                raise UnsupportedMessage(f"{type(message).__name__} writes its own MIME, which cannot be sent as JSON")
            message.mail_appliance_result = self._client.send(**send_arguments(message))
        except MailApplianceError:
            if not self.fail_silently:
                raise
            return False
        return True


def shared_client(setting: Callable[[str], Any], explicit: Mapping[str, Any]) -> Client:
    """The client of these settings (MAIL_APPLIANCE_URL and so on), the same each time, so that connections are kept.

    Arguments, by the names in OPTIONS, win over the settings, and explicit credentials over all of theirs. What both
    lack comes from the environment.
    """
    options = {name: setting(f"MAIL_APPLIANCE_{name.upper()}") for name in OPTIONS}
    if any(explicit.get(name) for name in _CREDENTIALS):
        options |= dict.fromkeys(_CREDENTIALS)
    options |= {name: value for name, value in explicit.items() if value is not None}
    key = tuple((name, value) for name, value in options.items() if value not in (None, ""))
    with _LOCK:
        if key not in _CLIENTS:
            _CLIENTS[key] = Client(**dict(key))
        return _CLIENTS[key]


_LOCK = threading.Lock()
_CLIENTS: dict[tuple[tuple[str, Any], ...], Client] = {}


@atexit.register
def close_shared_clients() -> None:
    """Close the connections of all backends."""
    with _LOCK:
        while _CLIENTS:
            _CLIENTS.popitem()[1].close()


# ---- messages


def send_arguments(message: Any) -> dict[str, Any]:
    """The arguments of `Client.send` for a message; UnsupportedMessage if that would lose something."""
    headers = _pairs(message.extra_headers)
    key, reply_to = _taken(headers, "idempotency-key"), _taken(headers, "reply-to")
    for name in headers:
        if name.lower() in ("from", "to", "cc"):
            raise UnsupportedMessage(f"the header {name} cannot differ from the message's own field")
    addresses = message.reply_to if reply_to is None else [reply_to]
    if len(addresses) > 1:
        raise UnsupportedMessage(f"{len(addresses)} addresses in reply_to: the interface has one")
    if not message.to:
        raise UnsupportedMessage("a message without an address in to; cc and bcc alone cannot be sent")
    return {
        "from_": str(message.from_email),
        "to": _texts(message.to),
        "cc": _texts(message.cc) or None,
        "bcc": _texts(message.bcc) or None,
        "reply_to": str(addresses[0]) if addresses else None,
        "subject": str(message.subject),
        **_bodies(message),
        "headers": headers or None,
        "tags": _texts(getattr(message, "tags", ())) or None,
        "attachments": list(_attachments(message)) or None,
        "scheduled_at": getattr(message, "scheduled_at", None),
        "metadata": _pairs(getattr(message, "metadata", None)) or None,
        "idempotency_key": key,
    }


def _taken(headers: dict[str, str], wanted: str) -> str | None:
    for name in headers:
        if name.lower() == wanted:
            return headers.pop(name)
    return None


def _texts(values: Iterable[Any]) -> list[str]:
    return [str(value) for value in values if value]  # translations are lazy


def _pairs(values: Mapping[Any, Any] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (values or {}).items()}


def _bodies(message: Any) -> dict[str, str]:
    """Text and HTML; the body of a message with other alternatives may be empty, and then is none of them."""
    subtype = message.content_subtype
    if subtype not in ("plain", "html"):
        raise UnsupportedMessage(f"a body of type text/{subtype}; it can be text/plain or text/html")
    alternatives = getattr(message, "alternatives", None) or ()
    bodies = {}
    if message.body or not (alternatives or message.attachments):
        bodies["text" if subtype == "plain" else "html"] = str(message.body)
    for content, mimetype in alternatives:
        if mimetype != "text/html":
            raise UnsupportedMessage(f"an alternative of type {mimetype}; it can be text/html")
        if "html" in bodies:
            raise UnsupportedMessage("a second text/html body")
        bodies["html"] = content.decode() if isinstance(content, bytes) else str(content)
    return bodies


def _attachments(message: Any) -> Iterator[Attachment]:
    subtype = getattr(message, "mixed_subtype", "mixed")
    if subtype not in ("mixed", "related"):
        raise UnsupportedMessage(f"parts in multipart/{subtype}; they can be mixed or related")
    for part in message.attachments:
        attachment = _from_part(part) if isinstance(part, MimePart) else _from_fields(*part)
        if subtype == "related" and attachment.content_id is None:
            raise UnsupportedMessage(f"{attachment.filename} in multipart/related without a Content-ID")
        yield attachment


def _from_fields(filename: str | None, content: Any, mimetype: str | None = None) -> Attachment:
    if not filename:
        raise UnsupportedMessage("an attachment without a file name")
    _check_type(mimetype or "", filename)
    if isinstance(content, str):
        content = content.encode()
        if mimetype and mimetype.startswith("text/") and ";" not in mimetype:
            mimetype += "; charset=utf-8"
    return Attachment(filename, content, mimetype or None)


def _from_part(part: MimePart) -> Attachment:
    kind = part.get_content_type()
    content_id = str(part["Content-ID"] or "").strip().removeprefix("<").removesuffix(">") or None
    filename = part.get_filename()
    name = filename or content_id or kind
    _check_type(kind, name)
    for header in part:
        if header.lower() not in _PART_HEADERS:
            raise UnsupportedMessage(f"the header {header} of the attachment {name}")
    if part.get_content_disposition() == "inline" and content_id is None:
        raise UnsupportedMessage(f"the inline part {name} without a Content-ID")
    if not filename and content_id:  # the interface needs a name, and mail readers do not show this one
        filename = re.sub(r"[^A-Za-z0-9._-]", "_", content_id) + (mimetypes.guess_extension(kind) or "")
    if not filename:
        raise UnsupportedMessage(f"an attachment of type {kind} without a file name")
    content = part.get_payload(decode=True)
    content_type = " ".join(str(part["Content-Type"] or kind).split())
    return Attachment(filename, content if isinstance(content, bytes) else b"", content_type, content_id)


def _check_type(mimetype: str, name: str) -> None:
    if mimetype.partition("/")[0] in ("message", "multipart"):  # RFC 2045 6.4: these may not be base64
        raise UnsupportedMessage(f"the attachment {name} of type {mimetype}")
