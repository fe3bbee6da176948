"""Makes and checks the signed addresses and links that recipients and their servers send feedback to. No I/O, no state.

Addresses at a return path: `b+TOKEN@` for bounces of one recipient of one message, `u+TOKEN@` for that recipient to
unsubscribe, `fbl@`, `dmarc@` and `tlsrpt@` for reports, `postmaster@` and `abuse@` (RFC 2142). Links:
`/unsubscribe/TOKEN`.

A token of an address is 120 bits in 24 characters of base32 (RFC 4648 6), in either case, since servers fold local
parts:

| bits | content |
|---|---|
| 5 | version, so the first character: `b` is 1 |
| 43 | time of the recipient's id in microseconds, modulo 2**43 (101 days) |
| 24 | the first of the 74 random bits of that id |
| 48 | MAC: HMAC-SHA256 with its own key over version, full time, id bits, and the name after the @ |

A token to unsubscribe has one more character in front: the index of the list in `lists_of` of the message, below 32.
The MAC covers it, so neither kind of token can become the other.

Lookup: time and id bits are the first 78 bits of the id, hence a range of ids. Two recipients share a range if their
ids have the same microsecond and 24 bits; the lookup then returns two rows, and the caller must use neither.

Forgery: the MAC is checked before any lookup; a guess succeeds once in 2**48. A valid token allows to report one bounce
for one recipient, at its own name only. A token is valid for LIFETIME, which includes the 30 days that a message may be
scheduled ahead; the MAC covers the full time, so an old token does not become valid when its 43 bits repeat. After 101
days an expired token looks forged.
"""

import base64
import hmac
import re
from enum import StrEnum
from typing import Final

import pybase64
from msgspec import Struct

from appliance.keys.keyfile import derive
from appliance.times import DAY, HOUR

RETURN_PATH_PURPOSE: Final = "return path tokens"  # purpose of the MAC key
LIFETIME: Final = 62 * DAY  # from acceptance: 30 days scheduled, delivery, and a month for late bounces
_CLOCKS: Final = HOUR  # that the clock of another node may be ahead

_VERSION: Final = 1
_TIME_BITS: Final = 43
_ID_BITS: Final = 24
_REST: Final = 74 - _ID_BITS  # random bits of an id that are not in the token
_MAC_BYTES: Final = 6
_TIMES: Final = 1 << _TIME_BITS

_TOKEN_CHARACTERS: Final = 24
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"
# Two characters at a time: base64.b32encode is written in Python and takes half the time of a token.
_PAIRS: Final = tuple(first + second for first in _BASE32 for second in _BASE32)
_SHIFTS: Final = tuple(range(5 * (_TOKEN_CHARACTERS - 2), -1, -10))

_ADDRESS: Final = re.compile(
    r"(?:b\+([a-z2-7]{24})|u\+([a-z2-7]{25})|(fbl|dmarc|tlsrpt|postmaster|abuse))@([a-z0-9._-]{1,253})",
    re.ASCII | re.IGNORECASE,
)


class ReportAddress(StrEnum):
    COMPLAINTS = "fbl"
    DMARC = "dmarc"
    TLS = "tlsrpt"
    POSTMASTER = "postmaster"
    ABUSE = "abuse"


class TokenFault(StrEnum):
    """Why a token leads to no recipient."""

    EXPIRED = "expired"  # it is ours, and older than LIFETIME
    FORGED = "forged"  # it is none of ours, not of this name, or over three months old


class FeedbackAddress(Struct, frozen=True):
    """An address in the form of a return path: either a token, not yet checked, or the kind of report."""

    domain: str
    token: str | None = None
    report: ReportAddress | None = None
    list_number: int | None = None  # of the list that the token unsubscribes from; None: it takes bounces


class RecipientIds(Struct, frozen=True):
    """The range of ids that includes the recipient's."""

    first: str
    last: str


def read_address(address: str) -> FeedbackAddress | None:
    if len(address) > 320 or (match := _ADDRESS.fullmatch(address)) is None:
        return None
    domain = match[4].lower()
    if match[3] is not None:
        return FeedbackAddress(domain, report=ReportAddress(match[3].lower()))
    if match[2] is not None:
        token = match[2].lower()
        return FeedbackAddress(domain, token=token, list_number=_BASE32.index(token[0]))
    return FeedbackAddress(domain, token=match[1].lower())


class ReturnPaths:
    def __init__(self, installation_key: bytes) -> None:
        # Each MAC starts from a copy, which takes less than half the time of hmac.digest.
        self._keyed = hmac.new(derive(installation_key, RETURN_PATH_PURPOSE), digestmod="sha256")

    def address(self, recipient_id: str, name: str) -> str:
        """Return the return path of a recipient; `name` is ASCII."""
        return f"b+{self._token(recipient_id, name)}@{name}"

    def unsubscribe_address(self, recipient_id: str, name: str, list_number: int) -> str:
        return f"u+{self._token(recipient_id, name, _BASE32[list_number])}@{name}"

    def _token(self, recipient_id: str, name: str, list_character: str = "") -> str:
        prefix = int(recipient_id.rpartition("_")[2], 16) >> _REST
        head = _VERSION << _TIME_BITS + _ID_BITS | prefix % (_TIMES << _ID_BITS)
        token = head << 8 * _MAC_BYTES | int.from_bytes(self._mac(prefix, name, list_character), "big")
        return list_character + "".join([_PAIRS[token >> shift & 1023] for shift in _SHIFTS])

    def check(self, token: str, name: str, now: int) -> RecipientIds | TokenFault:
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
        return RecipientIds(f"rcp_{prefix << _REST:032x}", f"rcp_{(prefix + 1 << _REST) - 1:032x}")

    def _mac(self, prefix: int, name: str, list_character: str) -> bytes:
        data = b"%d %d %b" % (_VERSION, prefix, name.lower().encode("ascii", "replace"))
        if list_character:
            data += b" unsubscribe %b" % list_character.encode("ascii")
        mac = self._keyed.copy()
        mac.update(data)
        return mac.digest()[:_MAC_BYTES]


UNSUBSCRIBE_PATH: Final = "/unsubscribe"
UNSUBSCRIBE_PURPOSE: Final = "unsubscribe links"  # purpose of the MAC key

_LINK_VERSION: Final = b"\x01"
_LINK_MAC_BYTES: Final = 16
_LINK_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{30,1000}")  # 500 with the longest address and tag


class Unsubscription(Struct, frozen=True):
    """No more messages of this list (a tag or a template) to this address, in its key form."""

    account_id: str
    mail_list: str
    address: str


class UnsubscribeLinks:
    """One-click unsubscribe links (RFC 8058).

    A token is base64url of the version, account, list and address with NULs between them, and a MAC of 128 bits. The
    MAC is checked before any lookup. Links do not expire, because people unsubscribe from old mail; a link that was
    passed on can only unsubscribe its address. RFC 8058 3.1 requires an https address: without one there are no links,
    except in `appliance dev`, with `plain`.
    """

    def __init__(self, installation_key: bytes, base_url: str, *, plain: bool = False) -> None:
        self._key = derive(installation_key, UNSUBSCRIBE_PURPOSE)
        self._base_url = base_url if plain or base_url.startswith("https://") else None

    @property
    def usable(self) -> bool:
        return self._base_url is not None

    def url(self, link: Unsubscription) -> str | None:
        return None if self._base_url is None else f"{self._base_url}{UNSUBSCRIBE_PATH}/{self.token(link)}"

    def token(self, link: Unsubscription) -> str:
        data = _LINK_VERSION + "\0".join((link.account_id, link.mail_list, link.address)).encode("utf-8")
        return pybase64.urlsafe_b64encode(data + self._mac(data)).decode("ascii").rstrip("=")

    def read(self, token: str) -> Unsubscription | None:
        if not _LINK_TOKEN.fullmatch(token) or len(token) % 4 == 1:
            return None
        data = pybase64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        data, mac = data[:-_LINK_MAC_BYTES], data[-_LINK_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(data)) or not data.startswith(_LINK_VERSION):
            return None
        return Unsubscription(*data[len(_LINK_VERSION) :].decode("utf-8").split("\0"))

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:_LINK_MAC_BYTES]
