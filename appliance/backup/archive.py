"""The format of a backup file: a tar archive that ends with a checksum of all bytes before it.

    appliance.db     the database, from the second block on
    appliance.key    the key that encrypts secrets in the database
    manifest.json    host, version and time of the backup; size and SHA-256 of both files
    seal.sha256      SHA-256 of every byte before this member

`tar` can unpack it without the appliance. It is not compressed, so that the database is written to its place in the
file, and read there, without a second copy. The checksum finds damage, not forgery. Reads and writes only files given.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable
from typing import IO

import msgspec

from appliance.keys.keyfile import KEY_BYTES, KEY_FILE
from appliance.store import FILE_NAME as DATABASE

MANIFEST = "manifest.json"
SEAL = "seal.sha256"
BEGIN = tarfile.BLOCKSIZE  # where the database begins
CHUNK = 1024 * 1024  # bytes read at a time
FORMAT = 1
LARGEST_MANIFEST = 64 * 1024

_BLOCK = tarfile.BLOCKSIZE
_TAIL = 2 * _BLOCK + 2 * _BLOCK  # bytes of the seal as a member, and of the two empty blocks that end an archive

BytesDone = Callable[[int], None]  # called with the number of further bytes done
FractionDone = Callable[[float], None]  # called with how much of the work is done, from 0 to 1


def share(on: FractionDone, begin: float, end: float, size: int) -> BytesDone:
    """Report bytes, of so many, as the share of the work from `begin` to `end`."""
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        on(begin + (end - begin) * min(1.0, done / max(1, size)))

    return more


class BrokenBackup(Exception):
    """The file is not a backup, or incomplete, or was altered; the text says which."""


class ArchivePart(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a backup says of itself."""

    format: int
    created_at: str
    hostname: str
    version: str
    schema: int
    files: dict[str, ArchivePart]


# ---- writing


def head(name: str, size: int, mtime: int) -> bytes:
    """The tar header of a member: one block, however large the member."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, mtime
    entry.mode = 0o400 if name == KEY_FILE else 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """What fills the last block of a member."""
    return b"\0" * (-size % _BLOCK)


def finish(
    file: IO[bytes], key: bytes, manifest: Callable[[dict[str, ArchivePart]], Manifest], mtime: int, on: BytesDone
) -> Manifest:
    """Complete a file of an empty block and a database: the header into that block, the other members, the seal."""
    size = file.seek(0, io.SEEK_END) - BEGIN
    file.write(padding(size))
    file.seek(0)
    file.write(head(DATABASE, size, mtime))
    file.seek(0)
    sealed, digest = hashlib.sha256(file.read(BEGIN)), hashlib.sha256()
    left = size
    while chunk := file.read(min(CHUNK, left)):
        sealed.update(chunk)
        digest.update(chunk)
        left -= len(chunk)
        on(len(chunk))
    key_part = ArchivePart(len(key), hashlib.sha256(key).hexdigest())
    made = manifest({DATABASE: ArchivePart(size, digest.hexdigest()), KEY_FILE: key_part})
    rest = padding(size) + _member(KEY_FILE, key, mtime)
    rest += _member(MANIFEST, msgspec.json.format(msgspec.json.encode(made)) + b"\n", mtime)
    sealed.update(rest)
    file.seek(BEGIN + size)
    file.write(rest + tail(sealed.hexdigest(), mtime))
    return made


def tail(digest: str, mtime: int) -> bytes:
    """The end of the file: the seal, and the two empty blocks that end an archive."""
    return _member(SEAL, f"{digest}\n".encode(), mtime) + b"\0" * (2 * _BLOCK)


def _member(name: str, content: bytes, mtime: int) -> bytes:
    return head(name, len(content), mtime) + content + padding(len(content))


# ---- reading


class OpenedBackup(msgspec.Struct, frozen=True):
    """A backup whose seal is right."""

    manifest: Manifest
    key: bytes
    size: int  # of the database, which begins at BEGIN


def read(file: IO[bytes], on: BytesDone) -> OpenedBackup:
    """Read a backup to its end; raises BrokenBackup unless every byte is as it was written."""
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    first = file.read(_BLOCK)
    header = _header(first)
    size = header.size
    sealed, digest = hashlib.sha256(first), hashlib.sha256()
    left = length - _TAIL - BEGIN
    if left < size:
        raise BrokenBackup("its end is missing")
    inside = size
    rest = bytearray()
    while left and (chunk := file.read(min(CHUNK, inside or CHUNK, left))):
        sealed.update(chunk)
        left -= len(chunk)
        on(len(chunk))
        if inside:
            digest.update(chunk)
            inside -= len(chunk)
        else:
            rest += chunk
            if len(rest) > LARGEST_MANIFEST:
                raise BrokenBackup("it was altered, or its end is missing")
    end = file.read()
    if end != tail(sealed.hexdigest(), int(header.mtime)):
        if len(end) == _TAIL and end.endswith(b"\0" * 2 * _BLOCK) and end.startswith(SEAL.encode()):
            raise BrokenBackup("it was altered since it was made: its seal is broken")
        raise BrokenBackup("its end is missing, or was altered")
    return _parts(bytes(rest), size, digest.hexdigest())


def _header(first: bytes) -> tarfile.TarInfo:
    """The tar header of the database."""
    try:
        entry = tarfile.TarInfo.frombuf(first, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise BrokenBackup("it does not begin like one") from None
    if entry.name != DATABASE or entry.size < 0:
        raise BrokenBackup("it does not begin like one")
    return entry


def _parts(rest: bytes, size: int, digest: str) -> OpenedBackup:
    """Parse what follows the database; its seal is right, but it may have been made by another program."""
    try:
        members = _members(rest[len(padding(size)) :])
        manifest = msgspec.json.decode(members[MANIFEST], type=Manifest)
        key = members[KEY_FILE]
        _check(manifest, {DATABASE: (size, digest), KEY_FILE: (len(key), hashlib.sha256(key).hexdigest())})
    except KeyError as error:
        raise BrokenBackup(f"it was made by another program or version: there is no {error.args[0]} in it") from None
    except (tarfile.TarError, ValueError) as error:
        raise BrokenBackup(f"it was made by another program or version: {error}") from None
    return OpenedBackup(manifest, key, size)


def _members(text: bytes) -> dict[str, bytes]:
    """The plain files of an archive, by name; links and sparse files are ignored."""
    members = {}
    with tarfile.open(fileobj=io.BytesIO(text + b"\0" * 2 * _BLOCK), mode="r:") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            if content is not None:
                members[entry.name] = content.read()
    return members


def _check(manifest: Manifest, parts: dict[str, tuple[int, str]]) -> None:
    if manifest.format != FORMAT:
        what = f"it is of format {manifest.format}, this version reads only {FORMAT}"
        raise BrokenBackup(f"{what}: use the newer appliance")
    if not f"{manifest.created_at}{manifest.hostname}{manifest.version}".isprintable():
        raise BrokenBackup("its manifest holds control characters")  # they are shown on terminals
    for name, (size, digest) in parts.items():
        if manifest.files[name] != ArchivePart(size, digest):
            raise BrokenBackup(f"{name} in it is not what its manifest says")
    if parts[KEY_FILE][0] != KEY_BYTES:
        raise BrokenBackup(f"{KEY_FILE} in it does not hold {KEY_BYTES} bytes")
