"""Responses of an authority, with the objects of RFC 8555 7.1. No I/O.

Unknown fields are ignored, as the RFC requires.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from appliance.acme.problems import NotIssued, Problem

T = TypeVar("T")

MAX_RETRY_AFTER = 7 * 86400.0  # seconds; the limit of a Retry-After


@dataclass(frozen=True, slots=True)
class AcmeResponse:
    status: int = 0
    body: bytes = b""
    nonce: str = ""  # Replay-Nonce
    location: str = ""
    retry_after: float | None = None  # seconds


class DirectoryMeta(msgspec.Struct, rename="camel"):
    """The authority's terms and conditions (RFC 8555 7.1.1)."""

    terms_of_service: str = ""
    external_account_required: bool = False


class Directory(msgspec.Struct, rename="camel"):
    """The URLs of an authority's operations (RFC 8555 7.1.1)."""

    new_nonce: str
    new_account: str
    new_order: str
    meta: DirectoryMeta = msgspec.field(default_factory=DirectoryMeta)


class Identifier(msgspec.Struct):
    value: str


class Challenge(msgspec.Struct):
    """One way to prove control of a name (RFC 8555 8)."""

    type: str
    url: str = ""
    status: str = ""
    token: str = ""
    error: Problem | None = None


class Authorization(msgspec.Struct):
    """The state of the proof for one name (RFC 8555 7.1.4)."""

    identifier: Identifier
    status: str
    challenges: list[Challenge] = msgspec.field(default_factory=list)

    @property
    def error(self) -> Problem | None:
        return next((challenge.error for challenge in self.challenges if challenge.error is not None), None)


class Order(msgspec.Struct):
    """A request for a certificate (RFC 8555 7.1.3)."""

    status: str
    finalize: str
    authorizations: list[str] = msgspec.field(default_factory=list)
    certificate: str = ""
    error: Problem | None = None


def read(body: bytes, kind: type[T]) -> T:
    """Parse an object in a response; raise `NotIssued` if that fails."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        advice = "Check that acme.directory is the URL of an ACME directory."
        raise NotIssued(f"invalid response from the authority: {error}", advice) from error


def retry_after_seconds(value: str, now: float) -> float | None:
    """Return the seconds of a Retry-After: a number or a date (RFC 9110 10.2.3); None if it is neither."""
    if value.isascii() and value.isdigit():
        seconds = float(value[:12])
    else:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
