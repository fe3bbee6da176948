"""Reads a received message: mailboxes, ids, texts and files, and whether a program sent it. No I/O.

The message may be hostile: `reader.py` bounds its cost, and nothing here raises, recurses or backtracks. A field
with mailboxes is split before its encoded words are decoded: a decoded name may contain a comma.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

import idna
from msgspec import Struct

from appliance.message.decoding import display_text
from appliance.message.limits import DOMAIN_LENGTH, FIELD_BYTES, HOPS, RAW_LENGTH
from appliance.message.reader import AttachedFile, MimeReader

BODY_BYTES: Final = 256 * 1024  # of each text in an event, by the interface
FROM_DOMAINS: Final = 2  # of a From field: with more than one, no policy applies
MAILBOXES: Final = 200  # read of a field
SHOWN_FIELD: Final = 1_000  # characters of sender and subject in a list
MESSAGE_IDS: Final = 20  # that a reply names
LOOP_HOPS: Final = HOPS // 2  # Received fields of a message that goes round in circles

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|\([^()]*\)?|<[^<>]*>?|[,;]|[^",;<(]+|.', re.DOTALL)
_COMMENT: Final = re.compile(r"\([^()]*\)")
_QUOTED_NAME: Final = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t]*(<.*)', re.DOTALL)
_MESSAGE_ID: Final = re.compile(r"<[ \t]*([^<>\s]{1,998})[ \t]*>")
_NOT_IN_A_BODY: Final = dict.fromkeys((*range(9), 11, *range(14, 32), 127), "�")
# Besides RFC 3834 5: what programs say that are older than it.
_AUTOMATIC: Final = ("x-autoreply", "x-autorespond", "x-auto-response")


class ReceivedContent(Struct, frozen=True):
    """`text` and `html` have at most BODY_BYTES in UTF-8; `truncated` if something was left out."""

    sender: str  # the From field
    to: tuple[str, ...]
    cc: tuple[str, ...]
    reply_to: tuple[str, ...]
    subject: str
    message_id: str | None  # without brackets
    in_reply_to: str | None  # likewise
    answered_ids: tuple[str, ...]  # of In-Reply-To, then of References from the last one
    text: str | None
    html: str | None
    headers: tuple[tuple[str, str], ...]
    attachments: tuple[AttachedFile, ...]
    auto_submitted: bool
    truncated: bool
    from_domains: tuple[str, ...]  # as `from_domains` returns them


def read_received(mime: bytes, recipients: Iterable[str] = (), *, null_sender: bool = False) -> ReceivedContent:
    """Read a message to these recipients. `null_sender`: of its envelope, as of bounces and automatic replies."""
    reader = MimeReader(mime)
    for part in reader.parts():
        reader.show(part)
    view = reader.view
    fields = [(name.lower(), value) for name, value in reader.fields]
    (text, text_cut), (html, html_cut) = _cut(view.text), _cut(view.html)
    answered = _ids(fields, b"in-reply-to")
    return ReceivedContent(
        sender=", ".join(_mailboxes(fields, "from")),
        to=_mailboxes(fields, "to"),
        cc=_mailboxes(fields, "cc"),
        reply_to=_mailboxes(fields, "reply-to"),
        subject=next((value for name, value in view.headers if name.lower() == "subject"), ""),
        message_id=next(iter(_ids(fields, b"message-id")), None),
        in_reply_to=next(iter(answered), None),
        answered_ids=tuple(dict.fromkeys((*answered, *reversed(_ids(fields, b"references")))))[:MESSAGE_IDS],
        text=text,
        html=html,
        headers=tuple(view.headers),
        attachments=tuple(view.attachments),
        auto_submitted=null_sender or _is_automatic(view.headers) or _loops(view.headers, recipients),
        truncated=view.truncated or text_cut or html_cut,
        from_domains=from_domains(fields),
    )


def from_domains(fields: Iterable[tuple[str, bytes]]) -> tuple[str, ...]:
    """The domains of the mailboxes in all From fields, in A-labels; "" for one that cannot be read."""
    values = [value for name, value in fields if name == "from"]
    domains = dict.fromkeys(_raw_domain(mailbox) for value in values for mailbox in split_mailboxes(_raw_text(value)))
    return tuple(_a_labels(domain) for domain in islice(domains, FROM_DOMAINS))


def domain_of(mailbox: str) -> str:
    """Return the domain of one mailbox in A-labels; empty if it cannot be read."""
    return _a_labels(_raw_domain(mailbox))


def _raw_domain(mailbox: str) -> str:
    start = mailbox.rfind("<")
    bare = mailbox[start + 1 :].partition(">")[0] if start >= 0 else _COMMENT.sub("", mailbox)
    return bare.strip(" \t").rpartition("@")[2].rstrip(".").lower() if "@" in bare else ""


def _a_labels(domain: str) -> str:
    if len(domain) > DOMAIN_LENGTH:
        return ""
    if domain.isascii():
        return domain
    try:
        return idna.encode(domain, uts46=True, std3_rules=True).decode("ascii")
    except UnicodeError:  # idna.IDNAError is one
        return ""


def split_mailboxes(text: str) -> list[str]:
    """Split a field at its commas, outside of quotes, comments and angle brackets. Entries without an @ are dropped."""
    pieces: list[list[str]] = [[]]
    for token in _TOKEN.findall(text):
        if token in (",", ";"):
            if len(pieces) == MAILBOXES:
                break
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [mailbox for piece in pieces if "@" in (mailbox := "".join(piece).strip(" \t"))]


def _mailboxes(fields: list[tuple[str, bytes]], name: str) -> tuple[str, ...]:
    value = next((value for key, value in fields if key == name), b"")
    return tuple(_shown(mailbox) for mailbox in split_mailboxes(_raw_text(value)))


def _shown(mailbox: str) -> str:
    """Decode a name; quotes that it does not need are removed, so that `"Ada" <a@b.c>` is `Ada <a@b.c>`."""
    quoted = _QUOTED_NAME.fullmatch(mailbox)
    if quoted is not None and not set(quoted[1]) & set('\\,;<>()"@:'):
        mailbox = f"{quoted[1]} {quoted[2]}"
    return display_text(mailbox)


def _raw_text(value: bytes) -> str:
    return value[:FIELD_BYTES].decode("utf-8", "replace")


def _ids(fields: list[tuple[str, bytes]], name: bytes) -> list[str]:
    value = next((value for key, value in fields if key == name.decode("ascii")), b"")
    ids = _MESSAGE_ID.findall(value[-RAW_LENGTH:].decode("utf-8", "replace"))
    return [display_text(item) for item in ids][-MESSAGE_IDS:]


def _cut(text: str | None) -> tuple[str | None, bool]:
    if text is None:
        return None, False
    text = text.translate(_NOT_IN_A_BODY) if not text.isprintable() else text
    octets = text.encode("utf-8", "replace")
    return octets[:BODY_BYTES].decode("utf-8", "ignore"), len(octets) > BODY_BYTES


def _is_automatic(headers: list[tuple[str, str]]) -> bool:
    """Whether a program sent the message in reply, or without a person (RFC 3834 5)."""
    for name, value in headers:
        key, word = name.lower(), value.partition(";")[0].strip().lower()
        if key == "auto-submitted" and word not in ("", "no"):
            return True
        if key == "content-type" and word == "multipart/report":
            return True
        if key in _AUTOMATIC or (key == "precedence" and word == "auto_reply"):
            return True
    return False


def _loops(headers: list[tuple[str, str]], recipients: Iterable[str]) -> bool:
    """Whether the message was delivered to one of its recipients before, or has passed too many servers."""
    delivered = {value.strip().lower() for name, value in headers if name.lower() == "delivered-to"}
    hops = sum(name.lower() == "received" for name, _ in headers)
    return hops > LOOP_HOPS or any(recipient.lower() in delivered for recipient in recipients)
