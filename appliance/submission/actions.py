"""In charge of the words between a dialogue and whoever drives it: what is expected, what is to be done, by whom."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from appliance.model.mail import Caller
from appliance.submission.login import Login


class House(Protocol):
    """What the dialogue asks of the rest of the program; each answers at once."""

    def caller(self, login: Login) -> Caller | None:
        """Who logs in so; None when nobody does, or no longer."""

    def admit(self, caller: Caller) -> bool:
        """Count this connection for the caller's credential; False when that has too many."""

    def check(self, caller: Caller) -> None:
        """Refuse whoever may not send a message just now."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """Shake hands; then call `secured`."""


@dataclass(frozen=True, slots=True)
class WrongLogin:
    """Count it and let time pass; then call `login_failed`."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Take this message; then call `answer`."""

    caller: Caller
    sender: str
    recipients: tuple[str, ...]
    content: Callable[[], bytes]  # the message, dots unstuffed: to be called once, and not on the event loop if large
    size: int  # octets of it on the wire
    secure: bool  # it came over TLS


@dataclass(frozen=True, slots=True)
class ReadRecipient:
    """Read this address for this account where costly work is done; then call `recipient_read`."""

    account_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Yield:
    """Let other connections have the event loop; then call `go_on`."""


Action = StartTls | WrongLogin | Submit | ReadRecipient | Yield
Next = Action | None  # None: read on


class Phase(Enum):
    """What is expected next."""

    COMMAND = auto()
    CONTENT = auto()
    ACTION = auto()  # nothing is read until the action is done
    OVER = auto()
