"""The format of a backup file: whatever byte is altered, missing or added, it is refused."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from appliance.backup import archive

KEY = bytes(range(32))
CONTENT = bytes(range(256)) * 11 + b"not a whole block"
MTIME = 1_794_664_800


def made(content: bytes = CONTENT, key: bytes = KEY, format_: int = archive.FORMAT) -> bytes:
    file = io.BytesIO(b"\0" * archive.BEGIN + content)

    def manifest(parts: dict[str, archive.ArchivePart]) -> archive.Manifest:
        return archive.Manifest(format_, "2026-11-14T14:00:00.000Z", "mail.example.com", "1.0", 2, parts)

    archive.finish(file, key, manifest, MTIME, lambda _: None)
    return file.getvalue()


def read(content: bytes) -> archive.OpenedBackup:
    return archive.read(io.BytesIO(content), lambda _: None)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, archive.CHUNK, archive.CHUNK + 1])
def test_what_was_written_is_read(size: int) -> None:
    seen: list[int] = []
    content = made(b"x" * size)
    opened = archive.read(io.BytesIO(content), seen.append)
    assert (opened.key, opened.size) == (KEY, size)
    assert opened.manifest.files["appliance.db"].size == size
    assert sum(seen) == len(content) - archive._TAIL


def test_tar_reads_it_too(tmp_path: Path) -> None:
    """Without the appliance, `tar` and `sha256sum` read and check everything."""
    file = tmp_path / "backup.tar"
    file.write_bytes(made())
    subprocess.run(["tar", "xf", file], cwd=tmp_path, check=True)
    assert (tmp_path / "appliance.db").read_bytes() == CONTENT
    assert (tmp_path / "appliance.key").read_bytes() == KEY
    before = file.read_bytes()[: -archive._TAIL]
    summed = subprocess.run(["sha256sum"], input=before, capture_output=True, check=True).stdout.split()[0]
    assert (tmp_path / "seal.sha256").read_bytes().strip() == summed


def test_no_altered_byte_gets_past() -> None:
    content = made()
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 0x10
        with pytest.raises(archive.BrokenBackup):
            read(bytes(altered))


def test_no_missing_or_added_end_gets_past() -> None:
    content = made()
    for length in range(0, len(content), 7):
        with pytest.raises(archive.BrokenBackup):
            read(content[:length])
    for more in (b"\0", b"x", b"\0" * 512, content):
        with pytest.raises(archive.BrokenBackup):
            read(content + more)


@pytest.mark.parametrize("size", [0, 8 * 2**30 - 1, 8 * 2**30, 2**45])
def test_the_head_is_one_block_however_large_the_database(size: int) -> None:
    head = archive.head("appliance.db", size, MTIME)
    assert len(head) == archive.BEGIN
    assert tarfile.TarInfo.frombuf(head, "utf-8", "strict").size == size


def test_what_lies_about_its_size_is_refused_without_reading_it() -> None:
    content = made()
    for size in (len(CONTENT) - 512, len(CONTENT) + 512, 1 << 40):
        with pytest.raises(archive.BrokenBackup):
            read(archive.head("appliance.db", size, MTIME) + content[archive.BEGIN :])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "does not begin like one"),
        (b"\x1f\x8b" + b"x" * 5000, "does not begin like one"),
        (archive.head("something.else", 10, MTIME) + b"x" * 5000, "does not begin like one"),
        (made()[:3000], "its end is missing"),
        (made(key=b"short"), "does not hold 32 bytes"),
        (made(format_=2), "of format 2, this version reads only 1"),
    ],
)
def test_the_reason_is_told(content: bytes, reason: str) -> None:
    with pytest.raises(archive.BrokenBackup, match=reason):
        read(content)


# ---- forged files: their seal is right


def link(name: str, target: str) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry.tobuf(tarfile.GNU_FORMAT)


def member(name: str, content: bytes, size: int | None = None, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = len(content) if size is None else size, kind
    return entry.tobuf(tarfile.GNU_FORMAT) + content + archive.padding(len(content))


def forged(rest: bytes) -> bytes:
    head = archive.head("appliance.db", len(CONTENT), MTIME)
    body = head + CONTENT + archive.padding(len(CONTENT)) + rest
    return body + archive.tail(hashlib.sha256(body).hexdigest(), MTIME)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"rubbish" * 512,
        b"\x1f\x8b" + b"\0" * 510,  # would be unpacked by who guesses
        member("manifest.json", b"{}", size=2**50),
        member("manifest.json", b"{}"),
        member("manifest.json", b"\xff\xfe"),
        member("manifest.json", b"", kind=tarfile.DIRTYPE),
        member("manifest.json", b"", kind=tarfile.GNUTYPE_SPARSE),
        member("x", b"99999999 size=-1", kind=tarfile.XHDTYPE),
        member("x", b"a" * 512, size=2**50, kind=tarfile.GNUTYPE_LONGNAME),
        link("manifest.json", "/etc/passwd") + link("appliance.key", "../../etc/shadow"),
        link("manifest.json", "appliance.key") + link("appliance.key", "manifest.json"),
    ],
)
def test_a_forged_file_is_refused_in_our_own_words(rest: bytes) -> None:
    with pytest.raises(archive.BrokenBackup, match="it was made by another program or version"):
        read(forged(rest))


def test_a_manifest_cannot_drive_a_terminal() -> None:
    def manifest(parts: dict[str, archive.ArchivePart]) -> archive.Manifest:
        return archive.Manifest(archive.FORMAT, "2026-11-14T14:00:00.000Z", "\x1b[2J", "1.0", 2, parts)

    file = io.BytesIO(b"\0" * archive.BEGIN + CONTENT)
    archive.finish(file, KEY, manifest, MTIME, lambda _: None)
    with pytest.raises(archive.BrokenBackup, match="control characters"):
        read(file.getvalue())
