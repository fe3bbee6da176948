"""Errors that clients see: one table from error code to HTTP status and SMTP reply."""

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
class ErrorAnswer:
    """The HTTP status and the SMTP reply of one code."""

    status: int
    smtp: str


ERROR_ANSWERS: dict[Code, ErrorAnswer] = {
    Code.INVALID_REQUEST: ErrorAnswer(400, "554 5.6.0"),
    Code.UNAUTHORIZED: ErrorAnswer(401, "535 5.7.8"),
    Code.FORBIDDEN: ErrorAnswer(403, "550 5.7.1"),
    Code.NOT_FOUND: ErrorAnswer(404, "554 5.6.0"),
    Code.CONFLICT: ErrorAnswer(409, "554 5.6.0"),
    Code.INSUFFICIENT_CREDITS: ErrorAnswer(402, "452 4.7.1"),
    Code.RATE_LIMITED: ErrorAnswer(429, "452 4.7.1"),
    Code.WARMUP_LIMITED: ErrorAnswer(429, "452 4.7.1"),
    Code.ACCOUNT_SUSPENDED: ErrorAnswer(403, "550 5.7.1"),
    Code.PAYLOAD_TOO_LARGE: ErrorAnswer(413, "552 5.3.4"),
    Code.SERVICE_UNAVAILABLE: ErrorAnswer(503, "451 4.3.0"),
    Code.TEMPORARY_FAILURE: ErrorAnswer(503, "451 4.3.0"),
    Code.INTERNAL_ERROR: ErrorAnswer(500, "451 4.3.0"),
    Code.IDEMPOTENCY_CONFLICT: ErrorAnswer(409, "554 5.6.0"),
    Code.IDEMPOTENCY_IN_PROGRESS: ErrorAnswer(409, "451 4.3.0"),
}


class Refused(Exception):
    """A refused request: a code for programs, a sentence for people.

    The client reads the sentence, so it never holds the text of a cause; `raise … from cause` keeps that for the log.
    """

    def __init__(self, code: Code, text: str, *, retry_after: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        return ERROR_ANSWERS[self.code].status


def invalid(field: str, reason: str) -> Refused:
    """The 400 about one field."""
    return Refused(Code.INVALID_REQUEST, f"{field}: {reason}")


def error_text(error: BaseException) -> str:
    """An error for an operator to read: the system's text where there is one, never a repr."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
