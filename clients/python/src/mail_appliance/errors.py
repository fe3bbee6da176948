"""The errors of this library. All derive from `MailApplianceError`, and all survive pickling."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mail_appliance.models import Message


class MailApplianceError(Exception):
    """The base of all errors. `idempotency_key` is that of the failed send: with it a caller can send again safely."""

    def __init__(self, message: str, *, idempotency_key: str | None = None) -> None:
        """`message` is the text of the error."""
        super().__init__(message)
        self.idempotency_key = idempotency_key

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Restore the attributes without calling `__init__`, which needs arguments that `args` does not hold."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[MailApplianceError], args: tuple[Any, ...]) -> MailApplianceError:
    return kind.__new__(kind, *args)


class ConfigurationError(MailApplianceError):
    """The caller's mistake, found before any request."""


class ConnectionFailed(MailApplianceError):
    """No whole answer came: refused, reset, lost, timed out, or a certificate that does not verify.

    The appliance may have accepted the message all the same; a send with the same `idempotency_key` cannot double it.
    """


class WaitTimeout(MailApplianceError):
    """`wait` ended before the message was final. `last_message` is the last one seen; None if none was."""

    def __init__(self, message: str, *, last_message: "Message | None") -> None:
        """`message` is the text of the error."""
        super().__init__(message)
        self.last_message = last_message


class SignatureInvalid(MailApplianceError):
    """A webhook request that must not be trusted."""


class ApiError(MailApplianceError):
    """An answer that is not a success. A code of the interface has a subclass; others, and none, have this class.

    `retry_after` is in seconds, None if the answer did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """`message` is the appliance's own text, or the beginning of what came instead."""
        super().__init__(message, idempotency_key=idempotency_key)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after


class NotSupported(ApiError):
    """The server has no such route: it is older than this call. Other calls still work."""


class InvalidRequest(ApiError):
    """A field is missing or wrong; the message names it."""


class Unauthorized(ApiError):
    """The credential is missing, wrong, or not allowed to do this."""


class Forbidden(ApiError):
    """The account may not send from this domain."""


class NotFound(ApiError):
    """The account has no such message."""


class Conflict(ApiError):
    """The request contradicts the state of what it names."""


class InsufficientCredits(ApiError):
    """The account has fewer credits than the message has recipients."""


class RateLimited(ApiError):
    """Too many requests; `retry_after` says when to come back."""


class WarmupLimited(ApiError):
    """The account's daily limit is reached."""


class AccountSuspended(ApiError):
    """The account may not send."""


class PayloadTooLarge(ApiError):
    """The request or the message is too large."""


class ServiceUnavailable(ApiError):
    """The appliance is starting or stopping."""


class TemporaryFailure(ApiError):
    """The appliance could not store the message now; nothing was accepted."""


class InternalError(ApiError):
    """A fault of the appliance; its log has the cause under `request_id`."""


class IdempotencyConflict(ApiError):
    """The key was used before, for another message."""


class IdempotencyInProgress(ApiError):
    """The first request with this key is still running."""


BY_CODE: Final[dict[str, type[ApiError]]] = {
    "invalid_request": InvalidRequest,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "conflict": Conflict,
    "insufficient_credits": InsufficientCredits,
    "rate_limited": RateLimited,
    "warmup_limited": WarmupLimited,
    "account_suspended": AccountSuspended,
    "payload_too_large": PayloadTooLarge,
    "service_unavailable": ServiceUnavailable,
    "temporary_failure": TemporaryFailure,
    "internal_error": InternalError,
    "idempotency_conflict": IdempotencyConflict,
    "idempotency_in_progress": IdempotencyInProgress,
}
