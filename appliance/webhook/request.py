"""In charge of the bytes of a request, all in one piece. PURE."""

import re
from collections.abc import Sequence

from appliance.webhook.attempt import NotPosted
from appliance.webhook.url_policy import Target

_FIELDS = re.compile(r"(?:[A-Za-z0-9-]+: [\x20-\x7e]*\r\n)*")


def request_bytes(target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """A POST with these headers and those that HTTP asks for (RFC 9112 3.2, 6.2); raises `NotPosted`."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not _FIELDS.fullmatch(fields) or fields.count("\r\n") != len(headers):
        raise NotPosted("a header of the event has a character that cannot be sent")
    # Not compressed, please: what is kept of the answer is for people to read.
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n{fields}"
        f"Accept-Encoding: identity\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
