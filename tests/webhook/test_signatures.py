"""The signatures of a post, as the interface says and as the libraries of their providers verify them."""

import hashlib
import hmac
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sendgrid.helpers.eventwebhook import EventWebhook
from standardwebhooks import Webhook, WebhookVerificationError
from stripe import SignatureVerificationError, WebhookSignature
from svix.webhooks import Webhook as SvixWebhook
from svix.webhooks import WebhookVerificationError as SvixError

from appliance.environment import Environment
from appliance.keys.secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, Lane, Trigger, WebhookFormat
from appliance.webhook.signatures import sendgrid_public_key, sign, signature_header

SECRET = b"whsec_0TfI8yJ0jVx-aB_c"
BODY = '{"id":"evt_1","data":{"subject":"Grüße"}}'.encode()
NOW = 1_750_000_000


def test_the_header_has_the_form_of_the_interface() -> None:
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


# ---- besides the interface's own

NEW_SECRET = WebhookSecrets(bytes(32), Environment(token_bytes=lambda _: bytes(range(224, 256)))).fresh("whk_1")[0]
OURS, STANDARD = {"Service-Signature"}, {"webhook-id", "webhook-timestamp", "webhook-signature"}
SVIX = {"svix-id", "svix-timestamp", "svix-signature"}
SENDGRID = {"X-Twilio-Email-Event-Webhook-Signature", "X-Twilio-Email-Event-Webhook-Timestamp"}


def due(format: WebhookFormat = WebhookFormat.NATIVE, body: bytes = BODY) -> DuePost:
    return DuePost(Lane("whk_1", Trigger.EVENT), "whd_1", 0, body, "evt_1", "msg_1", "rcp_1", format)


@pytest.mark.parametrize(
    ("format", "secret", "names"),
    [
        (WebhookFormat.NATIVE, NEW_SECRET, OURS | STANDARD),
        (WebhookFormat.NATIVE, SECRET.decode(), OURS),
        (WebhookFormat.RESEND, NEW_SECRET, OURS | STANDARD | SVIX),
        (WebhookFormat.POSTMARK, NEW_SECRET, OURS | STANDARD),
        (WebhookFormat.MAILGUN, NEW_SECRET, OURS | STANDARD),
        (WebhookFormat.SENDGRID, NEW_SECRET, OURS | STANDARD | SENDGRID),
        (WebhookFormat.SENDGRID, SECRET.decode(), OURS | SENDGRID),
    ],
)
def test_every_format_has_its_headers(format: WebhookFormat, secret: str, names: set[str]) -> None:
    """An old secret, which is not standard base64, signs as before; every header is one line of plain ASCII."""
    headers, body = sign(secret.encode(), due(format), round(time.time()))
    assert {name for name, _ in headers} == names
    assert len(headers) == len(names)
    assert "".join(value for _, value in headers).isascii()
    assert WebhookSignature.verify_header(body.decode(), dict(headers)["Service-Signature"], secret)


@given(st.text(max_size=300), st.binary(min_size=32, max_size=32))
def test_standard_libraries_verify_any_body(text: str, key: bytes) -> None:
    """Both `standardwebhooks` and `svix` accept a post of this second; not one that was altered, or is old."""
    environment, body = Environment(token_bytes=lambda _: key), json.dumps({"subject": text}).encode()
    secret = WebhookSecrets(bytes(32), environment).fresh("whk_1")[0]
    headers = dict(sign(secret.encode(), due(WebhookFormat.RESEND, body), round(time.time())).headers)
    old = dict(sign(secret.encode(), due(WebhookFormat.RESEND, body), round(time.time()) - 310).headers)
    only_svix = {name: value for name, value in headers.items() if name in SVIX}
    assert Webhook(secret).verify(body, headers) == json.loads(body)
    SvixWebhook(secret).verify(body, headers)
    SvixWebhook(secret).verify(body, only_svix)
    for wrong_body, wrong_headers in ((body + b" ", headers), (body, {**headers, "webhook-id": "evt_2"}), (body, old)):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(wrong_body, wrong_headers)
    with pytest.raises(SvixError):
        SvixWebhook(secret).verify(body + b" ", only_svix)


def test_sendgrid_s_library_verifies_its_format() -> None:
    """With the public key that the API shows; another secret has another key, and the same secret always the same."""
    headers = dict(sign(NEW_SECRET.encode(), due(WebhookFormat.SENDGRID), NOW).headers)
    signed = headers["X-Twilio-Email-Event-Webhook-Signature"], headers["X-Twilio-Email-Event-Webhook-Timestamp"]
    key, other = sendgrid_public_key(NEW_SECRET.encode()), sendgrid_public_key(SECRET)
    verifier = EventWebhook()
    assert verifier.verify_signature(BODY.decode(), *signed, verifier.convert_public_key_to_ecdsa(key))
    assert not verifier.verify_signature(BODY.decode() + " ", *signed, verifier.convert_public_key_to_ecdsa(key))
    assert not verifier.verify_signature(BODY.decode(), *signed, verifier.convert_public_key_to_ecdsa(other))
    assert key != other
    assert key == sendgrid_public_key(NEW_SECRET.encode())


def test_mailgun_s_signature_is_in_the_body() -> None:
    """As Mailgun documents: the key is the secret. The token stays, because receivers ignore one they know."""
    bodies = [sign(NEW_SECRET.encode(), due(WebhookFormat.MAILGUN), NOW + wait).body for wait in (0, 300)]
    first, again = [json.loads(body) for body in bodies]
    assert {name: value for name, value in first.items() if name != "signature"} == json.loads(BODY)
    for number, given_signature in ((NOW, first["signature"]), (NOW + 300, again["signature"])):
        assert set(given_signature) == {"timestamp", "token", "signature"}
        assert given_signature["timestamp"] == str(number)
        signed = (given_signature["timestamp"] + given_signature["token"]).encode()
        assert given_signature["signature"] == hmac.new(NEW_SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert first["signature"]["token"] == again["signature"]["token"]
    assert len(first["signature"]["token"]) == 50
