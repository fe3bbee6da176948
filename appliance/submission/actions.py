"""What passes between the SMTP protocol and the rest of the program: phases, actions, and the questions it asks."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from appliance.model.mail import Caller
from appliance.submission.authentication import Login


class Backend(Protocol):
    """What the protocol asks of the rest of the program; each call returns at once."""

    def caller(self, login: Login) -> Caller | None:
        """The credential's account; None for a login that is wrong or no longer valid."""

    def admit(self, caller: Caller) -> bool:
        """Count this connection for the caller's credential; False when that has too many."""

    def check(self, caller: Caller) -> None:
        """Raise Refused for a caller that may not send a message at this time."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """Do the TLS handshake; then call `secured`."""


@dataclass(frozen=True, slots=True)
class WrongLogin:
    """Count the failed login, and wait; then call `login_failed`."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Store this message; then call `submitted`."""

    caller: Caller
    sender: str
    recipients: tuple[str, ...]
    content: Callable[[], bytes]  # to be called once, and not on the event loop if large
    size: int  # octets on the wire
    secure: bool  # received over TLS


@dataclass(frozen=True, slots=True)
class ParseRecipient:
    """Parse this address on a worker thread, for this account; then call `recipient_parsed`."""

    account_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Yield:
    """Let other connections have the event loop; then call `resume`."""


Action = StartTls | WrongLogin | Submit | ParseRecipient | Yield


class Phase(Enum):
    COMMAND = auto()
    CONTENT = auto()
    ACTION = auto()
    OVER = auto()
