"""The secrets that sign webhooks: generated here, stored sealed, shown to their owner once."""

import time
from dataclasses import dataclass, field
from math import inf

import pybase64

from appliance.concurrency.ttl_cache import TtlCache
from appliance.environment import Environment
from appliance.keys.keyfile import derive, seal, unseal
from appliance.model.webhooks import SealedSecret, Webhook

WEBHOOK_PURPOSE = "webhook secrets"  # purpose of the sealing key
WEBHOOK_SECRET_BYTES = 32
HINT_CHARACTERS = 4
OPEN_SECRETS = 2_000  # unsealed secrets in memory


@dataclass(slots=True)
class WebhookSecrets:
    """The secrets of all webhooks. `key` is the installation's key."""

    key: bytes = field(repr=False)
    env: Environment
    _opened: TtlCache[bytes, bytes] = field(
        default_factory=lambda: TtlCache(OPEN_SECRETS, inf, time.monotonic), repr=False
    )

    def fresh(self, webhook_id: str) -> tuple[str, SealedSecret]:
        """A new secret: as text to show, and sealed to store."""
        token = pybase64.urlsafe_b64encode(self.env.token_bytes(WEBHOOK_SECRET_BYTES)).decode()
        secret = f"whsec_{token.rstrip('=')}"
        sealed = seal(derive(self.key, WEBHOOK_PURPOSE), secret.encode(), _context(webhook_id))
        return secret, SealedSecret(sealed, secret[-HINT_CHARACTERS:])

    def open(self, webhook: Webhook) -> bytes:
        """A webhook's secret. Raises UnsealError."""
        if (secret := self._opened.get(webhook.secret)) is None:
            secret = open_sealed(self.key, webhook.id, webhook.secret)
            self._opened.put(webhook.secret, secret)
        return secret


def open_sealed(key: bytes, webhook_id: str, sealed: bytes) -> bytes:
    """Unseal a secret. Raises UnsealError with another installation key."""
    return unseal(derive(key, WEBHOOK_PURPOSE), sealed, _context(webhook_id))


def _context(webhook_id: str) -> bytes:
    """Binds a sealed secret to its row, so that it cannot be moved."""
    return f"webhooks\0{webhook_id}\0secret".encode()
