"""In charge of how routes are described: one record for each method of a path, written beside the route itself."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from appliance.errors import Code
from appliance.web.app import PAGE

Json = dict[str, Any]

SEND: tuple[Json, ...] = ({"basic": []}, {"apiKey": []}, {"customer": []})
CUSTOMER: tuple[Json, ...] = ({"customer": []},)

# Whatever the request, these may come: they are what a gateway of our own would answer.
ALWAYS = (Code.INTERNAL_ERROR, Code.TEMPORARY_FAILURE)
WITH_BODY = (Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE, Code.RATE_LIMITED)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    success: tuple[int, type, str]
    errors: tuple[Code, ...] = ()
    body: type | None = None
    security: tuple[Json, ...] = ()
    parameters: tuple[Json, ...] = ()
    headers: tuple[str, ...] = ()  # of the success, beside the one every answer has


def for_customers(
    method: str,
    path: str,
    summary: str,
    success: tuple[int, type, str],
    *errors: Code,
    body: type | None = None,
    parameters: tuple[Json, ...] = (),
    admin: bool = False,
) -> Operation:
    """An operation that needs a customer's token, or an administrator's, with the errors all of them have."""
    of_body, of_role = () if body is None else WITH_BODY, (Code.FORBIDDEN,) if admin else ()
    all_errors = tuple(dict.fromkeys((*of_body, *of_role, *errors, Code.UNAUTHORIZED, *ALWAYS)))
    return Operation(method, path, summary, success, all_errors, body, CUSTOMER, parameters)


for_admins = partial(for_customers, admin=True)


def parameter(name: str, place: str, description: str, schema: Json, *, required: bool = False) -> Json:
    """One parameter."""
    return {
        "name": name,
        "in": place,
        "required": required or place == "path",
        "description": description,
        "schema": schema,
    }


def identifier(description: str, pattern: str, name: str = "id") -> Json:
    """A parameter of the path that is an id of ours."""
    return parameter(name, "path", description, {"type": "string", "pattern": pattern})


LIMIT = parameter(
    "limit", "query", "Entries on the page.", {"type": "integer", "minimum": 1, "maximum": PAGE, "default": PAGE}
)
PAGING = (LIMIT, parameter("after", "query", "`next` of the page before.", {"type": "string"}))
PAGING_BACK = (LIMIT, parameter("before", "query", "`next` of the page before.", {"type": "string"}))
