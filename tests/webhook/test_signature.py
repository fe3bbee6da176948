"""In charge of signatures: ours are accepted, by us and by others, and nothing else is."""

import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stripe import SignatureVerificationError, WebhookSignature

from appliance.webhook.signature import TOLERANCE, Forged, signature_header, verify

SECRET = b"whsec_0TfI8yJ0jVx-aB_c"
BODY = '{"id":"evt_1","data":{"subject":"Grüße"}}'.encode()
NOW = 1_750_000_000


def test_the_header_has_the_form_of_the_interface() -> None:
    """`t=<seconds>,v1=<hex>`, the HMAC over time, full stop and body, under the whole secret."""
    expected = hmac.new(SECRET, b"1750000000." + BODY, hashlib.sha256).hexdigest()
    assert signature_header(SECRET, NOW, BODY) == f"t=1750000000,v1={expected}"


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=60), st.integers(0, 10**11))
def test_what_is_signed_is_verified(body: bytes, secret: bytes, seconds: int) -> None:
    """Whatever the bytes, their own signature is accepted; with a byte more, or another secret, it is not."""
    header = signature_header(secret, seconds, body)
    verify(secret, header, body, seconds)
    for wrong_secret, wrong_body in ((secret, body + b"x"), (secret + b"x", body)):
        with pytest.raises(Forged):
            verify(wrong_secret, header, wrong_body, seconds)


@pytest.mark.parametrize("away", [0, 1, 299, TOLERANCE, -1, -299, -TOLERANCE])
def test_a_clock_may_differ_by_five_minutes(away: int) -> None:
    """Up to 300 seconds, in either direction."""
    verify(SECRET, signature_header(SECRET, NOW, BODY), BODY, NOW + away)


@pytest.mark.parametrize("away", [301, 302, 86_400, -301, -302, -86_400])
def test_a_clock_may_not_differ_by_more(away: int) -> None:
    """Beyond 300 seconds a good signature is refused all the same: it may be a repetition."""
    with pytest.raises(Forged, match="300"):
        verify(SECRET, signature_header(SECRET, NOW, BODY), BODY, NOW + away)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=1750000000",
        "v1=00",
        "t=,v1=",
        "t=x,v1=00",
        "t=-1,v1=00",
        "t=١,v1=00",
        "t=1750000000,v0=00",
        "t=1750000000,v1=é",
        "t=1750000000,v1=\ud800",
        "v1=00,t=1750000000",
        f"t={'9' * 5000},v1=00",
        signature_header(SECRET, NOW, BODY)[:-1],
        signature_header(SECRET, NOW, BODY) + "0",
        signature_header(SECRET, NOW, BODY).replace("t=1750000000", "t=1750000001"),
        signature_header(SECRET, NOW, BODY).replace("t=1750000000", "t=01750000000"),
    ],
)
def test_what_is_no_signature_is_refused(header: str) -> None:
    """Nothing else than the header as it was made is accepted, and nothing crashes."""
    with pytest.raises(Forged):
        verify(SECRET, header, BODY, NOW)


def test_stripe_s_library_agrees() -> None:
    """`WebhookSignature.verify_header` accepts ours within its tolerance, and refuses altered and old ones."""
    now, secret, text = round(time.time()), SECRET.decode(), BODY.decode()
    good = signature_header(SECRET, now, BODY)
    assert WebhookSignature.verify_header(text, good, secret, tolerance=300)
    old = signature_header(SECRET, now - 310, BODY)
    for body, header in ((text + " ", good), (text, good[:-2] + "zz"), (text, old)):
        with pytest.raises(SignatureVerificationError):
            WebhookSignature.verify_header(body, header, secret, tolerance=300)
