"""In charge of writing commands: no byte of an address, a name or a secret can end a line or begin another command."""

import re
from base64 import b64encode
from dataclasses import dataclass, field

# Beyond threats.md 6 (CR, LF, NUL, space, angle brackets), every other control character and line separator.
_SAFE = re.compile(r"[^\x00-\x20\x7f-\x9f<>\u2028\u2029]*")
_DOMAIN = re.compile(r"[A-Za-z0-9.:_\[\]-]+")  # a host name or an address literal, RFC 5321 4.1.3


class UnsafeArgument(ValueError):
    """Something that must never become part of a command; whoever let it come this far has a bug."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to log in at a relay."""

    username: str
    password: str = field(repr=False)


def mail(sender: str, parameters: str = "") -> str:
    """RFC 5321 4.1.1.2; the empty sender is the null reverse-path."""
    return f"MAIL FROM:<{_checked(sender)}>{parameters}"


def rcpt(recipient: str) -> str:
    """RFC 5321 4.1.1.3."""
    if not recipient:
        raise UnsafeArgument("an empty recipient")
    return f"RCPT TO:<{_checked(recipient)}>"


def hello(verb: str, name: str) -> str:
    """EHLO or HELO (RFC 5321 4.1.1.1) with our own name."""
    if not _DOMAIN.fullmatch(name):
        raise UnsafeArgument(f"not a name to greet with: {name!r}")
    return f"{verb} {name}"


def plain_secret(credentials: Credentials) -> str:
    """The one message of AUTH PLAIN, RFC 4616 2."""
    if "\0" in credentials.username + credentials.password:
        raise UnsafeArgument("a NUL in the relay's credentials")
    return base64(f"\0{credentials.username}\0{credentials.password}")


def base64(text: str) -> str:
    """What AUTH sends (RFC 4954 4)."""
    return b64encode(text.encode()).decode("ascii")


def _checked(address: str) -> str:
    if not _SAFE.fullmatch(address):
        raise UnsafeArgument(f"not an address to write into a command: {address!r}")
    return address
