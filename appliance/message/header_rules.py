"""The header fields and tags that a sender may set, over HTTP (`headers`, `tags`) and SMTP: one table for both.

Over HTTP every name in the table is refused: the service writes the field, or the request has its own member for it. A
message over SMTP is complete, so its ordinary fields are kept. Trace fields and verdicts of other servers are removed,
and a field that names who is responsible must name a mailbox of the account's domains. Pure: no I/O, no state.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.characters import fault_in_line
from appliance.message.header_lines import encoded_length


class OverSmtp(Enum):
    """The treatment of a field in a submitted message."""

    KEPT = "kept"
    REMOVED = "removed"
    OWN = "own"  # the message is refused unless this names one mailbox of the account's domains


_KEPT, _REMOVED, _OWN = OverSmtp.KEPT, OverSmtp.REMOVED, OverSmtp.OWN

RESERVED_HEADERS: Final = {
    "authentication-results": _REMOVED,  # RFC 8601 5: it may be forged
    "bcc": _REMOVED,
    "cc": _KEPT,
    "date": _KEPT,
    "delivered-to": _REMOVED,  # receivers would detect a loop
    "dkim-signature": _KEPT,  # the sender's own; ours is added
    "domainkey-signature": _KEPT,
    "errors-to": _REMOVED,  # bounces go to the envelope's sender
    "from": _KEPT,  # and checked like MAIL FROM
    "message-id": _KEPT,
    "mime-version": _KEPT,
    "reply-to": _KEPT,
    "return-path": _REMOVED,  # RFC 5321 4.4: the last server writes it
    "sender": _OWN,
    "subject": _KEPT,
    "tls-required": _REMOVED,  # RFC 8689 5: `No` would turn off TLS
    "to": _KEPT,
    "x-originating-ip": _REMOVED,  # the client's address is not disclosed
}
RESERVED_HEADER_PREFIXES: Final = {
    "arc-": _REMOVED,  # RFC 8617: seals of other servers
    "content-": _KEPT,
    "received": _REMOVED,  # Received-SPF and the like
    "resent-": _KEPT,
    "x-service-": _REMOVED,
}
# Exceptions to the prefixes, over SMTP.
_WITHIN: Final = {
    "received": _KEPT,  # counted, to find loops
    "resent-bcc": _REMOVED,
    "resent-from": _OWN,
    "resent-sender": _OWN,
    "x-service-tag": _KEPT,  # read as tags
}

# A sender who sets one of these manages unsubscribing; both are then left unchanged.
OWN_UNSUBSCRIBE: Final = frozenset({"list-unsubscribe", "list-unsubscribe-post"})

_EXACT: Final = {name.encode(): action for name, action in (RESERVED_HEADERS | _WITHIN).items()} | {
    b"idempotency-key": _REMOVED  # for us, not for the recipient
}
_BY_PREFIX: Final = tuple((prefix.encode(), action) for prefix, action in RESERVED_HEADER_PREFIXES.items())

_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,76}")
_TAG: Final = re.compile(r"[!-+\--~](?:[ -+\--~]{0,62}[!-+\--~])?")  # printable ASCII, no comma, no space at either end


def is_reserved(name: str) -> bool:
    """Return whether the HTTP API refuses this header."""
    name = name.lower()
    return name in RESERVED_HEADERS or name.startswith(tuple(RESERVED_HEADER_PREFIXES))


def over_smtp(name: bytes) -> OverSmtp:
    """Return the treatment of a submitted field; `name` is in lower case."""
    if (action := _EXACT.get(name)) is not None:
        return action
    return next((action for prefix, action in _BY_PREFIX if name.startswith(prefix)), _KEPT)


def read_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Check the caller's headers, and strip spaces around values, as mail readers do."""
    if len(headers) > limits.HEADERS:
        raise invalid("headers", f"at most {limits.HEADERS} headers are allowed")
    accepted: dict[str, tuple[str, str]] = {}
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise invalid("headers", "a header name has 1 to 76 characters of A-Z, a-z, 0-9 and `-`")
        if is_reserved(name):
            raise invalid(f"headers.{name}", "this header is reserved")
        if name.lower() in accepted:
            raise invalid(f"headers.{name}", "this header occurs twice; upper and lower case do not differ")
        if fault := fault_in_line(value):
            raise invalid(f"headers.{name}", f"must not contain {fault}")
        value = value.strip(" ")
        if encoded_length(value) > limits.HEADER_VALUE_LENGTH:
            raise invalid(f"headers.{name}", f"must have at most {limits.HEADER_VALUE_LENGTH} octets after encoding")
        accepted[name.lower()] = (name, value)
    return tuple(accepted.values())


def read_tags(tags: Sequence[str], field: str, *, numbered: bool = False) -> tuple[str, ...]:
    """Check tags and drop duplicates. A refusal names the field, with the tag's index if `numbered`."""
    if len(tags) > limits.TAGS:
        raise invalid("tags", f"at most {limits.TAGS} tags are allowed")
    check_tags(tags, field, numbered=numbered)
    return tuple(dict.fromkeys(tags))


def check_tags(tags: Sequence[str], field: str, *, numbered: bool) -> None:
    for index, tag in enumerate(tags):
        if not _TAG.fullmatch(tag):
            reason = "a tag has 1 to 64 printable ASCII characters, no comma, and no space at either end"
            raise invalid(f"{field}[{index}]" if numbered else field, reason)
