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
    view = getattr(import_module(f"anymail.webhooks.{module}"), view_name)
    signed = {name: value for name, value in headers.items() if name.lower() not in ("content-type", "content-length")}
    request = RequestFactory().post("/hook", body, content_type=headers["content-type"], headers=signed)
    seen: list[Any] = []

    def note(event: Any, **_: Any) -> None:
        seen.append(event)

    tracking.connect(note)
    try:
        with warnings.catch_warnings():  # it has no password; anymail's authors cannot try SendGrid any more
            warnings.simplefilter("ignore")
            response = view.as_view(**({key_name: key} if key_name else {}))(request)
    finally:
        tracking.disconnect(note)
    assert response.status_code == 200, response
    (event,) = seen
    return event
