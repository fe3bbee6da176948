"""django-anymail: its backends send to our doors; its tracking views verify a post and say what it means."""

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from django.conf import settings
from django.core.mail import get_connection
from django.test import RequestFactory

from appliance.model.webhooks import WebhookFormat

# The module, the view, and the view's setting for the key that verifies posts; Postmark signs none.
VIEWS = {
    WebhookFormat.RESEND: ("resend", "ResendTrackingWebhookView", "signing_secret"),
    WebhookFormat.POSTMARK: ("postmark", "PostmarkTrackingWebhookView", None),
    WebhookFormat.MAILGUN: ("mailgun", "MailgunTrackingWebhookView", "webhook_signing_key"),
    WebhookFormat.SENDGRID: ("sendgrid", "SendGridTrackingWebhookView", "tracking_webhook_verification_key"),
}


# A backend's path below the door, and the name of its key.
BACKENDS = {
    "resend": ("", "api_key"),
    "postmark": ("", "server_token"),
    "mailgun": ("v3", "api_key"),
    "sendgrid": ("v3/", "api_key"),
}


# The view, and its setting for the key; the two others are verified by a user name and a password.
INBOUND_VIEWS = {
    WebhookFormat.POSTMARK: ("postmark", "PostmarkInboundWebhookView", None),
    WebhookFormat.MAILGUN: ("mailgun", "MailgunInboundWebhookView", "webhook_signing_key"),
    WebhookFormat.SENDGRID: ("sendgrid", "SendGridInboundWebhookView", None),
}


def configure() -> None:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], USE_TZ=True)


def connection(provider: str, url: str, key: str) -> Any:
    """The backend of a provider, for the door of the appliance at this URL."""
    configure()
    path, key_name = BACKENDS[provider]
    with warnings.catch_warnings():  # anymail's authors cannot try SendGrid any more
        warnings.simplefilter("ignore")
        backend = f"anymail.backends.{provider}.EmailBackend"
        return get_connection(backend, api_url=f"{url}/{provider}/{path}", **{key_name: key})


def tracked(format: WebhookFormat, headers: Mapping[str, str], body: bytes, key: str) -> Any:
    """The one event that anymail tells the application of, after it answered 200."""
    configure()
    from anymail.signals import tracking

    module, view_name, key_name = VIEWS[format]
    return _event(tracking, module, view_name, {key_name: key} if key_name else {}, headers, body)


def received(format: WebhookFormat, headers: Mapping[str, str], body: bytes, key: str, password: str) -> Any:
    """Its event about a received message; `password` is that of basic authentication."""
    configure()
    from anymail.signals import inbound

    module, view_name, key_name = INBOUND_VIEWS[format]
    settings = {key_name: key} if key_name else {"basic_auth": [f"actionmailbox:{password}"]}
    return _event(inbound, module, view_name, settings, headers, body)


def _event(
    signal: Any, module: str, view_name: str, options: dict[str, Any], headers: Mapping[str, str], body: bytes
) -> Any:
    view = getattr(import_module(f"anymail.webhooks.{module}"), view_name)
    named = {name.lower(): value for name, value in headers.items()}
    content_type = named.pop("content-type")
    named.pop("content-length", None)
    request = RequestFactory().post("/hook", body, content_type=content_type, headers=named)
    seen: list[Any] = []

    def note(event: Any, **_: Any) -> None:
        seen.append(event)

    signal.connect(note)
    try:
        with warnings.catch_warnings():  # it has no password; anymail's authors cannot try SendGrid any more
            warnings.simplefilter("ignore")
            response = view.as_view(**options)(request)
    finally:
        signal.disconnect(note)
    assert response.status_code == 200, response
    (event,) = seen
    return event
