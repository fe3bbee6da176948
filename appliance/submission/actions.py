"""The interface between the SMTP protocol and the rest of the program: phases, actions, and backend calls."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from appliance.errors import PublicError, Refused
from appliance.message.addresses import Address
from appliance.model.accounts import Caller
from appliance.model.mail import DsnRequest
from appliance.submission.commands import Login, MailParameters
from appliance.submission.replies import Rejected


@dataclass(frozen=True, slots=True)
class Logins:
    """How clients of a listener log in; the first two do not block."""

    known_caller: Callable[[Login], Caller | None]  # the cached caller
    admit: Callable[[Caller], bool]  # count this connection for the credential; False: too many
    find_caller: Callable[[Login], Awaitable[Caller | None]]  # None: wrong or revoked
    wrong_login: Callable[[str], Awaitable[Refused]]  # count a failure of this address; returns after a delay
    plaintext: bool = False  # also without TLS


@dataclass(frozen=True, slots=True)
class Backend:
    """The functions that the protocol and its driver call, and in which listeners differ.

    With `logins` a message requires a caller; otherwise AUTH is not offered and callers are None. The first two do not
    block.
    """

    check_sender: Callable[[Caller | None, str, bool], str]  # address, SMTPUTF8; returns the stored form
    check_recipient: Callable[[Caller | None, str], "Address | FindRecipient"]  # raises Rejected
    find_recipient: Callable[["FindRecipient"], Awaitable[Address | Rejected | PublicError]]
    submit: Callable[["Submit"], Awaitable[str]]  # the id of the stored message; raises Refused
    most_recipients: int  # per message
    logins: Logins | None = None
    owner: str = ""  # owns the memory of messages without a caller
    dsn: bool = False  # offers delivery status notifications (RFC 3461)


class PlainAction(Enum):
    """An action without data."""

    START_TLS = auto()  # do the TLS handshake; then call `secured`
    WRONG_LOGIN = auto()  # count the failed login, and wait; then call `login_failed`
    YIELD = auto()  # let other connections run; then call `resume`


@dataclass(frozen=True, slots=True)
class Submit:
    """Store this message; then call `submitted`."""

    caller: Caller | None
    sender: str
    recipients: tuple[str, ...]
    content: Callable[[], bytes]  # call once, and not on the event loop if large
    size: int  # octets on the wire
    secure: bool  # received over TLS
    dsn: Mapping[str, DsnRequest] | None = None  # requested notifications by recipient key
    login: Login | None = None  # of the session


@dataclass(frozen=True, slots=True)
class FindRecipient:
    """Check this address off the event loop; then call `recipient_found`."""

    owner: str
    text: str


@dataclass(frozen=True, slots=True)
class FindCaller:
    """Look up the account of a login; then call `caller_found`."""

    login: Login
    mail: tuple[str, MailParameters] | None = None  # the sender and its parameters for MAIL; None for AUTH


Action = PlainAction | Submit | FindRecipient | FindCaller


class Phase(Enum):
    COMMAND = auto()
    CONTENT = auto()
    ACTION = auto()
    OVER = auto()
