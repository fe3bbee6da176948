"""dkimpy, which shares no code with us, as the one who checks signatures."""

import base64
from collections.abc import Mapping
from types import SimpleNamespace

import dkim  # type: ignore[import-untyped]  # dkimpy has no types
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


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


def signatures(message: bytes) -> int:
    return (b"\r\n" + message.partition(b"\r\n\r\n")[0]).count(b"\r\nDKIM-Signature:")


def verifies(message: bytes, number: int, records: Mapping[bytes, bytes]) -> bool:
    """Whether the signature of this number, counted from the top, is good by these TXT records."""
    return bool(dkim.DKIM(message).verify(idx=number, dnsfunc=lambda name, **_: records.get(name)))
