"""Django's email backend: `EMAIL_BACKEND = "mail_appliance.django.EmailBackend"`, or from Django 6.1 on the same as the
BACKEND of a mailer, whose OPTIONS win over the settings.

The settings are MAIL_APPLIANCE_URL, MAIL_APPLIANCE_USERNAME and MAIL_APPLIANCE_PASSWORD, or MAIL_APPLIANCE_TOKEN, and
MAIL_APPLIANCE_RETRIES, MAIL_APPLIANCE_CONNECT_TIMEOUT and MAIL_APPLIANCE_TIMEOUT; the first four may come from the
environment instead. A message's header `Idempotency-Key` is the key of its send. Its attributes `tags`, `metadata` and
`scheduled_at` are the arguments of `Client.send`.
"""

from typing import Any

from django.conf import settings  # type: ignore[import-not-found, import-untyped, unused-ignore]
from django.core.mail import EmailMessage  # type: ignore[import-not-found, import-untyped, unused-ignore]
from django.core.mail.backends.base import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    BaseEmailBackend,
)

from mail_appliance.email_messages import OPTIONS, Backend, UnsupportedMessage, shared_client

__all__ = ["EmailBackend", "UnsupportedMessage"]


class EmailBackend(Backend, BaseEmailBackend):  # type: ignore[misc, unused-ignore]  # Django has no types
    """Sends Django's messages through the appliance; UnsupportedMessage for what JSON cannot carry."""

    _message_class = EmailMessage

    def __init__(self, fail_silently: bool = False, **options: Any) -> None:
        """`options` are `url`, `username`, `password`, `token`, `retries`, `connect_timeout` and `timeout`."""
        explicit = {name: options.pop(name, None) for name in OPTIONS}
        super().__init__(**options)
        self.fail_silently = fail_silently
        self._client = shared_client(lambda name: getattr(settings, name, None), explicit)
