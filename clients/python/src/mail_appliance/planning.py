"""What to send, and what to do after each outcome: the rules of the library, shared by the clients of both kinds. Pure:
no I/O, no clock, no randomness; the clients bring them.

A call is a state machine: the client sends `request`, tells `after` what came of it, and does what that says: `Pause`
and send the same request again, `Return` or `Raise`. Every machine ends: `Call` after its retries, `Waiting` when its
time is over.
"""

import base64
import json
import math
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

from mail_appliance import models
from mail_appliance.encoding import encode_message
from mail_appliance.errors import BY_CODE, ApiError, ConfigurationError, ConnectionFailed, WaitTimeout
from mail_appliance.models import Message, SendResult
from mail_appliance.proxies import Proxy, proxy_for

__version__ = "1.1.0"

USER_AGENT: Final = f"mail-appliance-python/{__version__} python/{platform.python_version()}"
RETRIES: Final = 3
CONNECT_TIMEOUT: Final = 5.0  # seconds
TIMEOUT: Final = 30.0  # seconds for one attempt, until its answer is read whole
WAIT_TIMEOUT: Final = 60.0  # seconds
ANSWER_LIMIT: Final = 16 * 1024 * 1024  # bytes of an answer that are read

_LONGEST_RETRY_AFTER = 30.0  # seconds; what is longer is for the caller to decide
_RETRY_AFTER_JITTER = 0.1  # of the time asked for, added so that clients do not all come back at once
_BACKOFF, _LONGEST_BACKOFF = 0.5, 8.0  # seconds
_POLL_PAUSE, _POLL_GROWTH, _LONGEST_POLL_PAUSE = 0.5, 1.5, 10.0
_LAST_POLL_TIMEOUT = 1.0  # seconds that a poll has at least, also when the time of `wait` is all but over
_RETRIED_STATUSES = frozenset({429, 503})
_SHOWN = 200  # characters of an answer that is not the appliance's

_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")
_VISIBLE = re.compile(r"[!-~]+")
_SECONDS = re.compile(r"[0-9]{1,15}")
_UNRESERVED_PATH = "/%:@!$&'()*+,;=~"  # RFC 3986 3.3, in addition to letters and digits

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# ---- configuration


@dataclass(frozen=True, slots=True)
class Configuration:
    """Where and how to send; every value is valid."""

    tls: bool
    host: str  # ASCII; an IPv6 address without brackets
    port: int
    path: str  # of the base URL, without a slash at its end
    authorization: str = field(repr=False)
    retries: int
    connect_timeout: float
    timeout: float
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme and authority."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def first_hop(self) -> tuple[str, int]:
        """Host and port that a transport connects to: the proxy's, if there is one."""
        return (self.proxy.host, self.proxy.port) if self.proxy else (self.host, self.port)


def configure(
    url: str | None,
    *,
    username: str | None,
    password: str | None,
    token: str | None,
    retries: int,
    connect_timeout: float,
    timeout: float,
    environment: Mapping[str, str],
) -> Configuration:
    """Check the arguments, and complete them from the environment. Explicit credentials win over all of its own."""
    url = url or environment.get("MAIL_APPLIANCE_URL")
    if not url:
        raise ConfigurationError("no URL: give url or set MAIL_APPLIANCE_URL")
    tls, host, port, path = _read_url(url)
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ConfigurationError(f"retries must be 0 or a positive integer, not {retries!r}")
    for name, seconds in (("connect_timeout", connect_timeout), ("timeout", timeout)):
        if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ConfigurationError(f"{name} must be a positive number of seconds, not {seconds!r}")
    return Configuration(
        tls=tls,
        host=host,
        port=port,
        path=path,
        authorization=_authorization(username, password, token, environment),
        retries=retries,
        connect_timeout=float(connect_timeout),
        timeout=float(timeout),
        proxy=proxy_for(host, port, tls=tls, environment=environment),
    )


def _read_url(url: str) -> tuple[bool, str, int, str]:
    """Whether by TLS, host, port and path."""
    shown = "the URL" if "@" in url else f"the URL {url!r}"  # it may have a password in it
    wrong = f"{shown} (url or MAIL_APPLIANCE_URL)"
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ConfigurationError(f"{wrong} has a space or a control character")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("ascii" if ":" in (parts.hostname or "") else "idna").decode("ascii")
        given_port = parts.port
    except ValueError as cause:
        raise ConfigurationError(f"{wrong} cannot be read: {cause}") from cause
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"{wrong} must begin with http:// or https://")
    if not host:
        raise ConfigurationError(f"{wrong} has no host")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigurationError(f"{wrong} may not have a user, a query or a fragment")
    tls = parts.scheme == "https"
    port = given_port if given_port is not None else 443 if tls else 80
    return tls, host, port, quote(parts.path.rstrip("/"), safe=_UNRESERVED_PATH)


def _authorization(
    username: str | None, password: str | None, token: str | None, environment: Mapping[str, str]
) -> str:
    if token and (username or password):
        pair = "a username or a password"
        raise ConfigurationError(f"both token and {pair} are given: credentials are either a token or a pair")
    if not (token or username or password):
        token = environment.get("MAIL_APPLIANCE_TOKEN")
    if token:
        if not _VISIBLE.fullmatch(token):
            raise ConfigurationError(
                "the token (token or MAIL_APPLIANCE_TOKEN) has characters other than visible ASCII"
            )
        return f"Bearer {token}"
    username = username or environment.get("MAIL_APPLIANCE_USERNAME")
    password = password or environment.get("MAIL_APPLIANCE_PASSWORD")
    if not username and not password:
        raise ConfigurationError(
            "no credentials: give username and password, or token, or set MAIL_APPLIANCE_USERNAME and "
            "MAIL_APPLIANCE_PASSWORD, or MAIL_APPLIANCE_TOKEN"
        )
    if not username:
        raise ConfigurationError("a password without a username: give username or set MAIL_APPLIANCE_USERNAME")
    if not password:
        raise ConfigurationError("a username without a password: give password or set MAIL_APPLIANCE_PASSWORD")
    if ":" in username:
        raise ConfigurationError("the username (username or MAIL_APPLIANCE_USERNAME) has a colon")  # RFC 7617 2
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode("ascii")


# ---- requests


@dataclass(frozen=True, slots=True)
class Request:
    """What a transport sends, to the host of the client. It brings Host and Content-Length itself."""

    method: str
    target: str  # path of the base URL and what follows
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or the first 16 MiB of it. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TransportError(Exception):
    """No whole answer came. The client tries again unless that cannot help (`retryable` is false)."""

    def __init__(self, reason: str, *, retryable: bool = True) -> None:
        """`reason` is for the caller to read."""
        super().__init__(reason)
        self.retryable = retryable


class Transport(Protocol):
    """What sends the requests of a `Client`: give another as `transport`, for tests or another HTTP library."""

    def send(self, request: Request, timeout: float) -> Answer:
        """Send it once and read the whole answer within so many seconds, or raise TransportError."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class AsyncTransport(Protocol):
    """The same for an `AsyncClient`."""

    async def send(self, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109 (a transport has its own way)
        """Send it once and read the whole answer within so many seconds, or raise TransportError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def send_request(configuration: Configuration, fields: Mapping[str, Any], key: str) -> Request:
    """`POST /emails` of a message's fields; those that are None are left out."""
    if not _KEY.fullmatch(key):
        reason = "must be 1 to 255 printable ASCII characters without a space at either end"
        raise ConfigurationError(f"idempotency_key {reason}", idempotency_key=key)
    try:
        body = encode_message(fields)
    except (TypeError, ValueError, RecursionError) as cause:
        raise ConfigurationError(f"the message cannot be written as JSON: {cause}", idempotency_key=key) from cause
    headers = {
        "Authorization": configuration.authorization,
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Idempotency-Key": key,
        "User-Agent": USER_AGENT,
    }
    return Request("POST", f"{configuration.path}/emails", headers, body)


def get_request(configuration: Configuration, message_id: str) -> Request:
    """`GET /emails/{id}`."""
    if not message_id:
        raise ConfigurationError("the id of the message is empty")
    headers = {
        "Authorization": configuration.authorization,
        "Accept": "application/json",
        "User-Agent": USER_AGENT,
    }
    return Request("GET", f"{configuration.path}/emails/{quote(message_id, safe='')}", headers)


# ---- steps


Outcome: TypeAlias = Answer | TransportError


class Moment(NamedTuple):
    """When an outcome was seen, and the random number of its pause."""

    unix: float  # seconds, for dates in answers
    monotonic: float  # seconds, for the time left
    chance: float  # from 0 to 1


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long, then send the request again."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Return(Generic[T_co]):
    """The call has succeeded."""

    result: T_co


@dataclass(frozen=True, slots=True)
class Raise:
    """The call has failed."""

    error: Exception


class Plan(Protocol[T_co]):
    """A state machine."""

    request: Request

    def timeout(self, now: float) -> float:
        """The seconds that the next attempt has; `now` is monotonic time."""
        ...

    def after(self, outcome: Outcome, moment: Moment) -> Pause | Return[T_co] | Raise:
        """What follows an attempt."""
        ...


class Call(Generic[T]):
    """One request and its retries."""

    def __init__(
        self,
        request: Request,
        read: Callable[[dict[str, Any], Answer], T],
        *,
        configuration: Configuration,
        idempotency_key: str | None = None,
    ) -> None:
        """`read` makes the result of a successful answer and its JSON object."""
        self.request = request
        self._read = read
        self._configuration = configuration
        self._key = idempotency_key
        self._retries = 0  # made so far

    def timeout(self, now: float) -> float:
        """The seconds that the next attempt has; `now` is monotonic time."""
        return self._configuration.timeout

    def after(self, outcome: Outcome, moment: Moment) -> Pause | Return[T] | Raise:
        """What follows an attempt."""
        retry_after: float | None = None
        if isinstance(outcome, Answer):
            content = _json_object(outcome.body)
            if 200 <= outcome.status < 300 and content is not None and isinstance(content.get("id"), str):
                return Return(self._read(content, outcome))
            error = _api_error(outcome, content, self._key, moment.unix)
            retryable = error.status in _RETRIED_STATUSES or (error.status, error.code) == (
                409,
                "idempotency_in_progress",
            )
            failure, retry_after = Raise(error), error.retry_after
        else:
            reason = f"no answer from {self._configuration.origin}: {outcome}"
            failure, retryable = Raise(ConnectionFailed(reason, idempotency_key=self._key)), outcome.retryable
        if not retryable or self._retries >= self._configuration.retries:
            return failure
        if retry_after is not None and retry_after > _LONGEST_RETRY_AFTER:
            return failure
        self._retries += 1
        if retry_after is not None:
            return Pause(retry_after * (1 + _RETRY_AFTER_JITTER * moment.chance))
        return Pause(moment.chance * min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(self._retries - 1, 10)))


class Waiting:
    """`GET /emails/{id}` again and again until the message is final, each poll with its own retries.

    No pause goes past the end, and no attempt by more than a second.
    """

    def __init__(self, message_id: str, *, configuration: Configuration, timeout: float, now: float) -> None:
        """`now` is monotonic time."""
        self.request = get_request(configuration, message_id)
        self._configuration = configuration
        self._end = now + timeout
        self._pause = _POLL_PAUSE
        self._poll = self._next_poll()
        self._id, self._seconds = message_id, timeout
        self._last: Message | None = None

    def timeout(self, now: float) -> float:
        """The seconds that the next attempt has; `now` is monotonic time."""
        return min(self._configuration.timeout, max(self._end - now, _LAST_POLL_TIMEOUT))

    def after(self, outcome: Outcome, moment: Moment) -> Pause | Return[Message] | Raise:
        """What follows an attempt."""
        left = self._end - moment.monotonic
        step = self._poll.after(outcome, moment)
        if isinstance(step, Return):
            self._last = step.result
            if self._last.is_final:
                return step
            step = Pause(min(self._pause, left))
            self._pause = min(self._pause * _POLL_GROWTH, _LONGEST_POLL_PAUSE)
            self._poll = self._next_poll()
        over = left <= 0 and isinstance(outcome, TransportError)  # an attempt that the end has cut short
        if over or (isinstance(step, Pause) and (left <= 0 or step.seconds > left)):
            status = self._last.status if self._last else "not known"
            reason = f"message {self._id} was not final after {self._seconds:g} s; its last status is {status}"
            return Raise(WaitTimeout(reason, last_message=self._last))
        return step

    def _next_poll(self) -> Call[Message]:
        return Call(self.request, lambda content, _: models.message(content), configuration=self._configuration)


def send_call(configuration: Configuration, fields: Mapping[str, Any], key: str) -> Call[SendResult]:
    """The call that sends a message."""

    def read(content: dict[str, Any], answer: Answer) -> SendResult:
        replayed = answer.headers.get("idempotent-replayed", "").lower() == "true"
        return models.send_result(content, idempotency_key=key, replayed=replayed)

    return Call(send_request(configuration, fields, key), read, configuration=configuration, idempotency_key=key)


def get_call(configuration: Configuration, message_id: str) -> Call[Message]:
    """The call that reads a message."""
    request = get_request(configuration, message_id)
    return Call(request, lambda content, _: models.message(content), configuration=configuration)


# ---- answers


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _api_error(answer: Answer, content: dict[str, Any] | None, key: str | None, now: float) -> ApiError:
    content = content or {}
    code, message, request_id = content.get("code"), content.get("error"), content.get("request_id")
    if not isinstance(code, str) or not isinstance(message, str):
        shown = " ".join(answer.body[: 4 * _SHOWN].decode("utf-8", "replace").split())[:_SHOWN]
        code, message = None, f"HTTP status {answer.status}: {shown}" if shown else f"HTTP status {answer.status}"
    return BY_CODE.get(code or "", ApiError)(
        message,
        status=answer.status,
        code=code,
        request_id=request_id if isinstance(request_id, str) else answer.headers.get("x-request-id"),
        retry_after=_retry_after(answer.headers.get("retry-after"), now),
        idempotency_key=key,
    )


def _retry_after(value: str | None, now: float) -> float | None:
    """Seconds from now; None when there is no such header or it cannot be read (RFC 9110 10.2.3)."""
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:  # the form of asctime, which is UTC as well
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
