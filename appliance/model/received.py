"""Mail that an account receives: its envelope, the result of the checks of its sender, and the records of both."""

from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from appliance.model.feedback import QueueShare


class CheckResult(StrEnum):
    """Result of SPF, DKIM or DMARC, in the words of RFC 8601 2.7."""

    PASS = "pass"  # noqa: S105 - a result
    FAIL = "fail"
    SOFTFAIL = "softfail"
    NEUTRAL = "neutral"
    NONE = "none"
    TEMPERROR = "temperror"
    PERMERROR = "permerror"


class SpfCheck(Struct, frozen=True):
    result: CheckResult
    domain: str  # of MAIL FROM, or of EHLO for the null sender
    reason: str = ""


class DkimCheck(Struct, frozen=True):
    """The result of one signature."""

    result: CheckResult
    domain: str
    selector: str
    aligned: bool  # with the domain of the From field
    reason: str = ""


class DmarcCheck(Struct, frozen=True):
    result: CheckResult
    domain: str  # of the From field
    policy: str | None = None  # published for it: none, quarantine or reject
    reason: str = ""


class Authentication(Struct, frozen=True):
    spf: SpfCheck
    dkim: tuple[DkimCheck, ...]
    dmarc: DmarcCheck

    @property
    def dkim_result(self) -> CheckResult:
        """The best result of the signatures that align with the From field; without any, of all."""
        aligned = [check.result for check in self.dkim if check.aligned]
        results = aligned or [check.result for check in self.dkim]
        return min(results, key=_BEST_FIRST.index, default=CheckResult.NONE)


_BEST_FIRST = (
    CheckResult.PASS,
    CheckResult.TEMPERROR,
    CheckResult.FAIL,
    CheckResult.PERMERROR,
    CheckResult.SOFTFAIL,
    CheckResult.NEUTRAL,
    CheckResult.NONE,
)


class ReceivedEnvelope(Struct, frozen=True):
    """What a client said of a message in SMTP; the recipients are of one account."""

    sender: str  # MAIL FROM; empty: the null sender
    recipients: tuple[str, ...]
    client: str  # IP address
    helo: str
    secure: bool  # over TLS


class AnsweredEmail(Struct, frozen=True):
    """The sent message that a received one answers."""

    id: str
    metadata: dict[str, str] = {}


class ReceivedFacts(Struct, frozen=True):
    """Results of the checks of a message, and the message that it answers."""

    authentication: Authentication
    answers: AnsweredEmail | None = None


class ReceivingAddress(Struct, frozen=True):
    address: str  # or a domain
    created_at: int


class ReceivingAccount(Struct, frozen=True):
    """The account that a domain receives for; `is_known`: it receives the address, too."""

    account_id: str
    suspended: bool
    stored_bytes: int
    is_known: bool


@dataclass(frozen=True, slots=True)
class NewReceived:
    """A message for one account, before it is stored."""

    id: str
    account_id: str
    network: str  # of the client
    envelope: ReceivedEnvelope
    shares: frozenset[QueueShare]
    mime: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueuedReceived:
    """A queued message and its turn, which is that of an account and a client network."""

    turn: str
    id: str
    size: int
    tries: int


@dataclass(frozen=True, slots=True)
class WaitingReceived:
    """A stored message that waits for the checks of its sender."""

    id: str
    account_id: str
    envelope: ReceivedEnvelope
    mime: bytes = field(repr=False)  # complete
    received_at: int
    tries: int  # including this one


class ReceivedMessage(Struct, frozen=True):
    """A received message as in a list."""

    id: str
    received_at: int
    envelope: ReceivedEnvelope
    sender: str  # the From field
    subject: str
    spf: str
    dkim: str
    dmarc: str
    auto_submitted: bool
    attachments: int
    size: int
    facts: ReceivedFacts
