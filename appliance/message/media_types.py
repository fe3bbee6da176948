"""In charge of a file's media type: the one its name implies, and whether a given one may be used.

The table is our own. The standard library's reads the machine's files, so that two servers would disagree.
"""

import re

from appliance.errors import invalid
from appliance.message.limits import CONTENT_TYPE_LENGTH

UNKNOWN = "application/octet-stream"

_BY_EXTENSION = {
    "7z": "application/x-7z-compressed",
    "aac": "audio/aac",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "bz2": "application/x-bzip2",
    "css": "text/css",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "epub": "application/epub+zip",
    "flac": "audio/flac",
    "gif": "image/gif",
    "gz": "application/gzip",
    "heic": "image/heic",
    "htm": "text/html",
    "html": "text/html",
    "ico": "image/vnd.microsoft.icon",
    "ics": "text/calendar",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "log": "text/plain",
    "m4a": "audio/mp4",
    "md": "text/markdown",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odt": "application/vnd.oasis.opendocument.text",
    "ogg": "audio/ogg",
    "otf": "font/otf",
    "p7s": "application/pkcs7-signature",
    "pdf": "application/pdf",
    "pkpass": "application/vnd.apple.pkpass",
    "png": "image/png",
    "ppt": "application/vnd.ms-powerpoint",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "ps": "application/postscript",
    "rar": "application/vnd.rar",
    "rtf": "application/rtf",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tgz": "application/gzip",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "tsv": "text/tab-separated-values",
    "ttf": "font/ttf",
    "txt": "text/plain",
    "vcf": "text/vcard",
    "wasm": "application/wasm",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zst": "application/zstd",
}

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 (RFC 2045 5.1's word for it, not a secret)
_QUOTED = r'"[ !#-\[\]-~]*"'  # without escapes: nothing here needs them
_MEDIA_TYPE = re.compile(rf"({_TOKEN})/{_TOKEN}(?:; ?{_TOKEN}=(?:{_TOKEN}|{_QUOTED}))*")


def of_file(filename: str) -> str:
    """The media type that the file name's extension implies."""
    _, dot, extension = filename.rpartition(".")
    return _BY_EXTENSION.get(extension.lower(), UNKNOWN) if dot else UNKNOWN


def check(content_type: str, field: str) -> str:
    """The media type itself when it may stand in a message.

    `multipart/…` and `message/…` may not: RFC 2045 6.4 forbids base64 on them, so a reader would take our bytes apart.
    """
    found = _MEDIA_TYPE.fullmatch(content_type)
    if len(content_type) > CONTENT_TYPE_LENGTH or found is None:
        raise invalid(field, "expected a media type such as `image/png` or `text/plain; charset=utf-8`")
    if found[1].lower() in ("multipart", "message"):
        raise invalid(field, f"{found[1].lower()} types cannot be attached; use {UNKNOWN}")
    return content_type
