"""Example bodies for `/openapi.json`, by schema."""

from typing import Any

from appliance.errors import Code
from appliance.model.webhooks import PING_SUBJECT, PING_TYPE, EventType

_REQUEST_ID = "req_19811c37e9c0a1d4b86f02c95d7ae318"
_EMAIL_ID = "msg_19811c37e9c04f7e9d2b6a1c03f58e74"
_RECIPIENT_ID = "rcp_19811c37e9c0b05a7c94e1d2f6830a1b"
_AT, _LATER = "2025-06-15T15:06:40.123Z", "2025-06-15T15:06:41.862Z"
_REPLY = "250 2.0.0 OK: queued as 4XyZ9"

# By schema, then by name of the example.
SCHEMA_EXAMPLES: dict[str, dict[str, Any]] = {
    "SendRequest": {
        "text": {
            "from": "Shop <orders@example.com>",
            "to": "ada@example.net",
            "subject": "Your order",
            "text": "Thank you for your order.",
        },
        "template": {
            "from": "orders@example.com",
            "to": ["ada@example.net", "Grace <grace@example.net>"],
            "template": "order-shipped",
            "variables": {"name": "Ada", "items": 3},
            "tags": ["order"],
        },
        "attachment": {
            "from": "orders@example.com",
            "to": "ada@example.net",
            "subject": "Your invoice",
            "html": "<p>Your invoice is attached.</p>",
            "attachments": [{"filename": "invoice.txt", "content": "aGVsbG8=", "content_type": "text/plain"}],
        },
    },
    "Receipt": {
        "accepted": {
            "id": _EMAIL_ID,
            "status": "queued",
            "source": "api",
            "request_id": _REQUEST_ID,
            "from": "Shop <orders@example.com>",
            "to": ["ada@example.net"],
            "cc": [],
            "bcc": [],
            "subject": "Your order",
            "billing_status": "reserved",
            "recipient_count": 1,
            "credits_reserved": 1,
            "headers": {},
            "tags": [],
            "attachments": [],
        }
    },
    "MessageObject": {
        "delivered": {
            "id": _EMAIL_ID,
            "status": "delivered",
            "source": "api",
            "from": "Shop <orders@example.com>",
            "subject": "Your order",
            "billing_status": "settled",
            "recipient_count": 1,
            "credits_reserved": 1,
            "created_at": _AT,
            "recipients": [
                {
                    "id": _RECIPIENT_ID,
                    "email": "ada@example.net",
                    "status": "delivered",
                    "billing_status": "settled",
                    "attempt_count": 1,
                    "last_smtp_code": 250,
                    "last_smtp_response": _REPLY,
                    "delivered_at": _LATER,
                    "bounced_at": None,
                }
            ],
            "request_id": _REQUEST_ID,
        }
    },
    "LoginRequest": {"login": {"email": "owner@example.com", "password": "correct horse battery staple"}},
    "TokenObject": {
        "token": {
            "token": "eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmF0dXJl",
            "token_type": "Bearer",
            "expires_at": "2025-06-16T03:06:40.123Z",
            "account": {
                "id": "acc_19811c37e9c0a1d4b86f02c95d7ae318",
                "name": "acme",
                "email": "owner@example.com",
                "role": "customer",
                "account_role": "owner",
                "totp_required": False,
                "may_not": ["listAccounts"],
            },
            "request_id": _REQUEST_ID,
        }
    },
    "InvitationRequest": {"developer": {"email": "ann@example.com", "role": "developer"}},
    "UserRoleRequest": {"viewer": {"role": "viewer"}},
    "TotpConfirmRequest": {"code": {"password": "correct horse battery staple", "code": "287082"}},
    "DomainRequest": {"domain": {"domain": "example.com"}},
    "SmtpCredentialRequest": {"named": {"name": "CRM"}},
    "ApiKeyRequest": {"send": {"name": "web shop"}, "test": {"name": "staging", "scope": "full", "test": True}},
    "TestMailRequest": {"short": {"to": "ada@example.net"}},
    "TemplateRequest": {
        "both bodies": {
            "subject": "Your order has been shipped",
            "text": "Hello {{name}}, {{items}} items are on their way.",
            "html": "<p>Hello {{name}}, {{items}} items are on their way.</p>",
        }
    },
    "SuppressionRequest": {"address": {"address": "ada@example.net", "reason": "asked not to be contacted"}},
    "UnsubscribeTagsRequest": {"tags": {"tags": ["newsletter", "offers"]}},
    "WebhookRequest": {
        "final results": {"url": "https://hooks.example.net/mail"},
        "bounces": {"url": "https://hooks.example.net/mail", "events": ["email.bounced"], "enabled": True},
    },
}

ERROR_TEXTS = {
    Code.INVALID_REQUEST: "subject: must be at most 500 characters long",
    Code.UNAUTHORIZED: "This key, token or password is not valid.",
    Code.FORBIDDEN: "from: example.org is not a domain of this account. Add it first.",
    Code.NOT_FOUND: "No message has this id.",
    Code.CONFLICT: "An account with this name exists.",
    Code.INSUFFICIENT_CREDITS: "The account has 0 credits but the message needs 1. Add credits.",
    Code.RATE_LIMITED: "Too many requests. Retry later.",
    Code.WARMUP_LIMITED: "The account has reached its daily limit. Retry tomorrow.",
    Code.ACCOUNT_SUSPENDED: "This account is suspended. Ask the operator to resume it.",
    Code.PAYLOAD_TOO_LARGE: "The message is larger than 10 MiB. Send a smaller one.",
    Code.SERVICE_UNAVAILABLE: "The server is shutting down. Retry in a few seconds.",
    Code.TEMPORARY_FAILURE: "Storage is busy. Nothing was accepted; retry with the same key.",
    Code.INTERNAL_ERROR: "Internal error. Retry later; if it persists, give the operator this request_id.",
    Code.IDEMPOTENCY_CONFLICT: "This Idempotency-Key was used with another body. Use a new key.",
    Code.IDEMPOTENCY_IN_PROGRESS: (
        "The first request with this Idempotency-Key is still running. Retry in a few seconds."
    ),
}

_RESULTS: dict[EventType, dict[str, Any]] = {
    EventType.DELIVERED: {"smtp_code": 250, "smtp_response": _REPLY},
    EventType.BOUNCED: {"smtp_code": 550, "smtp_response": "550 5.1.1 No such user here"},
    EventType.FAILED: {"smtp_code": 451, "smtp_response": "451 4.7.1 Try again later"},
    EventType.DELAYED: {
        "smtp_code": 452,
        "smtp_response": "452 4.2.2 The mailbox is full",
        "bounce_class": "mailbox_full",
    },
    EventType.LATE_BOUNCED: {
        "smtp_code": 550,
        "smtp_response": "550 5.1.1 No such user here",
        "bounce_class": "invalid_recipient",
    },
    EventType.COMPLAINED: {},
}


def error_example(code: Code) -> dict[str, str]:
    return {"error": ERROR_TEXTS[code], "code": code.value, "request_id": _REQUEST_ID}


def event_example(name: str) -> dict[str, Any]:
    """The body of an event of this type."""
    data: dict[str, Any] = {"subject": PING_SUBJECT, "test": True}
    if name != PING_TYPE:
        data = {
            "email_id": _EMAIL_ID,
            "recipient_id": _RECIPIENT_ID,
            "to": "ada@example.net",
            "from": "orders@example.com",
            "subject": "Your order",
        } | _RESULTS[EventType(name)]
    return {"id": "evt_19811c37e9c0d2b1a4f7836e05c9281d", "type": name, "created_at": _LATER, "data": data}
