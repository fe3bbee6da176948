"""One message being received: its envelope, its content from DATA or BDAT, and its memory. No I/O.

The first half is the interface between the SMTP protocol and the rest of the program: backend calls, actions, phases.

Only CRLF.CRLF ends DATA. Anything else that another server might take for an end or a line is content, for which intake
refuses the message: nothing after a smuggled end is ever read as a command.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from itertools import chain
from typing import Final

from msgspec import Struct

from appliance.concurrency.fair_share import MemoryBudget
from appliance.errors import Code, PublicError, Refused
from appliance.message.addresses import Address, cost_of_address
from appliance.message.characters import joined, replaced
from appliance.message.limits import MESSAGE_SIZE
from appliance.model.accounts import Caller
from appliance.model.mail import DsnRequest
from appliance.submission import dialogue
from appliance.submission.dialogue import Login, MailParameters, Rejected

END: Final = b"\r\n.\r\n"
AT_ONCE: Final = 8 * 1024  # octets copied in one step
# Octets on the wire: a dot-stuffed line is at least four octets long, one of them the dot.
DATA_OCTETS: Final = MESSAGE_SIZE + MESSAGE_SIZE // 3 + 1
RCPT_COMMANDS: Final = 1_000  # in one transaction, accepted or not
ADDRESS_COST: Final = 300  # estimated microseconds; more expensive addresses are parsed on a worker thread


class Logins(Struct, frozen=True):
    """How clients of a listener log in; the first two do not block."""

    known_caller: Callable[[Login], Caller | None]  # the cached caller
    admit: Callable[[Caller], bool]  # count this connection for the credential; False: too many
    find_caller: Callable[[Login], Awaitable[Caller | None]]  # None: wrong or revoked
    wrong_login: Callable[[str], Awaitable[Refused]]  # count a failure of this address; returns after a delay
    plaintext: bool = False  # also without TLS
    anonymous: Login | None = None  # of clients that send no AUTH; None: they must log in


class Backend(Struct, frozen=True):
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
    now: Callable[[], int] | None = None  # offers FUTURERELEASE (RFC 4865), by this clock
    starttls: bool = True  # offers STARTTLS
    content_refused: Callable[["Submit", bytes], None] = lambda *_: None  # a dropped message and its reply
    # As `find_recipient`, for the first RCPT: saves a task switch where the look-up never waits. None where it may.
    find_at_once: Callable[["FindRecipient"], Address | Rejected | PublicError | None] = lambda _: None


class PlainAction(Enum):
    START_TLS = auto()  # do the TLS handshake; then call `secured`
    WRONG_LOGIN = auto()  # count the failed login, and wait; then call `login_failed`
    YIELD = auto()  # let other connections run; then call `resume`


class Submit(Struct, frozen=True):
    """Store this message; then call `submitted`."""

    caller: Caller | None
    sender: str
    recipients: tuple[str, ...]
    content: Callable[[], bytes]  # call once, and not on the event loop if large
    size: int  # octets on the wire
    secure: bool  # received over TLS
    dsn: Mapping[str, DsnRequest] | None = None  # requested notifications by recipient key
    login: Login | None = None  # of the session
    hold: int | None = None  # when the message is due; None: at once
    helo: str = ""  # the client's name in EHLO or HELO


class FindRecipient(Struct, frozen=True):
    owner: str
    text: str


class FindCaller(Struct, frozen=True):
    """Look up the account of a login; then call `caller_found`."""

    login: Login
    mail: tuple[str, MailParameters] | None = None  # the sender and its parameters for MAIL; None for AUTH


Action = PlainAction | Submit | FindRecipient | FindCaller


class Phase(Enum):
    COMMAND = auto()
    CONTENT = auto()
    ACTION = auto()
    OVER = auto()


# ---- content
class DataContent:
    """The content of DATA. After a `refusal` it is read to its end and dropped."""

    def __init__(self) -> None:
        # As if a line had just ended, so that an immediate end needs no special case.
        self._held = bytearray(b"\r\n")
        self._searched = 0  # octets without the start of an end
        self.size = 0  # octets received
        self.refusal = b""

    def receive(self, data: bytes) -> bytes | None:
        """Add data; once the end has arrived, return the octets after it."""
        self._held += data
        self.size += len(data)
        end = self._held.find(END, self._searched)
        if end < 0:
            self._searched = max(0, len(self._held) - len(END) + 1)
            if self.refusal or self.size > DATA_OCTETS:
                self.discard(dialogue.TOO_LARGE)
            return None
        rest = bytes(self._held[end + len(END) :])
        self.size -= len(rest)
        del self._held[end + 2 :]
        return rest

    def discard(self, refusal: bytes) -> None:
        """Keep only what is needed to find the end; the first refusal wins."""
        self.refusal = self.refusal or refusal
        del self._held[: max(0, len(self._held) - len(END) + 1)]
        self._searched = 0

    def content(self) -> bytes:
        """Return the message without dot-stuffing (RFC 5321 4.5.2); call once."""
        held, self._held = self._held, bytearray()
        if len(held) <= AT_ONCE:
            return bytes(held).replace(b"\r\n.", b"\r\n")[2:]
        pieces = replaced(held, b"\r\n.", b"\r\n")
        return joined(chain((next(pieces)[2:],), pieces))


class ChunkedContent:
    def __init__(self) -> None:
        self._held = bytearray()
        self._awaited = 0  # missing octets of the current chunk
        self.size = 0
        self.announced = 0  # octets of the current chunk
        self.last = False
        self.refusal = b""

    def expect(self, size: int, *, last: bool) -> None:
        self.announced = self._awaited = size
        self.last = last

    def receive(self, data: bytes) -> bytes | None:
        """Add data; once the chunk is complete, return the octets after it."""
        piece = data[: self._awaited]
        self._awaited -= len(piece)
        self.size += len(piece)
        if self.size > MESSAGE_SIZE:
            self.discard(dialogue.TOO_LARGE)
        if not self.refusal:
            self._held += piece
        return None if self._awaited else data[len(piece) :]

    def discard(self, refusal: bytes) -> None:
        self.refusal = self.refusal or refusal
        self._held.clear()

    def content(self) -> bytes:
        """Return the message, with a final CRLF; call once."""
        end = b"" if self._held.endswith(b"\r\n") or not self._held else b"\r\n"
        content, self._held = joined((self._held, end)), bytearray()
        return content


class IncomingTransaction:
    """From MAIL to the end of the message: the envelope, and the memory of the content."""

    def __init__(
        self, backend: Backend, caller: Caller | None, sender: str, budget: MemoryBudget, parameters: MailParameters
    ) -> None:
        self._utf8 = "SMTPUTF8" in parameters
        self.sender = backend.check_sender(caller, sender, self._utf8)
        self.caller = caller
        self._backend = backend
        self._owner = backend.owner if caller is None else caller.account_id
        self._parameters = parameters
        self.hold = None if backend.now is None else dialogue.hold_time(parameters, backend.now())
        self.recipients: dict[str, str] = {}  # normalized to the client's spelling
        self.dsn: dict[str, DsnRequest] | None = None  # by normalized recipient
        self._dsn_request: DsnRequest | None = None  # of the RCPT being checked
        self.chunks: ChunkedContent | None = None
        self._rcpts = 0  # RCPT commands, accepted or not
        self._budget = budget
        self._memory = 0

    def rcpt(self, argument: str) -> bytes | FindRecipient:
        if self.chunks is not None:
            raise Rejected(dialogue.NOT_AMONG_CHUNKS)
        self._rcpts += 1
        if self._rcpts > RCPT_COMMANDS:
            raise Rejected(dialogue.TOO_MUCH_JUNK, final=True)
        text, parameters = dialogue.rcpt_path(argument, dsn=self._backend.dsn)
        if not (self._utf8 or text.isascii()):
            raise Rejected(dialogue.NEEDS_SMTPUTF8)
        if self.caller is not None and self.caller.dsn is not None:
            parameters = {"NOTIFY": self.caller.dsn.value, **parameters}
        self._dsn_request = dialogue.dsn_request(self._parameters, parameters, utf8=self._utf8) if parameters else None
        recipient = self._backend.check_recipient(self.caller, text)
        if isinstance(recipient, Address):
            return self.add_recipient(recipient)
        if len(self.recipients) < self._backend.most_recipients:
            result = self._backend.find_at_once(recipient) if self._rcpts == 1 else None
            return recipient if result is None else self.add_found(result)
        return dialogue.RECIPIENT_OK if text in self.recipients.values() else dialogue.TOO_MANY_RECIPIENTS

    def add_found(self, result: Address | Rejected | PublicError) -> bytes:
        if isinstance(result, Rejected):
            raise result
        if isinstance(result, PublicError):
            raise Rejected(dialogue.refusal(result))
        return self.add_recipient(result)

    def add_recipient(self, recipient: Address) -> bytes:
        if len(self.recipients) >= self._backend.most_recipients and recipient.key not in self.recipients:
            return dialogue.TOO_MANY_RECIPIENTS
        if self._dsn_request is not None and recipient.key not in self.recipients:
            self.dsn = self.dsn or {}
            self.dsn[recipient.key] = self._dsn_request
        self.recipients.setdefault(recipient.key, recipient.spelling)
        return dialogue.RECIPIENT_OK

    def take_memory(self, content: DataContent | ChunkedContent, octets: int) -> None:
        if self._budget.try_take(self._owner, octets):
            self._memory += octets
        else:
            content.discard(dialogue.NO_MEMORY)

    def release(self) -> None:
        if self._memory:
            self._budget.give_back(self._owner, self._memory)
            self._memory = 0


# ---- the envelopes of submission
def caller_sender(check: Callable[[Caller], None], caller: Caller | None, sender: str, utf8: bool) -> str:
    """Accept a sender at one of the caller's domains; `check` raises Refused if the caller may not send now."""
    assert caller is not None  # noqa: S101 - a listener with logins
    if not sender:
        raise Rejected(dialogue.NULL_SENDER, code=Code.FORBIDDEN)
    try:
        check(caller)
    except PublicError as refused:
        raise Rejected(dialogue.refusal(refused), code=refused.code) from None
    address = dialogue.parse_address(sender, "MAIL FROM")
    if not (utf8 or sender.isascii()):
        raise Rejected(dialogue.NEEDS_SMTPUTF8)
    if address.domain not in caller.domains:
        raise Rejected(dialogue.FOREIGN_SENDER, code=Code.FORBIDDEN)
    return address.wire


def any_recipient(caller: Caller | None, text: str) -> Address | FindRecipient:
    if cost_of_address(text) <= ADDRESS_COST:
        return dialogue.parse_address(text)
    return FindRecipient(caller.account_id if caller else "", text)
