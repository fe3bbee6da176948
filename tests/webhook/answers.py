"""Answers of receivers as bytes, and what h11 reads in them."""

from appliance.webhook.connect import NotPosted
from appliance.webhook.http import AnswerReader, Posted


def by_h11(data: bytes) -> AnswerReader | None:
    """What h11 makes of these bytes; None when it refuses them."""
    reader = AnswerReader(Posted())
    try:
        reader.receive(data)
    except NotPosted:
        return None
    return reader


def answer(*fields: bytes, status: bytes = b"200 OK", body: bytes = b"") -> bytes:
    """The bytes of an answer."""
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", body])
