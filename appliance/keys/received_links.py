"""Makes and checks the signed links to a received message and its files: usable without a login, for an hour.

A link is `/inbound/TOKEN`: base64url of version, account, message, file number and expiry, with a MAC of 128 bits. The
MAC is checked before any lookup.
"""

import hmac
import re
from typing import Final

import pybase64
from msgspec import Struct

from appliance.keys.keyfile import derive
from appliance.times import HOUR

RECEIVED_PATH: Final = "/inbound"
PURPOSE: Final = "links to received mail"  # purpose of the MAC key
LINK_LIFETIME: Final = HOUR  # by the interface
RAW: Final = 0  # the number of the whole message; files count from 1

_VERSION: Final = b"\x01"
_MAC_BYTES: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{30,400}")


class LinkedFile(Struct, frozen=True):
    account_id: str
    message_id: str
    number: int
    expires_at: int


class ReceivedLinks:
    def __init__(self, installation_key: bytes, base_url: str) -> None:
        self._key = derive(installation_key, PURPOSE)
        self._base_url = base_url.rstrip("/")

    def url(self, account_id: str, message_id: str, number: int, now: int) -> str:
        data = _VERSION + f"{account_id} {message_id} {number} {now + LINK_LIFETIME}".encode("ascii")
        token = pybase64.urlsafe_b64encode(data + self._mac(data)).decode("ascii").rstrip("=")
        return f"{self._base_url}{RECEIVED_PATH}/{token}"

    def read(self, token: str, now: int) -> LinkedFile | None:
        """Return the file of a link; None if the link is forged or has expired."""
        if not _TOKEN.fullmatch(token) or len(token) % 4 == 1:
            return None
        data = pybase64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        data, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(data)) or not data.startswith(_VERSION):
            return None
        account_id, message_id, number, expires_at = data[len(_VERSION) :].decode("ascii").split(" ")
        linked = LinkedFile(account_id, message_id, int(number), int(expires_at))
        return linked if now < linked.expires_at else None

    def _mac(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")[:_MAC_BYTES]
