"""In charge of what is known of one attempt to post, at whatever point it ends."""

from dataclasses import dataclass
from enum import StrEnum


class Step(StrEnum):
    """What has not happened yet, in words; the time that it had is added."""

    FOUND = "the receiver's name could not be looked up"
    CONNECTED = "the receiver did not accept a connection"
    SECURED = "the receiver did not finish the TLS handshake"
    SENT = "the receiver did not take the event"
    ANSWERED = "the receiver did not answer"
    ENDED = "the receiver did not finish its answer"


class NotPosted(Exception):
    """Something went wrong on the way, with the reason in words."""


@dataclass(slots=True)
class Attempt:
    """How far it has come."""

    awaiting: Step = Step.FOUND
    status: int | None = None
    body: bytes = b""
    error: str | None = None
    overlong: bool = False
