"""Checks the name, type and content id of attachments, and decodes their base64. Pure: no I/O, no state.

The table of media types is our own: the standard library reads the machine's files, so two servers would differ.
"""

import re
from collections.abc import Sequence
from typing import Final

import pybase64
from msgspec import UNSET, Struct

from appliance.errors import Code, Refused, invalid
from appliance.message import limits
from appliance.message.characters import fault_in_line
from appliance.message.schema import Attachment

UNKNOWN_TYPE: Final = "application/octet-stream"

_CONTENT_ID: Final = re.compile(r"[A-Za-z0-9._%+@-]{1,128}")  # RFC 2392, only characters safe in HTML and headers
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 (RFC 2045 5.1's word for it, not a secret)
_QUOTED: Final = r'"[ !#-\[\]-~]*"'  # without escapes
_MEDIA_TYPE: Final = re.compile(rf"({_TOKEN})/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))*")

_BY_EXTENSION: Final = {
    "7z": "application/x-7z-compressed", "aac": "audio/aac", "avif": "image/avif", "bmp": "image/bmp",
    "bz2": "application/x-bzip2", "css": "text/css", "csv": "text/csv", "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip", "flac": "audio/flac", "gif": "image/gif", "gz": "application/gzip",
    "heic": "image/heic", "htm": "text/html", "html": "text/html", "ico": "image/vnd.microsoft.icon",
    "ics": "text/calendar", "jpeg": "image/jpeg", "jpg": "image/jpeg", "js": "text/javascript",
    "json": "application/json", "log": "text/plain", "m4a": "audio/mp4", "md": "text/markdown",
    "mov": "video/quicktime", "mp3": "audio/mpeg", "mp4": "video/mp4",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet", "odt": "application/vnd.oasis.opendocument.text",
    "ogg": "audio/ogg", "otf": "font/otf", "p7s": "application/pkcs7-signature", "pdf": "application/pdf",
    "pkpass": "application/vnd.apple.pkpass", "png": "image/png", "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "ps": "application/postscript", "rar": "application/vnd.rar", "rtf": "application/rtf",
    "svg": "image/svg+xml", "tar": "application/x-tar", "tgz": "application/gzip", "tif": "image/tiff",
    "tiff": "image/tiff", "tsv": "text/tab-separated-values", "ttf": "font/ttf", "txt": "text/plain",
    "vcf": "text/vcard", "wasm": "application/wasm", "wav": "audio/wav", "webm": "video/webm",
    "webp": "image/webp", "woff": "font/woff", "woff2": "font/woff2", "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xml": "application/xml",
    "yaml": "application/yaml", "yml": "application/yaml", "zip": "application/zip", "zst": "application/zstd",
}  # fmt: skip


class File(Struct, frozen=True, gc=False):
    filename: str
    content: bytes
    content_type: str
    content_id: str | None


def read_files(attachments: Sequence[Attachment]) -> tuple[File, ...]:
    """Check and decode the attachments, and release the base64 of each."""
    if len(attachments) > limits.ATTACHMENTS:
        raise invalid("attachments", f"at most {limits.ATTACHMENTS} attachments are allowed")
    if sum(map(_encoded_size, attachments)) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, "attachments: together they are larger than a message may be (10 MiB)")
    files = tuple(_read(file, f"attachments[{index}]") for index, file in enumerate(attachments))
    seen: set[str] = set()
    for index, file in enumerate(files):
        if file.content_id in seen:
            raise invalid(f"attachments[{index}].content_id", "another attachment has the same content_id")
        if file.content_id is not None:
            seen.add(file.content_id)
    return files


def _encoded_size(attachment: Attachment) -> int:
    """Return the length of the base64 without line breaks."""
    content = attachment.content
    return len(content) - content.count("\n") - content.count("\r") if "\n" in content else len(content)


def _read(attachment: Attachment, field: str) -> File:
    filename, content_type = attachment.filename, attachment.content_type
    _check_filename(filename, f"{field}.filename")
    if content_type is UNSET:
        _, dot, extension = filename.rpartition(".")
        content_type = _BY_EXTENSION.get(extension.lower(), UNKNOWN_TYPE) if dot else UNKNOWN_TYPE
    else:
        media_type = _MEDIA_TYPE.fullmatch(content_type)
        if len(content_type) > limits.CONTENT_TYPE_LENGTH or media_type is None:
            reason = "expected a media type such as `image/png` or `text/plain; charset=utf-8`"
            raise invalid(f"{field}.content_type", reason)
        # RFC 2045 6.4 forbids base64 for these two: a mail reader would parse the bytes as parts.
        if (kind := media_type[1].lower()) in ("multipart", "message"):
            raise invalid(f"{field}.content_type", f"{kind} types cannot be attached; use {UNKNOWN_TYPE}")
    content_id = None if attachment.content_id is UNSET else attachment.content_id
    if content_id is not None and not _CONTENT_ID.fullmatch(content_id):
        raise invalid(f"{field}.content_id", "expected 1 to 128 of A-Z, a-z, 0-9 and `._%+@-`")
    content = _decode(attachment.content, f"{field}.content")
    attachment.content = ""  # so that a large message is not in memory twice
    return File(filename, content, content_type, content_id)


def _check_filename(filename: str, field: str) -> None:
    if not filename.strip():
        raise invalid(field, "must not be empty")
    if fault := fault_in_line(filename):
        raise invalid(field, f"must not contain {fault}")
    if "/" in filename or "\\" in filename or filename in (".", ".."):
        raise invalid(field, "expected a file name without a path")
    if len(filename.encode()) > limits.FILENAME_LENGTH:
        raise invalid(field, f"must have at most {limits.FILENAME_LENGTH} octets")


def _decode(content: str, field: str) -> bytes:
    """Decode base64 with optional line breaks and padding (RFC 4648 3.1, 3.2)."""
    if "\n" in content or "\r" in content:
        content = content.replace("\r", "").replace("\n", "")
    if (missing := -len(content) % 4) and "=" not in content:
        content += "=" * missing
    try:
        return pybase64.b64decode(content, validate=True)
    except ValueError as cause:  # binascii.Error, or a string that is not ASCII
        raise invalid(field, "not standard base64") from cause
