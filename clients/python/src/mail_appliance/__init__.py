"""Sends mail through the mail appliance: `Client` for threads, `AsyncClient` for Trio and asyncio.

from mail_appliance import Client

with Client("https://mail.example.com", username="…", password="…") as mail:
    mail.send(from_="Shop <orders@example.com>", to="ada@example.net", subject="Hello", text="Hello Ada")
"""

from mail_appliance.async_client import AsyncClient
from mail_appliance.client import Client
from mail_appliance.errors import (
    AccountSuspended,
    ApiError,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    IdempotencyConflict,
    IdempotencyInProgress,
    InsufficientCredits,
    InternalError,
    InvalidRequest,
    MailApplianceError,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    RateLimited,
    ServiceUnavailable,
    SignatureInvalid,
    TemporaryFailure,
    Unauthorized,
    WaitTimeout,
    WarmupLimited,
)
from mail_appliance.models import (
    AnsweredEmail,
    Attachment,
    AttachmentInfo,
    BatchItem,
    BatchResult,
    Email,
    Event,
    EventData,
    Message,
    ReceivedEmail,
    ReceivedFile,
    Recipient,
    SendResult,
)
from mail_appliance.planning import Answer, AsyncTransport, Request, Transport, TransportError, __version__
from mail_appliance.webhooks import verify

__all__ = [
    "AccountSuspended",
    "Answer",
    "AnsweredEmail",
    "ApiError",
    "AsyncClient",
    "AsyncTransport",
    "Attachment",
    "AttachmentInfo",
    "BatchItem",
    "BatchResult",
    "Client",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "Email",
    "Event",
    "EventData",
    "Forbidden",
    "IdempotencyConflict",
    "IdempotencyInProgress",
    "InsufficientCredits",
    "InternalError",
    "InvalidRequest",
    "MailApplianceError",
    "Message",
    "NotFound",
    "NotSupported",
    "PayloadTooLarge",
    "RateLimited",
    "ReceivedEmail",
    "ReceivedFile",
    "Recipient",
    "Request",
    "SendResult",
    "ServiceUnavailable",
    "SignatureInvalid",
    "TemporaryFailure",
    "Transport",
    "TransportError",
    "Unauthorized",
    "WaitTimeout",
    "WarmupLimited",
    "__version__",
    "verify",
]
