"""Which header fields a sender may set, over HTTP (`headers`) and over SMTP: one table for both. PURE.

Over HTTP every name here is refused: the service writes the field itself, or a request has its own member for it. Over
SMTP a message comes whole, so the fields that any message has are kept. What claims to be the trace or the verdict of
a server on the way is removed, and a field that names who is responsible for the message must name the account's own.
"""

from enum import Enum
from typing import Final


class OverSmtp(Enum):
    """What is done with a field of a submitted message."""

    KEPT = "kept"
    REMOVED = "removed"
    OWN = "own"  # kept if it names one mailbox of the account's domains, else the message is refused


_KEPT, _REMOVED, _OWN = OverSmtp.KEPT, OverSmtp.REMOVED, OverSmtp.OWN

RESERVED: Final = {
    "authentication-results": _REMOVED,  # RFC 8601 5: a forged one must not reach a reader that trusts it
    "bcc": _REMOVED,
    "cc": _KEPT,
    "date": _KEPT,
    "delivered-to": _REMOVED,  # receivers take it for a loop
    "dkim-signature": _KEPT,  # the sender's own; ours is added
    "domainkey-signature": _KEPT,
    "errors-to": _REMOVED,  # bounces go to the envelope's sender
    "from": _KEPT,  # and judged like MAIL FROM
    "message-id": _KEPT,
    "mime-version": _KEPT,
    "reply-to": _KEPT,
    "return-path": _REMOVED,  # RFC 5321 4.4: the last server writes it
    "sender": _OWN,
    "subject": _KEPT,
    "tls-required": _REMOVED,  # RFC 8689 5: `No` would have mail delivered without TLS
    "to": _KEPT,
    "x-originating-ip": _REMOVED,  # where a sender sits is not told
}
RESERVED_PREFIXES: Final = {
    "arc-": _REMOVED,  # RFC 8617: seals of servers on the way
    "content-": _KEPT,
    "received": _REMOVED,  # Received-SPF and the like
    "resent-": _KEPT,
    "x-service-": _REMOVED,
}
# What differs over SMTP from others with its prefix.
_WITHIN: Final = {
    "received": _KEPT,  # counted, to find loops
    "resent-bcc": _REMOVED,
    "resent-from": _OWN,
    "resent-sender": _OWN,
    "x-service-tag": _KEPT,  # read as tags
}

_EXACT: Final = {name.encode(): action for name, action in (RESERVED | _WITHIN).items()} | {
    b"idempotency-key": _REMOVED  # read, and meant for us alone
}
_BY_PREFIX: Final = tuple((prefix.encode(), action) for prefix, action in RESERVED_PREFIXES.items())
_PREFIXES: Final = tuple(prefix for prefix, _ in _BY_PREFIX)


def is_reserved(name: str) -> bool:
    """Whether a caller of the HTTP API may not set this header."""
    name = name.lower()
    return name in RESERVED or name.startswith(tuple(RESERVED_PREFIXES))


def over_smtp(name: bytes) -> OverSmtp:
    """What is done with a submitted field; its name in lower case."""
    action = _EXACT.get(name)
    if action is None:
        if not name.startswith(_PREFIXES):
            return _KEPT
        action = next(action for prefix, action in _BY_PREFIX if name.startswith(prefix))
    return action
