"""Flask-Mailman's email backend: `MAIL_BACKEND = "mail_appliance.flask.EmailBackend"`.

The application's configuration has the same names as Django's settings: see `mail_appliance.django`.
"""

from typing import Any

from flask import current_app  # type: ignore[import-not-found, unused-ignore]
from flask_mailman import EmailMessage  # type: ignore[import-not-found, import-untyped, unused-ignore]
from flask_mailman.backends.base import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    BaseEmailBackend,
)

from mail_appliance.email_messages import OPTIONS, Backend, UnsupportedMessage, shared_client

__all__ = ["EmailBackend", "UnsupportedMessage"]


class EmailBackend(Backend, BaseEmailBackend):  # type: ignore[misc, unused-ignore]  # Flask-Mailman has no types
    """Sends Flask-Mailman's messages through the appliance; UnsupportedMessage for what JSON cannot carry."""

    _message_class = EmailMessage

    def __init__(self, fail_silently: bool = False, **options: Any) -> None:
        """`options` are `url`, `username`, `password`, `token`, `retries`, `connect_timeout` and `timeout`."""
        explicit = {name: options.pop(name, None) for name in OPTIONS}
        super().__init__(**options)
        self.fail_silently = fail_silently
        self._client = shared_client(current_app.config.get, explicit)
