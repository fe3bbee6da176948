"""Users' passwords: what a new one must be, and Argon2id, so that a stolen database does not give them away.

Hashing for requests goes through `Hashing`: a fixed number of threads, shared fairly between the clients that wait.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakValueDictionary

import trio
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from appliance.errors import Code, Refused, invalid

T = TypeVar("T")

MEMORY = 19 * 1024  # KiB, with two passes and one lane: OWASP's recommendation, 34 ms here
PASSES = 2
LANES = 1
LENGTH = 32
MIN_CHARACTERS = 8  # of a new password (NIST SP 800-63B 5.1.1.1)
MAX_BYTES = 1_024  # of a password: nobody types more, and hashing a megabyte would be work for free

THREADS = 2  # Argon2id takes a core and 19 MiB each
WAITING = 100  # hashes that may wait, 34 ms each
WAITING_OF_SHARE = 10  # of one client


def check_new(password: str, name: str = "password") -> str:
    """A password somebody chooses, if it may be one: the one rule for the API and the command line."""
    if len(password) < MIN_CHARACTERS:
        raise invalid(name, f"must have at least {MIN_CHARACTERS} characters")
    if len(password.encode()) > MAX_BYTES:
        raise invalid(name, f"must have at most {MAX_BYTES} bytes")
    return password


def hash_password(password: str) -> str:
    """The PHC string to store. Takes tens of milliseconds: call it in a thread."""
    kdf = Argon2id(salt=os.urandom(16), length=LENGTH, iterations=PASSES, lanes=LANES, memory_cost=MEMORY)
    return kdf.derive_phc_encoded(password.encode())


def password_matches(password: str, stored: str) -> bool:
    """Whether this is the password. Takes as long as hashing one."""
    try:
        Argon2id.verify_phc_encoded(password.encode(), stored)
    except InvalidKey:
        return False
    return True


@dataclass(slots=True)
class Hashing:
    """Hashes in a few threads; each client has only a few in the queue for them, so a flood delays others little."""

    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS))
    _shares: WeakValueDictionary[str, trio.CapacityLimiter] = field(default_factory=WeakValueDictionary)
    _waiting: int = 0

    async def matches(self, password: str, stored: str, share: str) -> bool:
        """Whether this is the password; `share` names the client whose turn it takes."""
        return await self._in_turn(share, lambda: password_matches(password, stored))

    async def hashed(self, password: str, share: str) -> str:
        """The PHC string to store."""
        return await self._in_turn(share, lambda: hash_password(password))

    async def _in_turn(self, share: str, work: Callable[[], T]) -> T:
        own = self._shares.setdefault(share, trio.CapacityLimiter(THREADS))
        if self._waiting >= WAITING or own.statistics().tasks_waiting >= WAITING_OF_SHARE:
            raise Refused(
                Code.TEMPORARY_FAILURE, "Too many logins wait to be checked. Retry in a few seconds.", retry_after=5
            )
        self._waiting += 1
        try:
            async with own:
                return await trio.to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._waiting -= 1
