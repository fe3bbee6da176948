"""Passwords: the rules for new ones, and Argon2id hashes.

Requests hash through `PasswordHasher`: a fixed number of threads, shared fairly between clients.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import trio
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from appliance.errors import Code, Refused, invalid

T = TypeVar("T")

# OWASP's recommendation, 34 ms here; memory in KiB.
ARGON2: Any = {"length": 32, "iterations": 2, "lanes": 1, "memory_cost": 19 * 1024}
MIN_PASSWORD_CHARACTERS = 8  # for new passwords (NIST SP 800-63B 5.1.1.1)
MAX_PASSWORD_BYTES = 1_024  # limits the work of one hash

HASH_THREADS = 2  # each hash takes a core and 19 MiB
HASHES_WAITING = 100  # waiting hashes, 34 ms each
HASHES_WAITING_PER_CLIENT = 10  # per client


def check_new(password: str, name: str = "password") -> str:
    """Check a new password. The API and the command line share this rule."""
    if len(password) < MIN_PASSWORD_CHARACTERS:
        raise invalid(name, f"must have at least {MIN_PASSWORD_CHARACTERS} characters")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise invalid(name, f"must have at most {MAX_PASSWORD_BYTES} bytes")
    return password


def hash_password(password: str) -> str:
    """The PHC string to store. Takes tens of milliseconds: call it on a thread."""
    return Argon2id(salt=os.urandom(16), **ARGON2).derive_phc_encoded(password.encode())


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
        """Whether the password matches; `share` identifies the client."""
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
