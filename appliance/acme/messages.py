"""In charge of what an authority says: answers, and the objects of RFC 8555 7.1 in them. PURE.

Only what is needed is read, and whatever else an authority puts beside it is passed over, as the RFC asks.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from appliance.acme.problems import NotIssued, Problem

T = TypeVar("T")

LONGEST_WAIT = 7 * 86400.0  # seconds; who asks for more than a week means never


@dataclass(frozen=True, slots=True)
class Answer:
    """What is read of an HTTP answer."""

    status: int = 0
    body: bytes = b""
    nonce: str = ""  # Replay-Nonce
    location: str = ""
    retry_after: float | None = None  # seconds


class Meta(msgspec.Struct, rename="camel"):
    """What an authority says of itself."""

    terms_of_service: str = ""
    external_account_required: bool = False


class Directory(msgspec.Struct, rename="camel"):
    """Where an authority is asked for what (RFC 8555 7.1.1)."""

    new_nonce: str
    new_account: str
    new_order: str
    meta: Meta = msgspec.field(default_factory=Meta)


class Identifier(msgspec.Struct):
    """A name that is to be in the certificate."""

    value: str


class Challenge(msgspec.Struct):
    """A question by which an authority finds out whose a name is (RFC 8555 8)."""

    type: str
    url: str = ""
    status: str = ""
    token: str = ""
    error: Problem | None = None


class Authorization(msgspec.Struct):
    """How it stands with one name (RFC 8555 7.1.4)."""

    identifier: Identifier
    status: str
    challenges: list[Challenge] = msgspec.field(default_factory=list)

    @property
    def error(self) -> Problem | None:
        """Why it has failed, as far as the authority says."""
        return next((challenge.error for challenge in self.challenges if challenge.error is not None), None)


class Order(msgspec.Struct):
    """How it stands with a certificate (RFC 8555 7.1.3)."""

    status: str
    finalize: str
    authorizations: list[str] = msgspec.field(default_factory=list)
    certificate: str = ""
    error: Problem | None = None


def read(body: bytes, kind: type[T]) -> T:
    """The object in an answer; raises `NotIssued` when it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotIssued(f"the authority's answer cannot be read: {error}", _WRONG_URL) from error


_WRONG_URL = "Look whether acme.directory is the URL of an ACME directory."


def read_wait(value: str, now: float) -> float | None:
    """Seconds from now that a Retry-After stands for, a number or a date (RFC 9110 10.2.3); None when it is neither."""
    if value.isascii() and value.isdigit():
        seconds = float(value[:12])
    else:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now
    return min(max(seconds, 0.0), LONGEST_WAIT)


def shown_time(seconds: float) -> str:
    """A moment as the log and the reports write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
