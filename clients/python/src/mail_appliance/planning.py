"""What to send, and what to do after each outcome: the rules of the library, shared by the clients of both kinds. Pure:
no I/O, no clock, no randomness; the clients bring them.

A call is a state machine: the client sends `request`, tells `after` what came of it, and does what that says: `Pause`
and send the same request again, `Return` or `Raise`. Every machine ends: `Call` after its retries, `Waiting` when its
time is over.
"""

import json
import platform
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

from mail_appliance import models
from mail_appliance.configuration import Configuration
from mail_appliance.encoding import encode_batch, encode_message
from mail_appliance.errors import (
    BY_CODE,
    ApiError,
    ConfigurationError,
    ConnectionFailed,
    NotFound,
    NotSupported,
    WaitTimeout,
)
from mail_appliance.models import BatchResult, Email, Message, SendResult

__version__ = "1.2.0"

USER_AGENT: Final = f"mail-appliance-python/{__version__} python/{platform.python_version()}"
WAIT_TIMEOUT: Final = 60.0  # seconds
BATCH_SINCE: Final = "0.7"  # version of the server that added batches, `cancel` and `reschedule`
ANSWER_LIMIT: Final = 16 * 1024 * 1024  # bytes of an answer that are read

_LONGEST_RETRY_AFTER = 30.0  # seconds; what is longer is for the caller to decide
_RETRY_AFTER_JITTER = 0.1  # of the time asked for, added so that clients do not all come back at once
_BACKOFF, _LONGEST_BACKOFF = 0.5, 8.0  # seconds
_POLL_PAUSE, _POLL_GROWTH, _LONGEST_POLL_PAUSE = 0.5, 1.5, 10.0
_LAST_POLL_TIMEOUT = 1.0  # seconds that a poll has at least, also when the time of `wait` is all but over
_RETRIED_STATUSES = frozenset({429, 503})
_SHOWN = 200  # characters of an answer that is not the appliance's

_KEY = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")
_SECONDS = re.compile(r"[0-9]{1,15}")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
    return _keyed_request(configuration, "/emails", key, lambda: encode_message(fields))


def batch_request(configuration: Configuration, emails: Iterable[Email], on_error: str | None, key: str) -> Request:
    """`POST /emails/batch`."""
    return _keyed_request(configuration, "/emails/batch", key, lambda: encode_batch(emails, on_error))


def get_request(configuration: Configuration, message_id: str) -> Request:
    """`GET /emails/{id}`."""
    return Request("GET", _path(configuration, message_id), _headers(configuration))


def reschedule_request(configuration: Configuration, message_id: str, scheduled_at: datetime | str) -> Request:
    """The request that moves a scheduled message."""
    try:
        body = encode_message({"scheduled_at": scheduled_at})
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(str(cause)) from cause
    headers = _headers(configuration) | {"Content-Type": "application/json"}
    return Request("PATCH", _path(configuration, message_id), headers, body)


def _keyed_request(configuration: Configuration, path: str, key: str, encode: Callable[[], bytes]) -> Request:
    """A POST with an idempotency key; what cannot be written is a ConfigurationError that has the key."""
    if not _KEY.fullmatch(key):
        reason = "must be 1 to 255 printable ASCII characters without a space at either end"
        raise ConfigurationError(f"idempotency_key {reason}", idempotency_key=key)
    try:
        body = encode()
    except (TypeError, ValueError, RecursionError) as cause:
        raise ConfigurationError(f"the message cannot be written as JSON: {cause}", idempotency_key=key) from cause
    headers = _headers(configuration) | {"Content-Type": "application/json", "Idempotency-Key": key}
    return Request("POST", f"{configuration.path}{path}", headers, body)


def _headers(configuration: Configuration) -> dict[str, str]:
    return {"Authorization": configuration.authorization, "Accept": "application/json", "User-Agent": USER_AGENT}


def _path(configuration: Configuration, message_id: str) -> str:
    if not message_id:
        raise ConfigurationError("the id of the message is empty")
    return f"{configuration.path}/emails/{quote(message_id, safe='')}"


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
        read: Callable[[dict[str, Any], Answer], T | None],
        *,
        configuration: Configuration,
        idempotency_key: str | None = None,
        missing: Container[int] = (),
    ) -> None:
        """`read` makes the result of a successful answer and its JSON object; None if it is not one.

        `missing` has the statuses by which a server older than this call says that it has no such route.
        """
        self.request = request
        self._read = read
        self._configuration = configuration
        self._key = idempotency_key
        self._missing = missing
        self._retries = 0  # made so far

    def timeout(self, now: float) -> float:
        """The seconds that the next attempt has; `now` is monotonic time."""
        return self._configuration.timeout

    def after(self, outcome: Outcome, moment: Moment) -> Pause | Return[T] | Raise:
        """What follows an attempt."""
        retry_after: float | None = None
        if isinstance(outcome, Answer):
            content = _json_object(outcome.body)
            if 200 <= outcome.status < 300 and content is not None:
                result = self._read(content, outcome)
                if result is not None:
                    return Return(result)
            error = _api_error(outcome, content, self._key, moment.unix)
            if error.code is not None and error.status in self._missing:
                return Raise(_not_supported(error, f"{self.request.method} {self.request.target}"))
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
        return _message_call(self.request, self._configuration)


class Cancelling:
    """Cancel a message. An older server answers 404, as every server does for an unknown id.

    A GET of the same path then tells them apart: 405 only where the path has a route.
    """

    def __init__(self, message_id: str, *, configuration: Configuration) -> None:
        """The message need not be scheduled: `cancel` stops what is still queued."""
        path, headers = f"{_path(configuration, message_id)}/cancel", _headers(configuration)
        self.request = Request("POST", path, headers)
        self._configuration = configuration
        self._call = _message_call(self.request, configuration)
        self._refusal: NotFound | None = None

    def timeout(self, now: float) -> float:
        """The seconds that the next attempt has; `now` is monotonic time."""
        return self._configuration.timeout

    def after(self, outcome: Outcome, moment: Moment) -> Pause | Return[Message] | Raise:
        """What follows an attempt."""
        step = self._call.after(outcome, moment)
        if not isinstance(step, Raise) or not isinstance(step.error, ApiError):
            return step
        if self._refusal is None and isinstance(step.error, NotFound):
            self._refusal = step.error
            self.request = Request("GET", self.request.target, self.request.headers)
            self._call = _message_call(self.request, self._configuration)
            return Pause(0.0)
        if self._refusal is not None and step.error.status == 405:
            return Raise(self._refusal)
        if self._refusal is not None and isinstance(step.error, NotFound):
            return Raise(_not_supported(step.error, f"POST {self.request.target}"))
        return step


def send_call(configuration: Configuration, fields: Mapping[str, Any], key: str) -> Call[SendResult]:
    """The call that sends a message."""

    def read(content: dict[str, Any], answer: Answer) -> SendResult | None:
        return models.send_result(content, idempotency_key=key, replayed=_is_replayed(answer))

    return Call(send_request(configuration, fields, key), read, configuration=configuration, idempotency_key=key)


def batch_call(
    configuration: Configuration, emails: Iterable[Email], on_error: str | None, key: str
) -> Call[BatchResult]:
    """The call that sends a batch."""

    def read(content: dict[str, Any], answer: Answer) -> BatchResult | None:
        return models.batch_result(content, idempotency_key=key, replayed=_is_replayed(answer))

    request = batch_request(configuration, emails, on_error, key)
    return Call(request, read, configuration=configuration, idempotency_key=key, missing=(404, 405))


def get_call(configuration: Configuration, message_id: str) -> Call[Message]:
    """The call that reads a message."""
    return _message_call(get_request(configuration, message_id), configuration)


def reschedule_call(configuration: Configuration, message_id: str, scheduled_at: datetime | str) -> Call[Message]:
    """The call that moves a scheduled message."""
    return _message_call(reschedule_request(configuration, message_id, scheduled_at), configuration, missing=(405,))


def _message_call(request: Request, configuration: Configuration, missing: Container[int] = ()) -> Call[Message]:
    return Call(request, lambda content, _: models.message(content), configuration=configuration, missing=missing)


# ---- answers


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _is_replayed(answer: Answer) -> bool:
    return answer.headers.get("idempotent-replayed", "").lower() == "true"


def _not_supported(error: ApiError, route: str) -> NotSupported:
    return NotSupported(
        f"the server does not have {route}: it is older than version {BATCH_SINCE}. Upgrade the server.",
        status=error.status,
        code=error.code,
        request_id=error.request_id,
        idempotency_key=error.idempotency_key,
    )


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
