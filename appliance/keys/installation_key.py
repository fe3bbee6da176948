"""The installation's key, held to the fingerprint in the database.

On PostgreSQL every node has the same key file: one is created only for a database that is new, and a node without the
right one is refused before it has written anything. A file of SQLite's has its key beside it, and goes on without.
"""

from pathlib import Path

from appliance.keys.keyfile import KEY_FILE, KeyFileError, fingerprint, load, load_or_create
from appliance.store import CheckKey, Store
from appliance.telemetry.log import get_logger

log = get_logger("keys")


def key_check(data_dir: Path) -> CheckKey:
    """A check of this directory's key file. Raises KeyFileError."""

    def check(stored: str | None) -> None:
        file = data_dir / KEY_FILE
        if file.exists():
            own = fingerprint(load(data_dir))  # a file that holds no key is refused in any case
            if stored not in (None, own):
                raise _wrong(file)
        elif stored is not None:
            raise _missing(file)

    return check


async def shared_key(data_dir: Path, store: Store) -> bytes:
    """The key of an installation on PostgreSQL, which is made for a new database. Raises KeyFileError."""
    file = data_dir / KEY_FILE
    created = not file.exists()
    if created and (await store.installation.key_fingerprint() is not None or await store.installation.has_secrets()):
        raise _missing(file)
    key = load_or_create(data_dir)
    # After the file, not before: a node that dies in between starts again with the same key.
    if await store.installation.claim_key(fingerprint(key)) != fingerprint(key):
        if created:  # another node was faster
            file.unlink()
            raise _missing(file)
        raise _wrong(file)
    return key


async def record_own_key(data_dir: Path, store: Store, key: bytes, *, created: bool) -> None:
    """Have SQLite's database name the key in use; a file that was exchanged since the last start is told."""
    known, own = await store.installation.key_fingerprint(), fingerprint(key)
    if known == own:
        return
    if known is not None and not created and await store.installation.has_secrets():
        event = "the key file is not that of the last start, and opens nothing that was sealed with that one"
        log.warning(event, file=str(data_dir / KEY_FILE))
    await store.installation.replace_key(own)


def _missing(file: Path) -> KeyFileError:
    text = "is missing, and this database has one: copy the key file of another node, or that kept with the backup"
    return KeyFileError(f"{file}: {text}")


def _wrong(file: Path) -> KeyFileError:
    text = "is not the key file of this database: copy that of another node, or that kept with the backup"
    return KeyFileError(f"{file}: {text}")
