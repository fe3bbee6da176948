"""Django's email backend: `EMAIL_BACKEND = "mail_appliance.django.EmailBackend"`.

The settings are MAIL_APPLIANCE_URL, MAIL_APPLIANCE_USERNAME and MAIL_APPLIANCE_PASSWORD, or MAIL_APPLIANCE_TOKEN, and
MAIL_APPLIANCE_RETRIES, MAIL_APPLIANCE_CONNECT_TIMEOUT and MAIL_APPLIANCE_TIMEOUT; the first four may come from the
environment instead. A message's header `Idempotency-Key` is the key of its send, its attribute `tags` its tags.
"""

from typing import Any

from django.conf import settings  # type: ignore[import-not-found, import-untyped, unused-ignore]
from django.core.mail import EmailMessage  # type: ignore[import-not-found, import-untyped, unused-ignore]
from django.core.mail.backends.base import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    BaseEmailBackend,
)

from mail_appliance.email_messages import Backend, UnsupportedMessage, shared_client

__all__ = ["EmailBackend", "UnsupportedMessage"]


class EmailBackend(Backend, BaseEmailBackend):  # type: ignore[misc, unused-ignore]  # Django has no types
    """Sends Django's messages through the appliance; UnsupportedMessage for what JSON cannot carry."""

    _message_class = EmailMessage

    def __init__(
        self, username: str | None = None, password: str | None = None, fail_silently: bool = False, **options: Any
    ) -> None:
        """`username` and `password` are the `auth_user` and `auth_password` of `send_mail`."""
        super().__init__(fail_silently=fail_silently)
        names = [name for name in dir(settings) if name.startswith("MAIL_APPLIANCE_")]
        self._client = shared_client({name: getattr(settings, name) for name in names}, username, password)
