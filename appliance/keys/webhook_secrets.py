"""In charge of the secrets that sign webhooks: made here, sealed for the disk, shown to their owner once."""

from dataclasses import dataclass, field

import pybase64

from appliance.keys.keyfile import derive
from appliance.keys.sealing import seal, unseal
from appliance.model.webhooks import SealedSecret, Webhook
from appliance.outside import Outside

SECRET_BYTES = 32
HINT = 4  # characters
OPENED = 2_000  # secrets held ready in memory


@dataclass(slots=True)
class WebhookSecrets:
    """The secrets of all webhooks; `key` is the installation's."""

    key: bytes = field(repr=False)
    outside: Outside
    _sealing_key: bytes = field(init=False, repr=False)
    _opened: dict[bytes, bytes] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Derive what seals."""
        self._sealing_key = _sealing_key(self.key)

    def fresh(self, webhook_id: str) -> tuple[str, SealedSecret]:
        """A new secret for a webhook: to be shown, and to be stored."""
        secret = "whsec_" + pybase64.urlsafe_b64encode(self.outside.token_bytes(SECRET_BYTES)).decode().rstrip("=")
        return secret, SealedSecret(seal(self._sealing_key, secret.encode(), _context(webhook_id)), secret[-HINT:])

    def open(self, webhook: Webhook) -> bytes:
        """A webhook's secret; raises SealBroken when it cannot be read."""
        if (secret := self._opened.get(webhook.secret)) is None:
            secret = unseal(self._sealing_key, webhook.secret, _context(webhook.id))
            if len(self._opened) >= OPENED:
                self._opened.clear()
            self._opened[webhook.secret] = secret
        return secret


def open_sealed(key: bytes, webhook_id: str, sealed: bytes) -> bytes:
    """A secret out of its seal; raises SealBroken when the installation's key is another."""
    return unseal(_sealing_key(key), sealed, _context(webhook_id))


def _sealing_key(key: bytes) -> bytes:
    return derive(key, "webhook secrets")


def _context(webhook_id: str) -> bytes:
    """What a sealed secret belongs to, so that one cannot be put in the place of another."""
    return f"webhooks\0{webhook_id}\0secret".encode()
