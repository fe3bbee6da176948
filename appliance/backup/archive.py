"""In charge of what a backup file looks like: a tar archive with a seal at its end that no altered byte gets past.

    appliance.db     the database, from the second block on
    appliance.key    without which no signing key in the database can be opened
    manifest.json    who made it and when; size and SHA-256 of both
    seal.sha256      SHA-256 of every byte before this member

Whoever has no appliance at hand can take it apart with `tar`. It is not compressed: a database can then be written to
its place in the file, and read there, without a second copy of it. PURE, but for what is read and written of a file
that is given.
"""

import hashlib
import io
import tarfile
from collections.abc import Callable
from typing import IO

import msgspec

from appliance.keys.keyfile import KEY_BYTES
from appliance.keys.keyfile import KEY_FILE as KEY
from appliance.store import FILE_NAME as DATABASE

MANIFEST = "manifest.json"
SEAL = "seal.sha256"
BLOCK = tarfile.BLOCKSIZE
BEGIN = BLOCK  # where the database begins
CHUNK = 1024 * 1024  # bytes read at a time
FORMAT = 1
DIGEST = 65  # characters of the seal: the digest and a line end
TAIL = 2 * BLOCK + 2 * BLOCK  # bytes of the seal as a member, and of the two empty blocks that end an archive
LARGEST_MANIFEST = 64 * 1024

Bytes = Callable[[int], None]  # told how many more bytes are done


class Broken(Exception):
    """The file is no backup of ours, or not all of it, or was altered; the text says which."""


class Part(msgspec.Struct, frozen=True):
    """A file in the backup."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a backup says of itself."""

    format: int
    created_at: str
    hostname: str
    version: str
    schema: int
    files: dict[str, Part]


# ---- making one


def head(name: str, size: int, mtime: int) -> bytes:
    """What stands before a member: one block, however large the member."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, mtime
    entry.mode = 0o400 if name == KEY else 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """What fills the last block of a member."""
    return b"\0" * (-size % BLOCK)


def finish(file: IO[bytes], key: bytes, manifest: Callable[[dict[str, Part]], Manifest], mtime: int, on: Bytes) -> None:
    """Complete a file that has room for a head and then a database: everything else, and the seal."""
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
    parts = {DATABASE: Part(size, digest.hexdigest()), KEY: Part(len(key), hashlib.sha256(key).hexdigest())}
    rest = padding(size) + _member(KEY, key, mtime)
    rest += _member(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest(parts))) + b"\n", mtime)
    sealed.update(rest)
    file.seek(BEGIN + size)
    file.write(rest + tail(sealed.hexdigest(), mtime))


def tail(digest: str, mtime: int) -> bytes:
    """The end of the file: the seal, and what ends an archive."""
    return _member(SEAL, f"{digest}\n".encode(), mtime) + b"\0" * (2 * BLOCK)


def _member(name: str, content: bytes, mtime: int) -> bytes:
    return head(name, len(content), mtime) + content + padding(len(content))


# ---- reading one


class Opened(msgspec.Struct, frozen=True):
    """A backup whose seal is whole."""

    manifest: Manifest
    key: bytes
    size: int  # of the database, which begins at BEGIN


def read(file: IO[bytes], on: Bytes) -> Opened:
    """Read a backup to its end; raises Broken unless every byte is as it was written."""
    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    first = file.read(BLOCK)
    size = _database_size(first)
    sealed, digest = hashlib.sha256(first), hashlib.sha256()
    left = length - TAIL - BEGIN
    if left < size:
        raise Broken("its end is missing")
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
                raise Broken("it was altered, or its end is missing")
    end = file.read()
    if end != tail(sealed.hexdigest(), _mtime(first)):
        raise Broken(_what_is_wrong(end))
    return _parts(bytes(rest), size, digest.hexdigest())


def _database_size(first: bytes) -> int:
    try:
        entry = tarfile.TarInfo.frombuf(first, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise Broken("it does not begin like one") from None
    if entry.name != DATABASE or entry.size < 0:
        raise Broken("it does not begin like one")
    return entry.size


def _mtime(first: bytes) -> int:
    return int(tarfile.TarInfo.frombuf(first, "utf-8", "strict").mtime)


def _what_is_wrong(end: bytes) -> str:
    whole = len(end) == TAIL and end.endswith(b"\0" * 2 * BLOCK) and end.startswith(SEAL.encode())
    return "it was altered since it was made: its seal is broken" if whole else "its end is missing, or was altered"


def _parts(rest: bytes, size: int, digest: str) -> Opened:
    """What follows the database; a whole seal tells of no damage, but anybody can put one on anything."""
    try:
        members = _members(rest[len(padding(size)) :])
        manifest = msgspec.json.decode(members[MANIFEST], type=Manifest)
        key = members[KEY]
        _check(manifest, {DATABASE: (size, digest), KEY: (len(key), hashlib.sha256(key).hexdigest())})
    except KeyError as error:
        raise Broken(f"it was made by another program or version: there is no {error.args[0]} in it") from None
    except (tarfile.TarError, ValueError) as error:
        raise Broken(f"it was made by another program or version: {error}") from None
    return Opened(manifest, key, size)


def _members(text: bytes) -> dict[str, bytes]:
    """The plain files of an archive, by name; links, and whatever would have to be unpacked first, are none of ours."""
    members = {}
    with tarfile.open(fileobj=io.BytesIO(text + b"\0" * 2 * BLOCK), mode="r:") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isreg() and not entry.issparse() else None
            if content is not None:
                members[entry.name] = content.read()
    return members


def _check(manifest: Manifest, found: dict[str, tuple[int, str]]) -> None:
    if manifest.format != FORMAT:
        raise Broken(f"it is of format {manifest.format}, this version reads only {FORMAT}: use the newer appliance")
    if not f"{manifest.created_at}{manifest.hostname}{manifest.version}".isprintable():
        raise Broken("its manifest holds control characters")  # it is shown on terminals, and may be from anywhere
    for name, (size, digest) in found.items():
        if manifest.files[name] != Part(size, digest):
            raise Broken(f"{name} in it is not what its manifest says")
    if found[KEY][0] != KEY_BYTES:
        raise Broken(f"{KEY} in it does not hold {KEY_BYTES} bytes")
