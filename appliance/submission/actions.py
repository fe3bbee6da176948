"""What passes between the SMTP protocol and the rest of the program: phases, actions, and the questions it asks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

from appliance.errors import Refused
from appliance.message.addresses import Address
from appliance.model.mail import Caller
from appliance.submission.commands import Login
from appliance.submission.replies import Rejected


@dataclass(frozen=True, slots=True)
class Backend:
    """What the protocol and its driver ask of the rest of the program; the first three return at once."""

    known_caller: Callable[[Login], Caller | None]  # the credential's account, if it was found a moment ago
    admit: Callable[[Caller], bool]  # counts this connection for the caller's credential; False: that has too many
    check: Callable[[Caller], None]  # raises Refused for a caller that may not send a message at this time
    find_caller: Callable[[Login], Awaitable[Caller | None]]  # None: the login is wrong or no longer valid
    submit: Callable[["Submit"], Awaitable[str]]  # the id of the stored message; raises Refused
    wrong_login: Callable[[str], Awaitable[Refused]]  # from this address; returns after a delay
    parse_recipient: Callable[["ParseRecipient"], Awaitable[Address | Rejected | Refused]]


class PlainAction(Enum):
    """An action without further data."""

    START_TLS = auto()  # do the TLS handshake; then call `secured`
    WRONG_LOGIN = auto()  # count the failed login, and wait; then call `login_failed`
    YIELD = auto()  # let other connections have the event loop; then call `resume`


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
class FindCaller:
    """Look up the account of a login; then call `caller_found`."""

    login: Login
    mail: tuple[str, bool] | None = None  # the sender and whether SMTPUTF8 is in use, if MAIL waits for it; else AUTH


Action = PlainAction | Submit | ParseRecipient | FindCaller


class Phase(Enum):
    COMMAND = auto()
    CONTENT = auto()
    ACTION = auto()
    OVER = auto()
