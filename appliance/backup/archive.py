"""The format of a backup file, a tar archive that ends with a checksum of all bytes before it; and its verification.

    appliance.db     the database, from the second block on
    appliance.key    the key that encrypts secrets in the database
    manifest.json    host, version and time of the backup; size and SHA-256 of both files
    seal.sha256      SHA-256 of every byte before this member

`tar` can unpack it without the appliance. It is not compressed, so that SQLite writes and reads the database in its
place in the file, without a second copy. The checksum finds damage, not forgery.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from appliance.keys.dkim_keys import open_signing_key
from appliance.keys.keyfile import KEY_BYTES, KEY_FILE, UnsealError
from appliance.keys.secrets import open_totp_secret, open_webhook_secret
from appliance.store import FILE_NAME as DATABASE
from appliance.store import Contents, Damaged, NewerDatabase, examine_inside

MANIFEST = "manifest.json"
SEAL = "seal.sha256"
BEGIN = tarfile.BLOCKSIZE  # where the database begins
CHUNK = 1024 * 1024  # bytes read at a time
FORMAT = 1
LARGEST_MANIFEST = 64 * 1024
READING = 0.5  # share of a verification; the other half is the database's own check

_END = b"\0" * 2 * tarfile.BLOCKSIZE  # of every tar archive
_TAIL = 2 * tarfile.BLOCKSIZE + len(_END)  # bytes of the seal as a member, and of the end

BytesDone = Callable[[int], None]  # called with the number of further bytes done
FractionDone = Callable[[float], None]  # called with how much of the work is done, from 0 to 1


class BrokenBackup(Exception):
    """The file is not a backup, or incomplete, or was altered; the text says which."""


class ArchivePart(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    format: int
    created_at: str
    hostname: str
    version: str
    schema: int
    files: dict[str, ArchivePart]


class OpenedBackup(msgspec.Struct, frozen=True):
    """A backup whose seal is right."""

    manifest: Manifest
    key: bytes
    size: int  # of the database, which begins at BEGIN


def share(on: FractionDone, begin: float, end: float, size: int) -> BytesDone:
    """Report bytes, of so many, as the share of the work from `begin` to `end`."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        on(begin + (end - begin) * min(1.0, done / max(1, size)))

    return more


def chunks(file: IO[bytes], size: int, on: BytesDone) -> Iterator[bytes]:
    while size and (chunk := file.read(min(CHUNK, size))):
        yield chunk
        size -= len(chunk)
        on(len(chunk))


# ---- writing
def head(name: str, size: int, mtime: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, mtime
    entry.mode = 0o400 if name == KEY_FILE else 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)


def finish(
    file: IO[bytes], key: bytes, manifest: Callable[[dict[str, ArchivePart]], Manifest], mtime: int, on: BytesDone
) -> Manifest:
    """Complete a file of an empty block and a database: the header into that block, the other members, the seal."""
    size = file.seek(0, io.SEEK_END) - BEGIN
    first = head(DATABASE, size, mtime)
    file.seek(0)
    file.write(first)
    file.seek(BEGIN)
    sealed, digest = hashlib.sha256(first), hashlib.sha256()
    for chunk in chunks(file, size, on):
        sealed.update(chunk)
        digest.update(chunk)
    key_part = ArchivePart(len(key), hashlib.sha256(key).hexdigest())
    made = manifest({DATABASE: ArchivePart(size, digest.hexdigest()), KEY_FILE: key_part})
    description = msgspec.json.format(msgspec.json.encode(made)) + b"\n"
    members = padding(size) + _member(KEY_FILE, key, mtime) + _member(MANIFEST, description, mtime)
    sealed.update(members)
    file.seek(BEGIN + size)
    file.write(members + tail(sealed.hexdigest(), mtime))
    return made


def tail(digest: str, mtime: int) -> bytes:
    """Return the last bytes of the file: the seal, and the end of an archive."""
    return _member(SEAL, f"{digest}\n".encode(), mtime) + _END


def _member(name: str, content: bytes, mtime: int) -> bytes:
    return head(name, len(content), mtime) + content + padding(len(content))


# ---- reading
def read(file: IO[bytes], on: BytesDone) -> OpenedBackup:
    """Read a backup to its end; raise BrokenBackup unless every byte is as it was written."""
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        header = tarfile.TarInfo.frombuf(file.read(BEGIN), "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise BrokenBackup("it does not begin like one") from None
    if header.name != DATABASE or header.size < 0:
        raise BrokenBackup("it does not begin like one")
    members_at = BEGIN + header.size + len(padding(header.size))
    if length % tarfile.BLOCKSIZE or not members_at <= length - _TAIL <= members_at + LARGEST_MANIFEST:
        raise BrokenBackup("its end is missing, or it was altered")
    file.seek(0)
    sealed = hashlib.sha256()
    for chunk in chunks(file, length - _TAIL, on):
        sealed.update(chunk)
    if file.read() != tail(sealed.hexdigest(), int(header.mtime)):
        raise BrokenBackup("it was altered, or its end is missing: its seal is broken")
    file.seek(members_at)
    return _opened(file.read(length - _TAIL - members_at), header.size)


def _opened(members: bytes, size: int) -> OpenedBackup:
    """Parse the members after the database. The seal is right, but another program may have made it."""
    contents = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(members + _END), mode="r:") as archive:
            for entry in archive:
                if entry.isreg() and not entry.issparse() and (content := archive.extractfile(entry)) is not None:
                    contents[entry.name] = content.read()
        manifest, key = msgspec.json.decode(contents[MANIFEST], type=Manifest), contents[KEY_FILE]
    except KeyError as error:
        raise BrokenBackup(f"it was made by another program or version: there is no {error.args[0]} in it") from None
    except (tarfile.TarError, ValueError) as error:
        raise BrokenBackup(f"it was made by another program or version: {error}") from None
    if manifest.format != FORMAT:
        text = f"it is of format {manifest.format}, this version reads only {FORMAT}"
        raise BrokenBackup(f"{text}: use the newer appliance")
    if not f"{manifest.created_at}{manifest.hostname}{manifest.version}".isprintable():
        raise BrokenBackup("its manifest holds control characters")  # they are shown on terminals
    if len(key) != KEY_BYTES:
        raise BrokenBackup(f"{KEY_FILE} in it does not hold {KEY_BYTES} bytes")
    return OpenedBackup(manifest, key, size)


# ---- verification
class Verified(OpenedBackup, frozen=True):
    """A backup that can be restored."""

    contents: Contents


def verify(path: Path, on: FractionDone) -> Verified:
    """Check the seal, the database, and the key to its secrets; raise BrokenBackup if the backup cannot be restored."""
    with path.open("rb") as file:
        opened = read(file, share(on, 0.0, READING, path.stat().st_size))
    try:
        contents = examine_inside(path, BEGIN, opened.size)
    except (Damaged, NewerDatabase) as error:
        raise BrokenBackup(str(error)) from error
    for dkim_key in contents.dkim_keys:
        with _naming(f"the signing keys of {dkim_key.domain}"):
            open_signing_key(opened.key, dkim_key.account_id, dkim_key.domain, dkim_key.selector, dkim_key.private_key)
    for secret in contents.webhook_secrets:
        with _naming(f"the webhook secret of {secret.account}"):
            open_webhook_secret(opened.key, secret.webhook_id, secret.sealed)
    for factor in contents.second_factors:
        with _naming(f"the second factor of {factor.email}"):
            open_totp_secret(opened.key, factor.user_id, factor.sealed)
    on(1.0)
    return Verified(opened.manifest, opened.key, opened.size, contents)


@contextmanager
def _naming(secret: str) -> Iterator[None]:
    try:
        yield
    except UnsealError:
        text = f"the key in it does not open {secret}: the key file was replaced before it was made"
        raise BrokenBackup(text) from None
