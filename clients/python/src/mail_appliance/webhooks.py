"""Verifying webhook requests."""

import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterable

from mail_appliance import models
from mail_appliance.errors import ConfigurationError, SignatureInvalid
from mail_appliance.models import Event

_SECONDS = re.compile(r"[0-9]{1,15}")


def verify(
    body: bytes,
    header: str | None,
    secrets: str | Iterable[str | None] | None,
    tolerance: float = 300,
    *,
    now: float | None = None,
) -> Event:
    """The event of a webhook request whose signature is right; SignatureInvalid otherwise.

    A secret that is missing (None) or empty raises ConfigurationError, so that `os.environ.get(…)` can be passed as it
    is.

    `body` is the request's body exactly as it came, `header` the value of `Service-Signature`. While a secret is
    rotated, give the old one and the new one. `tolerance` is how many seconds the signature's time may differ from
    `now`, which is Unix time and by default the current one.
    """
    keys = _keys(secrets)
    seconds, signatures = _read_header(header or "")
    signed = seconds.encode() + b"." + body
    matches = False
    for key in keys:  # all are compared, whichever matches, so that the time taken tells nothing
        expected = hmac.new(key, signed, hashlib.sha256).hexdigest().encode()
        for signature in signatures:
            matches |= hmac.compare_digest(expected, signature)
    if not matches:
        raise SignatureInvalid("no signature matches")
    if abs((time.time() if now is None else now) - int(seconds)) > tolerance:
        raise SignatureInvalid(f"the signature's time is more than {tolerance:g} s from now")
    return _event(body)


def _keys(secrets: str | Iterable[str | None] | None) -> list[bytes]:
    """The whole secret is the key, `whsec_` included."""
    keys = [(secret or "").encode() for secret in ([secrets] if isinstance(secrets, str) else secrets or ())]
    if not keys or not all(keys):
        raise ConfigurationError("secrets: a webhook secret is missing or empty. Pass the secret of your webhook.")
    return keys


def _read_header(header: str) -> tuple[str, list[bytes]]:
    """The time and the signatures of `t=<seconds>,v1=<hex>`, in any order; unknown parts are ignored."""
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    signatures = [value.encode("utf-8", "replace") for name, _, value in parts if name == "v1"]
    if len(times) != 1 or not _SECONDS.fullmatch(times[0]) or not signatures:
        raise SignatureInvalid("the header is not t=<seconds>,v1=<hex>")
    return times[0], signatures


def _event(body: bytes) -> Event:
    try:
        event = models.event(json.loads(body))
    except (ValueError, RecursionError):
        event = None
    if event is None:
        raise SignatureInvalid("the body is signed, but is not an event")
    return event
