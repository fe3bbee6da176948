"""In charge of what AUTH PLAIN and AUTH LOGIN carry: a username and a password out of base64 (RFC 4616). PURE."""

import binascii
from dataclasses import dataclass

import pybase64

from appliance.store.access import sha256


@dataclass(frozen=True, slots=True)
class Login:
    """Who somebody says to be. Of the password only its SHA-256 is kept, which is also all that the store knows."""

    username: str
    password_sha256: bytes


def decoded(text: str) -> str | None:
    """What a client has put into base64; None when that is not what it did. `=` is an empty answer (RFC 4954 4)."""
    if text == "=":
        return ""
    try:
        return pybase64.b64decode(text.encode("ascii"), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None


def plain(text: str) -> Login | None:
    """`identity NUL username NUL password`; acting for somebody else is nothing we know."""
    parts = text.split("\0")
    if len(parts) != 3 or parts[0] not in ("", parts[1]) or not parts[1]:
        return None
    return Login(parts[1], sha256(parts[2]))


def pair(username: str, password: str) -> Login:
    """What LOGIN asked for one by one."""
    return Login(username, sha256(password))
