"""The installation's key: a file beside the database, from which all other keys are derived."""

import os
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_FILE = "appliance.key"
KEY_BYTES = 32


class KeyFileError(Exception):
    """The key file exists and cannot be used; the text says what to do."""


def load_or_create(data_dir: Path) -> bytes:
    """The installation's key, generated at the first start; readable by its owner only."""
    path = data_dir / KEY_FILE
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise KeyFileError(f"{path}: must hold {KEY_BYTES} bytes, holds {len(key)}: restore it from the backup")
    return key


def _create(path: Path) -> None:
    """Write the key whole or not at all, and never over another, which would make all secrets unreadable."""
    unfinished = path.with_suffix(f".{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(KEY_BYTES))
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):  # another process was faster: its key counts
        os.link(unfinished, path)
    unfinished.unlink()
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def derive(key: bytes, purpose: str) -> bytes:
    """A key for one purpose, independent of those for others."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode()).derive(key)
