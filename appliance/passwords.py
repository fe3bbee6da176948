"""In charge of users' passwords: Argon2id, so that a stolen database does not give them away."""

import os

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

MEMORY = 19 * 1024  # KiB, with two passes and one lane: OWASP's recommendation, 34 ms here
PASSES = 2
LANES = 1
LENGTH = 32
MAX_BYTES = 1_024  # of a password: nobody types more, and hashing a megabyte would be work for free


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
