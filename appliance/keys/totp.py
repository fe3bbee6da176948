"""Time-based one-time passwords (RFC 6238: SHA-1, 6 digits, 30 seconds), their sealed secrets, and recovery codes.

A code is accepted one step early or late, because clocks differ. The store makes sure that each works once.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from appliance.environment import Environment
from appliance.keys.keyfile import derive, seal, unseal
from appliance.times import SECOND

TOTP_PURPOSE = "second factors"  # purpose of the sealing key
TOTP_SECRET_BYTES = 20  # RFC 4226 4, R6
STEP = 30 * SECOND
CODE_DIGITS = 6
STEPS_AROUND = 1  # RFC 6238 5.2
RECOVERY_CODES = 10
RECOVERY_BYTES = 10  # 80 random bits, so a plain SHA-256 is safe to store


def code_of(secret: bytes, step: int, digits: int = CODE_DIGITS) -> str:
    """The code of a step (RFC 4226 5.3)."""
    digest = hmac.digest(secret, step.to_bytes(8, "big"), hashlib.sha1)
    offset = digest[-1] & 15
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFF_FFFF
    return f"{number % 10**digits:0{digits}}"


def step_of(secret: bytes, code: str, now: int) -> int | None:
    """The step of a code, if it is the current step or adjacent to it; the latest match."""
    current, matched = now // STEP, None
    for step in range(current - STEPS_AROUND, current + STEPS_AROUND + 1):
        if hmac.compare_digest(code_of(secret, step).encode(), code.encode()):
            matched = step
    return matched


def plain_code(text: str) -> str:
    """A code or recovery code without grouping, in canonical case."""
    return "".join(text.split()).replace("-", "").lower()


def is_totp_code(code: str) -> bool:
    """Whether a plain code looks like a TOTP code. Otherwise it may be a recovery code."""
    return len(code) == CODE_DIGITS and code.isascii() and code.isdecimal()


def key_uri(secret: str, issuer: str, user: str) -> str:
    """The URI that authenticator apps read from a QR code."""
    label = f"{quote(issuer, safe='')}:{quote(user, safe='@')}"
    parameters = {
        "secret": secret,
        "issuer": issuer,
        "algorithm": "SHA1",
        "digits": CODE_DIGITS,
        "period": STEP // SECOND,
    }
    return f"otpauth://totp/{label}?{urlencode(parameters, quote_via=quote)}"


@dataclass(frozen=True, slots=True)
class TotpSecrets:
    """The secrets of all users. `key` is the installation's key."""

    key: bytes = field(repr=False)
    env: Environment

    def fresh(self, user_id: str) -> tuple[str, bytes]:
        """A new secret: as text to show, and sealed to store."""
        secret = self.env.token_bytes(TOTP_SECRET_BYTES)
        sealed = seal(derive(self.key, TOTP_PURPOSE), secret, _context(user_id))
        return base64.b32encode(secret).decode(), sealed

    def step_of(self, user_id: str, sealed: bytes, code: str) -> int | None:
        """Unseal the secret and match the code. Raises UnsealError."""
        return step_of(open_sealed(self.key, user_id, sealed), code, self.env.now())

    def recovery_codes(self) -> list[str]:
        """New recovery codes, as shown to the user."""
        made = []
        for _ in range(RECOVERY_CODES):
            text = base64.b32encode(self.env.token_bytes(RECOVERY_BYTES)).decode().lower()
            made.append("-".join(text[at : at + 4] for at in range(0, len(text), 4)))
        return made


def open_sealed(key: bytes, user_id: str, sealed: bytes) -> bytes:
    """Unseal a secret. Raises UnsealError with another installation key."""
    return unseal(derive(key, TOTP_PURPOSE), sealed, _context(user_id))


def _context(user_id: str) -> bytes:
    """Binds a sealed secret to its row, so that it cannot be moved."""
    return f"second_factors\0{user_id}\0secret".encode()
