"""In charge of SHA-256 over what is short, without letting go of the interpreter lock. PURE.

`hashlib` lets other threads run while it hashes more than 2,047 bytes at once. For a message of a few KiB that is a
microsecond or two, but where several threads are at work the lock is gone then, and comes back much later.
"""

import hashlib
from typing import Protocol

PIECE = 2_047
SHORT = 16 * 1_024  # bytes; more had better be hashed while others run


class Hasher(Protocol):
    """What `hashlib` makes."""

    def update(self, data: bytes, /) -> None:
        """Go on with these bytes."""


def feed(hasher: Hasher, data: bytes) -> None:
    """Go on with these bytes, in pieces if they are few."""
    if PIECE < len(data) <= SHORT:
        for start in range(0, len(data), PIECE):
            hasher.update(data[start : start + PIECE])
    else:
        hasher.update(data)


def sha256(data: bytes) -> bytes:
    """The digest of these bytes."""
    hasher = hashlib.sha256()
    feed(hasher, data)
    return hasher.digest()
