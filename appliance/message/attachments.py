"""In charge of attachments: judging each one and turning its base64 into bytes."""

import re
from collections.abc import Sequence

import pybase64
from msgspec import UNSET, Struct

from appliance.errors import Code, Refused, invalid
from appliance.message import limits, media_types
from appliance.message.characters import fault_in_line
from appliance.message.fields import Attachment

_CONTENT_ID = re.compile(r"[A-Za-z0-9._%+@-]{1,128}")  # of RFC 2392's characters, those safe in HTML and headers


class File(Struct, frozen=True, gc=False):
    """One file of a message, decoded."""

    filename: str
    content: bytes
    content_type: str
    content_id: str | None

    @property
    def size(self) -> int:
        """Bytes of the file itself."""
        return len(self.content)


def read_files(attachments: Sequence[Attachment]) -> tuple[File, ...]:
    """Judge and decode the attachments; each one's base64 is released as soon as it is decoded."""
    if len(attachments) > limits.ATTACHMENTS:
        raise invalid("attachments", f"at most {limits.ATTACHMENTS} attachments are allowed")
    _check_total(attachments)
    files = tuple(_read(each, f"attachments[{index}]") for index, each in enumerate(attachments))
    _check_content_ids(files)
    return files


def _check_total(attachments: Sequence[Attachment]) -> None:
    if sum(map(_encoded_size, attachments)) > limits.MESSAGE_SIZE:
        raise Refused(Code.PAYLOAD_TOO_LARGE, "attachments: together they are larger than a message may be (10 MiB)")


def _encoded_size(attachment: Attachment) -> int:
    """Characters of its base64, line breaks aside: those are written anew."""
    content = attachment.content
    return len(content) - content.count("\n") - content.count("\r") if "\n" in content else len(content)


def _read(attachment: Attachment, field: str) -> File:
    filename = _check_filename(attachment.filename, f"{field}.filename")
    if attachment.content_type is UNSET:
        content_type = media_types.of_file(filename)
    else:
        content_type = media_types.check(attachment.content_type, f"{field}.content_type")
    content_id = None if attachment.content_id is UNSET else attachment.content_id
    if content_id is not None and not _CONTENT_ID.fullmatch(content_id):
        raise invalid(f"{field}.content_id", "expected 1 to 128 of A-Z, a-z, 0-9 and `._%+@-`")
    content = _decode(attachment.content, f"{field}.content")
    attachment.content = ""  # a large message would otherwise be in memory twice
    return File(filename, content, content_type, content_id)


def _check_filename(filename: str, field: str) -> str:
    if not filename.strip():
        raise invalid(field, "must not be empty")
    if fault := fault_in_line(filename):
        raise invalid(field, f"must not contain {fault}")
    if "/" in filename or "\\" in filename or filename in (".", ".."):
        raise invalid(field, "expected a file name without a path")
    if len(filename.encode()) > limits.FILENAME_LENGTH:
        raise invalid(field, f"must have at most {limits.FILENAME_LENGTH} octets")
    return filename


def _decode(content: str, field: str) -> bytes:
    """The file of a base64 text, which encoders write in lines, and some without padding (RFC 4648 3.1, 3.2)."""
    if "\n" in content or "\r" in content:
        content = content.replace("\r", "").replace("\n", "")
    if (missing := -len(content) % 4) and "=" not in content:
        content += "=" * missing
    try:
        return pybase64.b64decode(content, validate=True)
    except ValueError as cause:  # binascii.Error is one; so is the refusal of a string that is not ASCII
        raise invalid(field, "not standard base64") from cause


def _check_content_ids(files: Sequence[File]) -> None:
    seen: set[str] = set()
    for index, file in enumerate(files):
        if file.content_id is None:
            continue
        if file.content_id in seen:
            raise invalid(f"attachments[{index}].content_id", "another attachment has the same content_id")
        seen.add(file.content_id)
