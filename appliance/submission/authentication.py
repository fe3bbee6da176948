"""AUTH PLAIN and AUTH LOGIN (RFC 4954, 4616) as exchanges of challenges and responses. No I/O.

An exchange ends in a `Login` or raises `Rejected`. Whether the login is right is for the backend to say; of a password
only its SHA-256 leaves this module, which is also all that the store has.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import pybase64

from appliance.store.access import sha256
from appliance.submission import replies
from appliance.submission.replies import Rejected


@dataclass(frozen=True, slots=True)
class Login:
    username: str
    password_sha256: bytes


AuthExchange = Generator[bytes, str, Login]  # yields challenges, is sent decoded responses


def begin(argument: str) -> tuple[AuthExchange, bytes | Login]:
    """The exchange that an AUTH command begins, and its first challenge, or what the initial response leads to."""
    name, _, response = argument.partition(" ")
    if not name or " " in response:
        raise Rejected(replies.SYNTAX_AUTH)
    if name.upper() not in _MECHANISMS:
        raise Rejected(replies.MECHANISM_UNKNOWN)
    exchange = _MECHANISMS[name.upper()]()
    challenge = next(exchange)
    return exchange, respond(exchange, response) if response else challenge


def respond(exchange: AuthExchange, response: str) -> bytes | Login:
    """The next challenge, or the login, after a response as it came."""
    if response == "*":
        raise Rejected(replies.LOGIN_ABORTED)
    try:
        # A single `=` is an empty response, RFC 4954 4.
        encoded = b"" if response == "=" else response.encode("ascii")
        return exchange.send(pybase64.b64decode(encoded, validate=True).decode("utf-8"))
    except ValueError:  # binascii.Error is one
        raise Rejected(replies.LOGIN_UNREADABLE) from None
    except StopIteration as ended:
        login: Login = ended.value
        return login


def _plain() -> AuthExchange:
    # `authzid NUL username NUL password`; acting for another user is not offered.
    parts = (yield replies.ASK_PLAIN).split("\0")
    if len(parts) != 3 or parts[0] not in ("", parts[1]) or not parts[1]:
        raise Rejected(replies.LOGIN_NO_PAIR)
    return Login(parts[1], sha256(parts[2]))


def _login() -> AuthExchange:
    username = yield replies.ASK_USERNAME
    password = yield replies.ASK_PASSWORD
    return Login(username, sha256(password))


_MECHANISMS: dict[str, Callable[[], AuthExchange]] = {"PLAIN": _plain, "LOGIN": _login}
