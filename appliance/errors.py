"""Errors that clients see: one table from error code to HTTP status and SMTP reply."""

import os
import platform
import socket
import ssl
import sys
from enum import StrEnum


class Code(StrEnum):
    """Every `code` an error object may carry, its HTTP status and SMTP reply; the list is closed by the interface."""

    status: int
    smtp: str

    def __new__(cls, code: str, status: int, smtp: str) -> "Code":
        made = str.__new__(cls, code)
        made._value_, made.status, made.smtp = code, status, smtp
        return made

    INVALID_REQUEST = "invalid_request", 400, "554 5.6.0"
    UNAUTHORIZED = "unauthorized", 401, "535 5.7.8"
    FORBIDDEN = "forbidden", 403, "550 5.7.1"
    NOT_FOUND = "not_found", 404, "554 5.6.0"
    CONFLICT = "conflict", 409, "554 5.6.0"
    INSUFFICIENT_CREDITS = "insufficient_credits", 402, "452 4.7.1"
    RATE_LIMITED = "rate_limited", 429, "452 4.7.1"
    WARMUP_LIMITED = "warmup_limited", 429, "452 4.7.1"
    ACCOUNT_SUSPENDED = "account_suspended", 403, "550 5.7.1"
    PAYLOAD_TOO_LARGE = "payload_too_large", 413, "552 5.3.4"
    SERVICE_UNAVAILABLE = "service_unavailable", 503, "451 4.3.0"
    TEMPORARY_FAILURE = "temporary_failure", 503, "451 4.3.0"
    INTERNAL_ERROR = "internal_error", 500, "451 4.3.0"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict", 409, "554 5.6.0"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress", 409, "451 4.3.0"


class PublicError(Exception):
    """A code for programs and a sentence for people; `raise … from cause` keeps the cause's text for the log."""

    def __init__(self, code: Code, reason: str, *, retry_after: int | None = None, field: str = "") -> None:
        self.text = f"{field}: {reason}" if field else reason
        super().__init__(self.text)
        self.code, self.reason, self.retry_after, self.field = code, reason, retry_after, field


class Refused(PublicError):
    """The caller asked for something it may not have; the same request would be refused again, or before long."""

    def within(self, path: str) -> "Refused":
        """The same refusal, of a request that is a part of another one: it names the part."""
        field = path if self.field in ("", "body") else f"{path}.{self.field}"
        return Refused(self.code, self.reason, retry_after=self.retry_after, field=field)


class StorageUnavailable(PublicError):
    """The database cannot be read or written for now. No request is at fault: retry the same work later."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.TEMPORARY_FAILURE, text, retry_after=2)


class StorageFault(Exception):
    """The state on disk is unknown, so the process must end."""


def invalid(field: str, reason: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, reason, field=field)


def error_text(error: BaseException) -> str:
    """An error for an operator to read: the system's text where there is one, never a repr."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__


def start_failure(error: BaseException) -> str:
    """The line for a program that cannot import its own modules, on whichever Python runs it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"cannot start with Python {platform.python_version()} ({sys.executable}): {text}. Reinstall the appliance."
