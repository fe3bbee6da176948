"""In charge of the signature of a post: made here, and checked as a receiver should. PURE."""

import hmac
from hashlib import sha256

TOLERANCE = 300  # seconds that `t` may differ from the receiver's clock, by the interface


class Forged(Exception):
    """A post is not from whom it says, or not of now; the text says which."""


def signature_header(secret: bytes, seconds: int, body: bytes) -> str:
    """The value of Service-Signature for a body posted at this time."""
    return f"t={seconds},v1={_digest(secret, seconds, body)}"


def verify(secret: bytes, header: str, body: bytes, now: int, tolerance: int = TOLERANCE) -> None:
    """Raise Forged unless the header was made with this secret, for these very bytes, within the tolerance."""
    seconds, given = _read(header)
    if not hmac.compare_digest(_digest(secret, seconds, body).encode(), given.encode("utf-8", "replace")):
        raise Forged("the signature is not of this body and this secret")
    if abs(now - seconds) > tolerance:
        raise Forged(f"the signature was made {now - seconds} seconds ago, which is more than {tolerance} away")


def _digest(secret: bytes, seconds: int, body: bytes) -> str:
    return hmac.digest(secret, b"%d.%b" % (seconds, body), sha256).hex()


def _read(header: str) -> tuple[int, str]:
    time, _, digest = header.partition(",")
    digits = time.removeprefix("t=")
    if not (time.startswith("t=") and digest.startswith("v1=") and digits.isascii() and digits.isdecimal()):
        raise Forged("the header has another form than t=…,v1=…")
    if len(digits) > 12 or str(int(digits)) != digits:  # no clock shows that; and one time has one spelling
        raise Forged("the header has a time that cannot be")
    return int(digits), digest.removeprefix("v1=")
