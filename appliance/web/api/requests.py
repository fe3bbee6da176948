"""The request log: every submission of the last 7 days, accepted or refused: /v1/requests."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import request

from appliance.errors import invalid
from appliance.model.accounts import Principal
from appliance.model.dashboard import LoggedRequest, RequestFilter
from appliance.times import rfc3339
from appliance.web.app import Routes, page_limit
from appliance.web.exchange import ApiAnswer, NextPage, Time, request_id
from appliance.web.operations import Tag, for_customers, limit_parameter, parameter

ACCEPTED = {"accepted": True, "refused": False}
FILTER_LENGTH = 200  # of a filter, in characters
REQUEST_COST = 30  # microseconds to encode a request with the longest body

_STATUS = {"type": "string", "pattern": "^(accepted|refused|[2-5][0-9]{2})$"}
_CURSOR = {"type": "string", "pattern": r"^rqp_[0-9a-f]{32}\.[0-9]{1,4}$"}
_TEXT = {"type": "string", "minLength": 1, "maxLength": FILTER_LENGTH}
_FILTERS = (
    parameter("status", "query", "An HTTP status or SMTP reply code, or `accepted` or `refused`.", _STATUS),
    parameter("key", "query", "Id of an API key, or username of an SMTP credential.", _TEXT),
    parameter("q", "query", "Text that the request contains: an id, an address, an error. Case-insensitive.", _TEXT),
    limit_parameter(),
    parameter("before", "query", "`next` from the previous page.", _CURSOR),
)


class RequestObject(msgspec.Struct):
    """One request."""

    request_id: Annotated[str, Meta(description="Request id, equal to the header `X-Request-ID` of the response.")]
    at: Annotated[Time, Meta(description="Time of the response.")]
    source: Annotated[str, Meta(description="`api` or `smtp`.")]
    route: Annotated[str, Meta(description="Method and path, or the SMTP command: `MAIL FROM`, `RCPT TO`, `DATA`.")]
    key: Annotated[str | None, Meta(description="API key id or SMTP username; null for a login.")]
    client: Annotated[str, Meta(description="Address of the client.")]
    status: Annotated[int, Meta(description="HTTP status, or the code of the SMTP reply.")]
    code: Annotated[str | None, Meta(description="Error code; null if accepted, or for an SMTP syntax error.")]
    error: Annotated[str | None, Meta(description="Error text; null if accepted.")]
    message_id: Annotated[str | None, Meta(description="Message that the request created or repeated; null if none.")]
    size: Annotated[int, Meta(description="Size of the request body or SMTP message, in bytes.")]
    body: Annotated[str, Meta(description="Start of the JSON or of the SMTP envelope, without secrets; up to 2 KiB.")]


class RequestsAnswer(ApiAnswer):
    """A page of requests, newest first. Pass `next` as `before` to get the next page."""

    requests: Annotated[list[RequestObject], Meta(description="Requests, newest first.")]
    next: NextPage


class RequestRoutes(Routes):
    tag = Tag.REQUESTS

    @for_customers("GET /v1/requests", RequestsAnswer, *_FILTERS)
    async def list_requests(self, user: Principal) -> bytes:
        """List the account's submissions of the last 7 days, accepted or refused, newest first.

        Requests appear within two seconds. The log has every accepted request, up to 128 MiB per account; refused
        requests beyond 100 are sampled, one every 6 seconds. Requests without a valid credential belong to no account
        and are not listed. A page may be incomplete while the search continues; `next` is null only at the end.
        """
        status = request.args.get("status")
        if status is not None and not re.fullmatch(_STATUS["pattern"], status):
            raise invalid("status", "must be a status code, `accepted` or `refused`")
        filters = RequestFilter(
            status=None if status is None or status in ACCEPTED else int(status),
            accepted=ACCEPTED.get(status or ""),
            key=_text("key"),
            text=(_text("q") or "").strip().lower(),
        )
        limit, before = page_limit(), request.args.get("before")
        results, following = await self.store.request_pages.search(user.account_id, filters, limit, before)
        cost = REQUEST_COST * len(results)
        work = results, following, request_id()
        return await self.services.intake.workers.run(user.account_id, cost, _encoded, *work)


def _encoded(results: list[tuple[str, LoggedRequest]], following: str | None, request_id: str) -> bytes:
    shown = [
        RequestObject(**msgspec.structs.asdict(request) | {"at": rfc3339(request.at)})  # its own `request_id`
        for _, request in results
    ]
    return msgspec.json.encode(RequestsAnswer(shown, following, request_id=request_id))


def _text(name: str) -> str | None:
    text = request.args.get(name)
    if text is not None and not 1 <= len(text) <= FILTER_LENGTH:
        raise invalid(name, f"must have 1 to {FILTER_LENGTH} characters")
    return text
