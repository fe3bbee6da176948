"""Signs posts: our own header, those of Standard Webhooks, and what receivers written for another provider verify.

All keys come from the webhook's one secret, so rotating it replaces them all. Each attempt is signed with its own time,
because receivers reject old signatures; the id or token that identifies an event is the same in all its posts.
"""

import binascii
import hmac
from functools import lru_cache
from hashlib import sha256, sha512
from typing import NamedTuple

import msgspec
import pybase64
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.keys.keyfile import UnsealError
from appliance.keys.secrets import WebhookSecrets
from appliance.model.webhooks import DuePost, Webhook, WebhookFormat

SECRET_PREFIX = b"whsec_"
MAILGUN_TOKEN_CHARACTERS = 50
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_ENCODER = msgspec.json.Encoder()
SENDGRID_KEYS = 2_000  # in memory; deriving one takes longer than signing with it


class SignedPost(NamedTuple):
    headers: list[tuple[str, str]]
    body: bytes


def sign(secret: bytes, post: DuePost, seconds: int, whole: bytes | None = None) -> SignedPost:
    """`whole` is the body with a received message, in place of the post's own."""
    body = post.body if whole is None else whole
    if post.format is WebhookFormat.MAILGUN and whole is None:
        body = mailgun_body(secret, post, seconds)
    headers = [("Service-Signature", signature_header(secret, seconds, body))]
    if (key := standard_key(secret)) is not None:
        signed = (("id", post.event_id), ("timestamp", str(seconds)), ("signature", ""))
        names = ("webhook", "svix") if post.format is WebhookFormat.RESEND else ("webhook",)
        signature = standard_signature(key, post.event_id, seconds, body)
        headers += [(f"{name}-{field}", value or signature) for name in names for field, value in signed]
    if post.format is WebhookFormat.SENDGRID:
        headers += sendgrid_headers(secret, seconds, body)
    return SignedPost(headers, body)


def signature_header(secret: bytes, seconds: int, body: bytes) -> str:
    """The Service-Signature of a body posted at this time: an HMAC-SHA256 over `seconds.body`."""
    return f"t={seconds},v1={hmac.digest(secret, b'%d.%b' % (seconds, body), sha256).hex()}"


def standard_key(secret: bytes) -> bytes | None:
    """The key of Standard Webhooks; None for an old secret, which is not standard base64."""
    try:
        return pybase64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        return None


def standard_signature(key: bytes, event_id: str, seconds: int, body: bytes) -> str:
    signed = hmac.digest(key, b"%b.%d.%b" % (event_id.encode(), seconds, body), sha256)
    return f"v1,{pybase64.b64encode(signed).decode()}"


def mailgun_body(secret: bytes, post: DuePost, seconds: int) -> bytes:
    """The body with `signature`, which Mailgun has no header for."""
    member = b',"signature":%b}' % _ENCODER.encode(mailgun_signature(secret, post.event_id, seconds))
    return post.body.removesuffix(b"}") + member


def mailgun_signature(secret: bytes, event_id: str, seconds: int) -> dict[str, str]:
    """An HMAC-SHA256 over timestamp and token."""
    token = sha256(event_id.encode()).hexdigest()[:MAILGUN_TOKEN_CHARACTERS]
    signature = hmac.digest(secret, b"%d%b" % (seconds, token.encode()), sha256).hex()
    return {"timestamp": str(seconds), "token": token, "signature": signature}


# ---- SendGrid's signed event webhook
def sendgrid_headers(secret: bytes, seconds: int, body: bytes) -> list[tuple[str, str]]:
    """ECDSA over timestamp and body, as DER in base64."""
    signature = _sendgrid_key(secret).sign(b"%d%b" % (seconds, body), ec.ECDSA(hashes.SHA256()))
    name = "X-Twilio-Email-Event-Webhook"
    return [(f"{name}-Signature", pybase64.b64encode(signature).decode()), (f"{name}-Timestamp", str(seconds))]


def public_key(secrets: WebhookSecrets, webhook: Webhook) -> str | None:
    """The key that a receiver of this webhook needs; None if its format needs none, or the secret cannot be read."""
    if webhook.format is not WebhookFormat.SENDGRID:
        return None
    try:
        return sendgrid_public_key(secrets.open(webhook))
    except UnsealError:
        return None


def sendgrid_public_key(secret: bytes) -> str:
    """The key that verifies these headers, as SendGrid shows it: DER in base64."""
    public = _sendgrid_key(secret).public_key()
    return pybase64.b64encode(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


@lru_cache(SENDGRID_KEYS)
def _sendgrid_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    number = int.from_bytes(hmac.digest(secret, b"SendGrid signed event webhook", sha512), "big")
    return ec.derive_private_key(1 + number % (P256_ORDER - 1), ec.SECP256R1())
