"""Makes and checks the links of one-click unsubscribe (RFC 8058), `https://…/unsubscribe/TOKEN`. No I/O, no state.

A token names an account, a list (a tag or a template, see `model/mail.py`) and the address that the message was sent
to. It is base64url of the version, of the three as UTF-8 with a NUL between them, and of a MAC: HMAC-SHA256 under a key
of its own, cut to 128 bits. The MAC decides before anything is looked up. Links do not expire: people unsubscribe by
mail that is years old, and what a link that was passed on allows is to unsubscribe that one address.

There are links only where the server has an https address: RFC 8058 3.1 allows no other.
"""

import hmac
import re
from dataclasses import dataclass
from typing import Final

import pybase64

from appliance.keys.keyfile import derive

UNSUBSCRIBE_PATH: Final = "/unsubscribe"
UNSUBSCRIBE_PURPOSE: Final = "unsubscribe links"  # of the key that the MAC is made with

_VERSION: Final = b"\x01"
_MAC_BYTES: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{30,1000}")  # the longest address and tag make it 500


@dataclass(frozen=True, slots=True)
class Unsubscription:
    """What a link asks for: no more messages of this list to this address (its key form)."""

    account_id: str
    mail_list: str
    address: str


class UnsubscribeLinks:
    """The links of one installation, by its key and its address."""

    def __init__(self, installation_key: bytes, base_url: str) -> None:
        self._key = derive(installation_key, UNSUBSCRIBE_PURPOSE)
        self._base_url = base_url if base_url.startswith("https://") else None

    @property
    def usable(self) -> bool:
        return self._base_url is not None

    def url(self, wanted: Unsubscription) -> str | None:
        """The link for a message; None where the server has no https address."""
        return None if self._base_url is None else f"{self._base_url}{UNSUBSCRIBE_PATH}/{self.token(wanted)}"

    def token(self, wanted: Unsubscription) -> str:
        data = _VERSION + "\0".join((wanted.account_id, wanted.mail_list, wanted.address)).encode("utf-8")
        return pybase64.urlsafe_b64encode(data + self._mac(data)).decode("ascii").rstrip("=")

    def read(self, token: str) -> Unsubscription | None:
        """What a token asks for; None for one that is none of ours."""
        if not _TOKEN.fullmatch(token) or len(token) % 4 == 1:
            return None
        data = pybase64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        data, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        # The version is signed too. Of the ways to write the same bytes in base64 any will do.
        if not hmac.compare_digest(mac, self._mac(data)) or not data.startswith(_VERSION):
            return None
        return Unsubscription(*data[len(_VERSION) :].decode("utf-8").split("\0"))

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:_MAC_BYTES]
