"""dkimpy, which shares no code with us, as the one who checks signatures."""

import base64
from types import SimpleNamespace

import dkim  # type: ignore[import-untyped]  # dkimpy has no types
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["dkim"]


class _VerifyKey:
    """What dkimpy asks of PyNaCl: only the curve is ours, parsing and hashing stay dkimpy's."""

    def __init__(self, data: bytes, encoder: object) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(base64.b64decode(data, validate=True))

    def verify(self, digest: bytes, signature: bytes) -> None:
        self._key.verify(signature, digest)


if not hasattr(dkim, "nacl"):
    dkim.nacl = SimpleNamespace(
        signing=SimpleNamespace(VerifyKey=_VerifyKey),
        encoding=SimpleNamespace(Base64Encoder=None),
        exceptions=SimpleNamespace(ValueError=ValueError, BadSignatureError=InvalidSignature),
    )
