"""Writes small files that only their owner may read, whole or not at all: keys and certificates."""

import os
from pathlib import Path


def write_private_file(file: Path, content: bytes) -> None:
    """Write a small file that only its owner may read: whole or not at all, and synced to disk."""
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    draft.rename(file)
    directory = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # else a crash could bring the old name back
    finally:
        os.close(directory)
