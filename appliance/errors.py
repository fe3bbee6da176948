"""In charge of refusals: one table from error code to HTTP status and SMTP reply."""

import os
import socket
import ssl
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Every `code` an error object may carry; the list is closed by the interface."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    RATE_LIMITED = "rate_limited"
    WARMUP_LIMITED = "warmup_limited"
    ACCOUNT_SUSPENDED = "account_suspended"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    SERVICE_UNAVAILABLE = "service_unavailable"
    TEMPORARY_FAILURE = "temporary_failure"
    INTERNAL_ERROR = "internal_error"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"


@dataclass(frozen=True, slots=True)
class Answer:
    """How one code is told to an HTTP client and to an SMTP client."""

    status: int
    smtp: str


ANSWERS: dict[Code, Answer] = {
    Code.INVALID_REQUEST: Answer(400, "554 5.6.0"),
    Code.UNAUTHORIZED: Answer(401, "535 5.7.8"),
    Code.FORBIDDEN: Answer(403, "550 5.7.1"),
    Code.NOT_FOUND: Answer(404, "554 5.6.0"),
    Code.CONFLICT: Answer(409, "554 5.6.0"),
    Code.INSUFFICIENT_CREDITS: Answer(402, "452 4.7.1"),
    Code.RATE_LIMITED: Answer(429, "452 4.7.1"),
    Code.WARMUP_LIMITED: Answer(429, "452 4.7.1"),
    Code.ACCOUNT_SUSPENDED: Answer(403, "550 5.7.1"),
    Code.PAYLOAD_TOO_LARGE: Answer(413, "552 5.3.4"),
    Code.SERVICE_UNAVAILABLE: Answer(503, "451 4.3.0"),
    Code.TEMPORARY_FAILURE: Answer(503, "451 4.3.0"),
    Code.INTERNAL_ERROR: Answer(500, "451 4.3.0"),
    Code.IDEMPOTENCY_CONFLICT: Answer(409, "554 5.6.0"),
    Code.IDEMPOTENCY_IN_PROGRESS: Answer(409, "451 4.3.0"),
}


class Refused(Exception):
    """A request we will not carry out: a code for programs, a sentence for people.

    The sentence goes to the client word for word, so it never holds a cause's own text; `raise … from cause` keeps
    that for the log.
    """

    def __init__(self, code: Code, text: str, *, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """The HTTP status of this refusal."""
        return ANSWERS[self.code].status


def invalid(field: str, reason: str) -> Refused:
    """A refusal of one field, in the form every 400 about a field has."""
    return Refused(Code.INVALID_REQUEST, f"{field}: {reason}")


def in_words(error: BaseException) -> str:
    """What went wrong, for an operator to read: the system's own words where there are some, never a repr."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
