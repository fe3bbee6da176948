"""Secrets of people and webhooks: passwords, TOTP codes (RFC 6238), recovery codes, and the secrets that sign webhooks.

`PasswordHasher` hashes on a fixed number of threads, shared fairly between clients. A TOTP code is accepted one step
early or late, because clocks differ; the store makes sure that each works once. Secrets are stored sealed, and shown
once.
"""

import base64
import hmac
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar
from urllib.parse import quote, urlencode
from weakref import WeakValueDictionary

import pybase64
import trio
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.twofactor.hotp import HOTP

from appliance.concurrency.ttl_cache import TtlCache
from appliance.environment import Environment
from appliance.errors import Code, Refused, invalid
from appliance.keys.keyfile import derive, seal, unseal
from appliance.model.webhooks import SealedSecret, Webhook
from appliance.times import SECOND

T = TypeVar("T")

# OWASP's recommendation, 34 ms here; memory in KiB.
ARGON2: Any = {"length": 32, "iterations": 2, "lanes": 1, "memory_cost": 19 * 1024}
SALT_BYTES = 16
MIN_PASSWORD_CHARACTERS = 8  # for new passwords (NIST SP 800-63B 5.1.1.1)
MAX_PASSWORD_BYTES = 1_024  # limits the work of one hash

HASH_THREADS = 2  # each hash takes a core and 19 MiB
HASHES_WAITING = 100  # waiting hashes, 34 ms each
HASHES_WAITING_PER_CLIENT = 10  # per client


def check_new(password: str, name: str = "password") -> str:
    if len(password) < MIN_PASSWORD_CHARACTERS:
        raise invalid(name, f"must have at least {MIN_PASSWORD_CHARACTERS} characters")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise invalid(name, f"must have at most {MAX_PASSWORD_BYTES} bytes")
    return password


def hash_password(password: str) -> str:
    """The PHC string to store. Takes tens of milliseconds: call it on a thread."""
    return Argon2id(salt=os.urandom(SALT_BYTES), **ARGON2).derive_phc_encoded(password.encode())


def unmatched_hash() -> str:
    """A PHC string that no password matches, in the time of any other. It is random, so it costs no hashing."""
    salt, value = (base64.b64encode(os.urandom(size)).rstrip(b"=").decode() for size in (SALT_BYTES, ARGON2["length"]))
    settings = f"m={ARGON2['memory_cost']},t={ARGON2['iterations']},p={ARGON2['lanes']}"
    return f"$argon2id$v=19${settings}${salt}${value}"


def password_matches(password: str, stored: str) -> bool:
    try:
        Argon2id.verify_phc_encoded(password.encode(), stored)
    except InvalidKey:
        return False
    return True


@dataclass(slots=True)
class PasswordHasher:
    """Hashes on a few threads. Each client may have only a few waiting hashes, so a flood delays others little."""

    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(HASH_THREADS))
    _shares: WeakValueDictionary[str, trio.CapacityLimiter] = field(default_factory=WeakValueDictionary)
    _waiting: int = 0

    async def matches(self, password: str, stored: str, share: str) -> bool:
        return await self._in_turn(share, lambda: password_matches(password, stored))

    async def hashed(self, password: str, share: str) -> str:
        return await self._in_turn(share, lambda: hash_password(password))

    async def _in_turn(self, share: str, work: Callable[[], T]) -> T:
        own = self._shares.setdefault(share, trio.CapacityLimiter(HASH_THREADS))
        if self._waiting >= HASHES_WAITING or own.statistics().tasks_waiting >= HASHES_WAITING_PER_CLIENT:
            raise Refused(Code.TEMPORARY_FAILURE, "Too many logins at once. Retry in a few seconds.", retry_after=5)
        self._waiting += 1
        try:
            async with own:
                return await trio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._waiting -= 1


# ---- two-factor codes

TOTP_PURPOSE = "second factors"  # purpose of the sealing key
TOTP_SECRET_BYTES = 20  # RFC 4226 4, R6
STEP = 30 * SECOND
CODE_DIGITS = 6
STEPS_AROUND = 1  # RFC 6238 5.2
RECOVERY_CODES = 10
RECOVERY_BYTES = 10  # 80 random bits, so a plain SHA-256 is safe to store


def code_of(secret: bytes, step: int, digits: int = CODE_DIGITS) -> str:
    return HOTP(secret, digits, SHA1()).generate(step).decode()  # noqa: S303 - RFC 6238, as authenticators expect it


def step_of(secret: bytes, code: str, now: int) -> int | None:
    """The step of a code, if it is the current step or adjacent to it; the latest match."""
    current, matched = now // STEP, None
    for step in range(current - STEPS_AROUND, current + STEPS_AROUND + 1):
        if hmac.compare_digest(code_of(secret, step).encode(), code.encode()):
            matched = step
    return matched


def plain_code(text: str) -> str:
    return "".join(text.split()).replace("-", "").lower()


def is_totp_code(code: str) -> bool:
    return len(code) == CODE_DIGITS and code.isascii() and code.isdecimal()


def key_uri(secret: str, issuer: str, user: str) -> str:
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
    key: bytes = field(repr=False)
    env: Environment

    def fresh(self, user_id: str) -> tuple[str, bytes]:
        """A new secret: as text to show, and sealed to store."""
        secret = self.env.token_bytes(TOTP_SECRET_BYTES)
        sealed = seal(derive(self.key, TOTP_PURPOSE), secret, _context("second_factors", user_id))
        return base64.b32encode(secret).decode(), sealed

    def step_of(self, user_id: str, sealed: bytes, code: str) -> int | None:
        return step_of(open_totp_secret(self.key, user_id, sealed), code, self.env.now())

    def recovery_codes(self) -> list[str]:
        made = []
        for _ in range(RECOVERY_CODES):
            text = base64.b32encode(self.env.token_bytes(RECOVERY_BYTES)).decode().lower()
            made.append("-".join(text[at : at + 4] for at in range(0, len(text), 4)))
        return made


def open_totp_secret(key: bytes, user_id: str, sealed: bytes) -> bytes:
    return unseal(derive(key, TOTP_PURPOSE), sealed, _context("second_factors", user_id))


# ---- webhook secrets

WEBHOOK_PURPOSE = "webhook secrets"  # purpose of the sealing key
WEBHOOK_SECRET_BYTES = 32
HINT_CHARACTERS = 4
OPEN_SECRETS = 2_000  # unsealed secrets in memory


@dataclass(slots=True)
class WebhookSecrets:
    key: bytes = field(repr=False)
    env: Environment
    _opened: TtlCache[bytes, bytes] = field(
        default_factory=lambda: TtlCache(OPEN_SECRETS, inf, time.monotonic), repr=False
    )

    def fresh(self, webhook_id: str) -> tuple[str, SealedSecret]:
        """A new secret: as text to show, and sealed to store."""
        secret = f"whsec_{pybase64.b64encode(self.env.token_bytes(WEBHOOK_SECRET_BYTES)).decode()}"
        sealed = seal(derive(self.key, WEBHOOK_PURPOSE), secret.encode(), _context("webhooks", webhook_id))
        return secret, SealedSecret(sealed, secret[-HINT_CHARACTERS:])

    def open(self, webhook: Webhook) -> bytes:
        if (secret := self._opened.get(webhook.secret)) is None:
            secret = open_webhook_secret(self.key, webhook.id, webhook.secret)
            self._opened.put(webhook.secret, secret)
        return secret


def open_webhook_secret(key: bytes, webhook_id: str, sealed: bytes) -> bytes:
    return unseal(derive(key, WEBHOOK_PURPOSE), sealed, _context("webhooks", webhook_id))


def _context(table: str, row_id: str) -> bytes:
    """Bind a sealed secret to its row, so that it cannot be moved."""
    return f"{table}\0{row_id}\0secret".encode()
