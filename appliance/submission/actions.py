"""What passes between the SMTP protocol and the rest of the program: phases, actions, and the questions it asks."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from appliance.errors import PublicError, Refused
from appliance.message.addresses import Address
from appliance.model.mail import Caller, DsnRequest
from appliance.submission.commands import Login, MailParameters
from appliance.submission.replies import Rejected


@dataclass(frozen=True, slots=True)
class Logins:
    """How clients of a listener log in; the first two return at once."""

    known_caller: Callable[[Login], Caller | None]  # the credential's account, if it was found a moment ago
    admit: Callable[[Caller], bool]  # counts this connection for the caller's credential; False: that has too many
    find_caller: Callable[[Login], Awaitable[Caller | None]]  # None: the login is wrong or no longer valid
    wrong_login: Callable[[str], Awaitable[Refused]]  # from this address; returns after a delay
    plaintext: bool = False  # without TLS as well


@dataclass(frozen=True, slots=True)
class Backend:
    """What the protocol and its driver ask of the rest of the program, and in which listeners differ.

    With `logins` a message needs a caller; without, AUTH is not offered, and what is asked about a caller gets None.
    The first two return at once.
    """

    check_sender: Callable[[Caller | None, str, bool], str]  # with or without SMTPUTF8; as it is kept; raises Rejected
    check_recipient: Callable[[Caller | None, str], "Address | FindRecipient"]  # raises Rejected
    find_recipient: Callable[["FindRecipient"], Awaitable[Address | Rejected | PublicError]]
    submit: Callable[["Submit"], Awaitable[str]]  # the id of the stored message; raises Refused
    most_recipients: int  # of one message
    logins: Logins | None = None
    owner: str = ""  # who has the memory of messages without a caller
    dsn: bool = False  # clients may ask to be told by mail (RFC 3461)


class PlainAction(Enum):
    """An action without further data."""

    START_TLS = auto()  # do the TLS handshake; then call `secured`
    WRONG_LOGIN = auto()  # count the failed login, and wait; then call `login_failed`
    YIELD = auto()  # let other connections have the event loop; then call `resume`


@dataclass(frozen=True, slots=True)
class Submit:
    """Store this message; then call `submitted`."""

    caller: Caller | None
    sender: str
    recipients: tuple[str, ...]
    content: Callable[[], bytes]  # to be called once, and not on the event loop if large
    size: int  # octets on the wire
    secure: bool  # received over TLS
    dsn: Mapping[str, DsnRequest] | None = None  # by the key of a recipient, what is to be told of it
    login: Login | None = None  # that the session began with


@dataclass(frozen=True, slots=True)
class FindRecipient:
    """Check this address, which takes time, for its owner; then call `recipient_found`."""

    owner: str
    text: str


@dataclass(frozen=True, slots=True)
class FindCaller:
    """Look up the account of a login; then call `caller_found`."""

    login: Login
    mail: tuple[str, MailParameters] | None = None  # the sender and its parameters, if MAIL waits for it; else AUTH


Action = PlainAction | Submit | FindRecipient | FindCaller


class Phase(Enum):
    COMMAND = auto()
    CONTENT = auto()
    ACTION = auto()
    OVER = auto()
