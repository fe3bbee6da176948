"""The signature of a post: as the interface says, and as stripe's library verifies it."""

import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stripe import SignatureVerificationError, WebhookSignature

from appliance.webhook.attempt import signature_header

SECRET = b"whsec_0TfI8yJ0jVx-aB_c"
BODY = '{"id":"evt_1","data":{"subject":"Grüße"}}'.encode()
NOW = 1_750_000_000


def test_the_header_has_the_form_of_the_interface() -> None:
    """`t=<seconds>,v1=<hex>`, the HMAC over time, full stop and body, under the whole secret."""
    expected = hmac.new(SECRET, b"1750000000." + BODY, hashlib.sha256).hexdigest()
    assert signature_header(SECRET, NOW, BODY) == f"t=1750000000,v1={expected}"


@given(st.text(max_size=300), st.text(max_size=60).map("whsec_".__add__), st.integers(0, 10**11))
def test_any_body_is_signed(body: str, secret: str, seconds: int) -> None:
    """Whatever the bytes, stripe's library accepts their signature, but not with a byte more or another secret."""
    header = signature_header(secret.encode(), seconds, body.encode())
    assert WebhookSignature.verify_header(body, header, secret)
    for wrong_body, wrong_secret in ((body + "x", secret), (body, secret + "x")):
        with pytest.raises(SignatureVerificationError):
            WebhookSignature.verify_header(wrong_body, header, wrong_secret)


def test_stripe_s_library_agrees() -> None:
    """`WebhookSignature.verify_header` accepts ours within its tolerance, and refuses altered and old ones."""
    now, secret, text = round(time.time()), SECRET.decode(), BODY.decode()
    good = signature_header(SECRET, now, BODY)
    assert WebhookSignature.verify_header(text, good, secret, tolerance=300)
    old = signature_header(SECRET, now - 310, BODY)
    for body, header in ((text + " ", good), (text, good[:-2] + "zz"), (text, old)):
        with pytest.raises(SignatureVerificationError):
            WebhookSignature.verify_header(body, header, secret, tolerance=300)
