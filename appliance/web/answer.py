"""HTTP responses: JSON objects, the headers of every response, and the error object."""

from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from appliance.errors import Code, PublicError, Refused
from appliance.telemetry.metrics import REFUSALS
from appliance.times import rfc3339

Object = TypeVar("Object", bound=msgspec.Struct)
Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, Headers, bytes]

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Every response: not cached, framed or readable by other sites.
SECURITY_HEADERS: Headers = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
OUR_FAULT = "Internal error. Retry later; if it persists, give the operator this request_id."

# Types of fields that many objects share.
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # RFC 3339, UTC, to the millisecond
CreatedAt = Annotated[Time, Meta(description="Creation time.")]
RequestId = Annotated[str, Meta(description="Request id, equal to the header `X-Request-ID`.")]
NextPage = Annotated[str | None, Meta(description="Cursor of the next page; null on the last page.")]
SinglePage = Annotated[str | None, Meta(description="Always null: the list has one page.")]


def time_or_none(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def object_from(kind: type[Object], source: object, /, **fields: Any) -> Object:
    """Build an API object from the attributes of `source`, with times as text. Keyword arguments replace attributes."""
    for name in kind.__struct_fields__:
        if name not in fields:
            value = getattr(source, name)
            fields[name] = time_or_none(value) if name.endswith("_at") else value
    return kind(**fields)


class Error(msgspec.Struct):
    """The body of every error."""

    error: Annotated[str, Meta(description="What went wrong. Starts with the field's name if a field is at fault.")]
    code: Annotated[Code, Meta(description="Stable error code for programs.")]
    request_id: RequestId


class DeletedAnswer(msgspec.Struct):
    """The response to a DELETE."""

    deleted: Annotated[bool, Meta(description="Always true.")]
    request_id: RequestId


@lru_cache(maxsize=2)
def http_date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode("ascii")


def json_answer(body: bytes, request_id: str) -> Headers:
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("ascii")),
        *SECURITY_HEADERS,
    ]


def error_answer(
    code: Code, text: str, request_id: str, *, status: int | None = None, retry_after: int | None = None
) -> Answer:
    """Status, headers and body of an error. `status` overrides the code's own."""
    REFUSALS.add(("http", code))
    body = msgspec.json.encode(Error(text, code, request_id))
    headers = json_answer(body, request_id)
    if retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
    if code is Code.UNAUTHORIZED:
        headers.append((b"www-authenticate", b'Bearer realm="mail appliance", Basic realm="mail appliance"'))
    return status or code.status, headers, body


class MethodNotAllowed(Refused):
    """405. It has no error code of its own."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(allowed))
        super().__init__(Code.INVALID_REQUEST, f"Method not allowed. Allowed: {self.allowed}.")


def refusal_answer(refused: PublicError, request_id: str) -> Answer:
    if isinstance(refused, MethodNotAllowed):
        status, headers, body = error_answer(refused.code, refused.text, request_id, status=405)
        return status, [*headers, (b"allow", refused.allowed.encode("ascii"))], body
    return error_answer(refused.code, refused.text, request_id, retry_after=refused.retry_after)
