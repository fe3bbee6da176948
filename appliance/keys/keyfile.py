"""The installation's key: a file in the data directory, from which all other keys are derived.

Small secrets are sealed with a derived key before they are stored: AES-256-GCM, bound to the place of storage.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_FILE = "appliance.key"
KEY_BYTES = 32
_VERSION: Final = b"\x01"  # layout: version, nonce, ciphertext with its tag
_NONCE: Final = 12  # octets (NIST SP 800-38D 8.2.2); random nonces are safe for about 2**32 secrets per key
_TAG: Final = 16  # octets


class KeyFileError(Exception):
    """The key file is unusable; the text says what to do."""


def load_or_create(data_dir: Path) -> bytes:
    """The installation's key. Created at the first start; readable only by its owner."""
    path = data_dir / KEY_FILE
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    return load(data_dir)


def load(data_dir: Path) -> bytes:
    path = data_dir / KEY_FILE
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise KeyFileError(f"{path}: expected {KEY_BYTES} bytes, found {len(key)}. Restore the file from the backup.")
    return key


def _create(path: Path) -> None:
    """Write the complete key or nothing, and never replace an existing key, which would make all secrets unreadable."""
    unfinished = path.with_suffix(f".{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):  # another process created its key first
        os.link(unfinished, path)
    unfinished.unlink()
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def derive(key: bytes, purpose: str) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode()).derive(key)


def fingerprint(key: bytes) -> str:
    """Identifies a key and reveals nothing else about it."""
    return derive(key, "fingerprint of the key file").hex()


class UnsealError(Exception):
    """The sealed secret is damaged, from another context, or sealed with another key."""


def seal(key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Encrypt a secret with a 32-byte key. It can be unsealed only with the same `context`, its place of storage."""
    nonce = os.urandom(_NONCE)
    return _VERSION + nonce + _cipher(key).encrypt(nonce, plaintext, _VERSION + context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    cipher = _cipher(key)
    if sealed[:1] != _VERSION or len(sealed) < len(_VERSION) + _NONCE + _TAG:
        raise UnsealError("not a sealed secret of a known version")
    nonce, ciphertext = sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :]
    try:
        return cipher.decrypt(nonce, ciphertext, _VERSION + context)
    except InvalidTag as cause:
        raise UnsealError("the sealed secret was altered, moved or sealed with another key") from cause


def _cipher(key: bytes) -> AESGCM:
    if len(key) != KEY_BYTES:  # AESGCM would accept a shorter key as AES-128
        raise ValueError("a sealing key has 32 bytes")
    return AESGCM(key)
