"""Writes the request that forwards a received message to an address that a person names. No I/O.

Receivers reject mail in the name of a sender whose domain does not permit this server. So the message is from an
address of the account, and `Reply-To` names the original sender. Texts and files are decoded and encoded again, because
the original may break the rules for sent messages.
"""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Final

import pybase64
from msgspec import UNSET

from appliance.errors import Code, Refused
from appliance.message.addresses import parse
from appliance.message.compose import UNKNOWN_TYPE
from appliance.message.limits import ATTACHMENTS, CONTENT_ID_LENGTH, FILENAME_LENGTH, MESSAGE_SIZE, SUBJECT_LENGTH
from appliance.message.reader import AttachedFile, MessageView, read_attachments, read_message
from appliance.message.received import split_mailboxes
from appliance.message.schema import Attachment, SendRequest

SHOWN_FIELDS: Final = ("From", "Date", "Subject", "To", "Cc")  # of the original, above its text
FORWARDS: Final = "forwards"  # metadata key of a forwarded message: the id of the received one
_RULE: Final = "---------- Forwarded message ----------"
_BODY: Final = re.compile(r"<body(?:\s[^<>]{0,2000})?>", re.IGNORECASE)
_CONTENT_ID: Final = re.compile(rf"[A-Za-z0-9._%+@-]{{1,{CONTENT_ID_LENGTH}}}")
_MESSAGE_ID: Final = re.compile(r"<[!-;=?-~]{1,900}>")
_NOT_IN_A_BODY: Final = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")


def forwarded(mime: bytes, inbound_id: str, sender: str, to: Sequence[str]) -> SendRequest:
    """Return a request for the same content from `sender`; raises Refused for a message that is too long.

    Its metadata names the received message: events of the new one have it, and a search finds all that forward it.
    """
    view = read_message(mime)
    if view.truncated or len(view.attachments) > ATTACHMENTS:
        text = f"a text is over 1 MiB, or there are over {ATTACHMENTS} files, 200 parts or 200 header fields"
        raise Refused(Code.PAYLOAD_TOO_LARGE, f"This message cannot be forwarded: {text}. Download it instead.")
    fields = {name.lower(): value for name, value in reversed(view.headers) if value}
    reply_to, identity = _reply_to(fields), _MESSAGE_ID.fullmatch(fields.get("message-id", ""))
    return SendRequest(
        sender=sender,
        to=list(to),
        subject=f"Fwd: {fields.get('subject', '')}".strip()[:SUBJECT_LENGTH],
        text=UNSET if view.text is None and view.html is not None else _text(view, fields),
        html=UNSET if view.html is None else _html(view.html, fields),
        reply_to=UNSET if reply_to is None else reply_to,
        # So that mail programs show an answer together with the original.
        headers=UNSET if identity is None else {"References": identity[0]},
        metadata={FORWARDS: inbound_id},
        attachments=_files(read_attachments(mime, MESSAGE_SIZE)) or UNSET,
    )


def _reply_to(fields: Mapping[str, str]) -> str | None:
    """The first mailbox that answers go to, if it is a valid one."""
    for mailbox in split_mailboxes(fields.get("reply-to") or fields.get("from", ""))[:1]:
        try:
            return parse(mailbox, "reply_to").text
        except Refused:
            return None
    return None


def _lines(fields: Mapping[str, str]) -> list[str]:
    return [f"{name}: {fields[name.lower()]}" for name in SHOWN_FIELDS if name.lower() in fields]


def _text(view: MessageView, fields: Mapping[str, str]) -> str:
    head = "\n".join([_RULE, *_lines(fields), "", ""])
    return _clean(head + (view.text or ""))


def _html(body: str, fields: Mapping[str, str]) -> str:
    """Write the fields at the start of the body, wherever the original has it."""
    lines = "<br>\n".join([_RULE, *map(html.escape, _lines(fields))])
    start = _BODY.search(body, 0, 256 * 1024)
    at = start.end() if start else 0
    return _clean(f"{body[:at]}<div>{lines}</div><br>\n{body[at:]}")


def _clean(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_NOT_IN_A_BODY)


def _files(files: Sequence[tuple[AttachedFile, bytes]]) -> list[Attachment]:
    known: set[str] = set()
    written = []
    for number, (file, content) in enumerate(files, 1):
        identity = file.content_id or ""
        is_new = _CONTENT_ID.fullmatch(identity) is not None and identity not in known
        known.add(identity)
        is_opaque = file.content_type.startswith(("multipart/", "message/"))  # never base64, RFC 2045 6.4
        written.append(
            Attachment(
                filename=_filename(file.filename, number),
                content=pybase64.b64encode(content).decode("ascii"),
                content_type=UNKNOWN_TYPE if is_opaque else file.content_type,
                content_id=identity if is_new else UNSET,
            )
        )
    return written


def _filename(name: str, number: int) -> str:
    name = name.replace("/", "_").replace("\\", "_").encode()[:FILENAME_LENGTH].decode("utf-8", "ignore").strip()
    return name if name.strip(".") else f"file-{number}"
