"""Signing secrets are random, sealed, and of use to their own webhook only."""

import dataclasses
import re

import pytest

from appliance.environment import Environment
from appliance.keys.keyfile import UnsealError
from appliance.keys.webhook_secrets import WebhookSecrets
from appliance.model.webhooks import EventType, Webhook

SECRETS = WebhookSecrets(bytes(32), Environment())


def webhook(webhook_id: str, sealed: bytes) -> Webhook:
    """A webhook with this secret."""
    return Webhook(webhook_id, "acc_1", "https://x.example/", tuple(EventType), True, sealed, "abcd", 1, 1, None, None)


def test_a_secret_opens_where_it_belongs() -> None:
    """What was shown is what signs; the hint is its end; no two are alike."""
    shown, stored = SECRETS.fresh("whk_1")
    assert re.fullmatch(r"whsec_[A-Za-z0-9_-]{43}", shown)
    assert stored.hint == shown[-4:]
    assert shown.encode() not in stored.sealed
    for _ in range(2):
        assert SECRETS.open(webhook("whk_1", stored.sealed)) == shown.encode()
    assert SECRETS.fresh("whk_1")[0] != shown


def test_a_secret_opens_nowhere_else() -> None:
    """Not for another webhook, and not under another key."""
    _, stored = SECRETS.fresh("whk_1")
    with pytest.raises(UnsealError):
        SECRETS.open(webhook("whk_2", stored.sealed))
    with pytest.raises(UnsealError):
        WebhookSecrets(bytes([1] * 32), Environment()).open(webhook("whk_1", stored.sealed))


def test_nothing_secret_is_printed() -> None:
    """Neither the key nor a secret is in the repr of what holds it."""
    shown, stored = SECRETS.fresh("whk_1")
    held = webhook("whk_1", stored.sealed)
    SECRETS.open(held)
    for each in (SECRETS, stored, held, dataclasses.replace(held)):
        assert shown not in repr(each)
        assert repr(stored.sealed) not in repr(each)
        assert repr(bytes(32)) not in repr(each)
