"""Makes and checks the addresses that feedback comes back to: `b+TOKEN@bounces.domain` for what happened to one
recipient of one message, `u+TOKEN@` for that recipient to unsubscribe, `fbl@`, `dmarc@` and `tlsrpt@` for reports, and
`postmaster@` and `abuse@`, which every mail domain has (RFC 2142). No I/O.

A token is 120 bits in 24 characters of base32 (RFC 4648 6), in lower case and read in either, for local parts are
folded on the way:

| bits | what |
|---|---|
| 5 | version, so its first character: `b` is 1 |
| 43 | when the recipient's id was given, microseconds, modulo 2**43 (101 days) |
| 24 | the first of the 74 random bits of that id |
| 48 | the MAC: HMAC-SHA256 under a key of its own, over version, whole time, id bits, and the name after the @ |

A token to unsubscribe has one character before these: the number of the list (of `lists_of` of the message, which has
fewer than 32). The MAC covers it, so that neither kind of token can be made of the other.

Finding the recipient. Time and id bits are the first 78 bits of its id, hence a range of ids; its message is within
`SAME_TIME` of it. `message_id BETWEEN … AND … AND id BETWEEN first AND last` reads the primary key of `recipients`, as
`store/queue_control.py` does for one id: no new index. Two recipients share a range if their ids were given in the same
microsecond and agree in 24 bits. Were all ids of the largest message (50 recipients) of one microsecond, that would
happen to one such message in 14,000; the look-up then finds two rows, and must take none.

Forgery. The MAC decides before anything is looked up. A guess is right once in 2**48: a million guesses have a chance
of 4 in 10**9. Such a guess names one recipient only if it also has the microsecond and the 24 bits of a real one; a
recipient who knows a message's id, and with it nearly the time, can aim at others of that message, and still has to
guess id bits and MAC: 72 bits. What a right guess, or a token seen in delivered mail, allows is to report one bounce
for that recipient. A token counts at its own name only, so another account's domain does not take it.

Age. A token is good for `LIFETIME` from when the id was given; retries take two days of it. The MAC covers the
whole time, so a token cannot come back when its 43 bits are used again. Until then an old one is told as expired;
older ones cannot be told from forged ones.
"""

import base64
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from appliance.keys.keyfile import derive
from appliance.times import DAY, HOUR

RETURN_PATH_PURPOSE: Final = "return path tokens"  # of the key that the MAC is made with
LIFETIME: Final = 30 * DAY
_CLOCKS: Final = HOUR  # by which the clock of a node that gave an id may be ahead

_VERSION: Final = 1
_TIME_BITS: Final = 43
_ID_BITS: Final = 24
_REST: Final = 74 - _ID_BITS  # of the random bits of an id, which its prefix of time and id bits leaves out
_MAC_BYTES: Final = 6
_TIMES: Final = 1 << _TIME_BITS

_TOKEN_CHARACTERS: Final = 24
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"
# Two characters at a time: base64.b32encode, which is written in Python, takes half of the time of a token.
_PAIRS: Final = tuple(first + second for first in _BASE32 for second in _BASE32)
_SHIFTS: Final = tuple(range(5 * (_TOKEN_CHARACTERS - 2), -1, -10))

_ADDRESS: Final = re.compile(
    r"(?:b\+([a-z2-7]{24})|u\+([a-z2-7]{25})|(fbl|dmarc|tlsrpt|postmaster|abuse))@([a-z0-9._-]{1,253})",
    re.ASCII | re.IGNORECASE,
)


class ReportAddress(StrEnum):
    """The local parts without a token."""

    COMPLAINTS = "fbl"
    DMARC = "dmarc"
    TLS = "tlsrpt"
    POSTMASTER = "postmaster"
    ABUSE = "abuse"


class TokenFault(StrEnum):
    """Why a token leads to no recipient."""

    EXPIRED = "expired"  # it is ours, and older than LIFETIME
    FORGED = "forged"  # it is none of ours, not of this name, or over three months old


@dataclass(frozen=True, slots=True)
class FeedbackAddress:
    """An address in the form of a return path: either a token, not yet checked, or the kind of report."""

    domain: str
    token: str | None = None
    report: ReportAddress | None = None
    list_number: int | None = None  # of the list that the token unsubscribes from; None: it takes bounces


@dataclass(frozen=True, slots=True)
class RecipientIds:
    """The ids, from `first` to `last`, of which one is the recipient's; and the time that they all have."""

    first: str
    last: str
    given_at: int


def read_address(address: str) -> FeedbackAddress | None:
    """What an address of RCPT names: a token, a kind of report, or None for neither. Its domain is in lower case."""
    if len(address) > 320 or (found := _ADDRESS.fullmatch(address)) is None:
        return None
    domain = found[4].lower()
    if found[3] is not None:
        return FeedbackAddress(domain, report=ReportAddress(found[3].lower()))
    if found[2] is not None:
        token = found[2].lower()
        return FeedbackAddress(domain, token=token, list_number=_BASE32.index(token[0]))
    return FeedbackAddress(domain, token=found[1].lower())


class ReturnPaths:
    """The tokens of one installation, by its key."""

    def __init__(self, installation_key: bytes) -> None:
        # With the key in it already; each MAC is made of a copy, in less than half the time of hmac.digest.
        self._keyed = hmac.new(derive(installation_key, RETURN_PATH_PURPOSE), digestmod="sha256")

    def address(self, recipient_id: str, name: str) -> str:
        """The return path of a recipient at this name, which is ASCII."""
        return f"b+{self._token(recipient_id, name)}@{name}"

    def unsubscribe_address(self, recipient_id: str, name: str, list_number: int) -> str:
        """Where a recipient writes to, to unsubscribe from the list with this number."""
        return f"u+{self._token(recipient_id, name, _BASE32[list_number])}@{name}"

    def _token(self, recipient_id: str, name: str, list_character: str = "") -> str:
        prefix = int(recipient_id.rpartition("_")[2], 16) >> _REST
        head = _VERSION << _TIME_BITS + _ID_BITS | prefix % (_TIMES << _ID_BITS)
        token = head << 8 * _MAC_BYTES | int.from_bytes(self._mac(prefix, name, list_character), "big")
        return list_character + "".join([_PAIRS[token >> shift & 1023] for shift in _SHIFTS])

    def check(self, token: str, name: str, now: int) -> RecipientIds | TokenFault:
        """The recipient that a token of `read_address` at this name leads to, or why it leads to none."""
        list_character, token = token[:-_TOKEN_CHARACTERS].lower(), token[-_TOKEN_CHARACTERS:]
        data = base64.b32decode(token, casefold=True)
        head = int.from_bytes(data[:9], "big")
        version, low, bits = head >> _TIME_BITS + _ID_BITS, head >> _ID_BITS & _TIMES - 1, head & (1 << _ID_BITS) - 1
        latest = now + _CLOCKS
        time = latest - (latest - low) % _TIMES  # the last such moment
        if version != _VERSION or time < 0:
            return TokenFault.FORGED
        prefix = time << _ID_BITS | bits
        if not hmac.compare_digest(data[9:], self._mac(prefix, name, list_character)):
            return TokenFault.FORGED
        if now - time > LIFETIME:
            return TokenFault.EXPIRED
        return RecipientIds(f"rcp_{prefix << _REST:032x}", f"rcp_{(prefix + 1 << _REST) - 1:032x}", time)

    def _mac(self, prefix: int, name: str, list_character: str) -> bytes:
        data = b"%d %d %b" % (_VERSION, prefix, name.lower().encode("ascii", "replace"))
        if list_character:
            data += b" unsubscribe %b" % list_character.encode("ascii")
        mac = self._keyed.copy()
        mac.update(data)
        return mac.digest()[:_MAC_BYTES]
