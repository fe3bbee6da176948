"""Encrypts small secrets for the disk: AES-256-GCM, bound to the place where the secret is stored."""

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_VERSION: Final = b"\x01"  # of the layout: version, nonce, ciphertext with its tag
_NONCE: Final = 12  # octets, NIST SP 800-38D 8.2.2; random ones are safe for some 2**32 secrets under one key
_TAG: Final = 16  # octets


class UnsealError(Exception):
    """The sealed secret is damaged, of another context, or sealed under another key."""


def seal(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """The secret, encrypted with the 32-byte key. `context` names its place, such as table, row and column.

    A secret moved to another place cannot be unsealed there. Sealing twice gives different bytes.
    """
    nonce = os.urandom(_NONCE)
    return _VERSION + nonce + AESGCM(_checked(key)).encrypt(nonce, plaintext, _VERSION + context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The secret that `seal` was given with this key and context; else UnsealError."""
    cipher = AESGCM(_checked(key))
    if sealed[:1] != _VERSION or len(sealed) < len(_VERSION) + _NONCE + _TAG:
        raise UnsealError("not a sealed secret of a known version")
    nonce, ciphertext = sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :]
    try:
        return cipher.decrypt(nonce, ciphertext, _VERSION + context)
    except InvalidTag as cause:
        raise UnsealError("a sealed secret was altered, moved, or sealed under another key") from cause


def _checked(key: bytes) -> bytes:
    if len(key) != 32:  # AESGCM would quietly take a shorter key for AES-128
        raise ValueError("a sealing key has 32 bytes")
    return key
