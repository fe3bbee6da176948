"""Checks the installation's key against the fingerprint in the database.

On PostgreSQL, every node has the same key file. Only a new database gets a new one, and a node with a wrong or missing
key is refused before it writes anything. With SQLite, the key file is in the data directory, and a new one may replace
it.
"""

from pathlib import Path

from appliance.keys.keyfile import KEY_FILE, KeyFileError, fingerprint, load, load_or_create
from appliance.store import CheckKey, Store
from appliance.telemetry.log import get_logger

_MISSING = "missing, but this database has a key"
_WRONG = "wrong key file for this database"

log = get_logger("keys")


def key_check(data_dir: Path) -> CheckKey:
    def check(stored: str | None) -> None:
        file = data_dir / KEY_FILE
        if file.exists():
            own = fingerprint(load(data_dir))  # raises for a file without a valid key
            if stored not in (None, own):
                raise _unusable(file, _WRONG)
        elif stored is not None:
            raise _unusable(file, _MISSING)

    return check


async def shared_key(data_dir: Path, store: Store) -> bytes:
    """The key of an installation on PostgreSQL. Creates it for a new database. Raises KeyFileError."""
    file = data_dir / KEY_FILE
    created = not file.exists()
    if created and (await store.installation.key_fingerprint() is not None or await store.installation.has_secrets()):
        raise _unusable(file, _MISSING)
    key = load_or_create(data_dir)
    # Create the file first: a node that dies here starts again with the same key.
    if await store.installation.claim_key(fingerprint(key)) != fingerprint(key):
        if created:  # another node created its key first
            file.unlink()
            raise _unusable(file, _MISSING)
        raise _unusable(file, _WRONG)
    return key


async def record_own_key(data_dir: Path, store: Store, key: bytes, *, created: bool) -> None:
    """Store the fingerprint of the key in SQLite. Log if the key file changed since the last start."""
    known, own = await store.installation.key_fingerprint(), fingerprint(key)
    if known == own:
        return
    if known is not None and not created and await store.installation.has_secrets():
        event = "key file changed since the last start; secrets sealed with the old key are unreadable"
        log.warning(event, file=str(data_dir / KEY_FILE))
    await store.installation.replace_key(own)


def _unusable(file: Path, fault: str) -> KeyFileError:
    return KeyFileError(f"{file}: {fault}. Copy the key file from another node or from the backup.")
