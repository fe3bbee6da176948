"""Declares API operations: each is the decorator of the method that answers it.

The method's name becomes the operation id, its docstring the summary and description, and the type of its parameter
`body` the request body. `create_app` registers operations with Quart and `openapi.document` describes them, both from
this one declaration.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from quart import Response

from appliance.errors import Code
from appliance.message.limits import KEY_LENGTH, STREAM_LENGTH
from appliance.model.accounts import Permission
from appliance.web.exchange import Answer

Json = dict[str, Any]
Success = tuple[int, type | str, str]  # status, type of the JSON or media type of a file, and a description
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[msgspec.Struct | bytes | Response | Answer]])

PAGE_LIMIT = 100  # entries per page: default and maximum

SEND: tuple[Json, ...] = ({"basic": []}, {"apiKey": []}, {"customer": []})
CUSTOMER: tuple[Json, ...] = ({"customer": []},)
CUSTOMER_OR_KEY: tuple[Json, ...] = (*CUSTOMER, {"apiKey": []})

# Who holds a permission, for error texts and descriptions.
HOLDERS = {
    Permission.VIEW: "Every user of the account, or an API key with the scope manage,",
    Permission.DEVELOP: "Only an owner or developer of the account, or an API key with the scope manage,",
    Permission.OWN: "Only an owner of the account",
    Permission.ADMINISTER: "Only an administrator",
}

ALWAYS = (Code.INTERNAL_ERROR, Code.TEMPORARY_FAILURE)  # possible for every request
WITH_BODY = (Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE, Code.RATE_LIMITED)

_PARAMETER = re.compile(r"{(\w+)(?::(\w+))?}")


class Tag(Enum):
    """Groups of operations, in the order that documents and generated clients show them."""

    SENDING = "Sending", "Send a message and read its status."
    SESSIONS = "Sessions", "Log in to use the rest of the API, and log out."
    PEOPLE = "People", "Users of the account, their roles and two-factor authentication."
    ACCOUNT = "Account", "The account, its credits and its statistics."
    AUDIT = "Audit", "Who changed what in the account, when and from where."
    DOMAINS = "Domains", "Sending domains."
    CREDENTIALS = "Credentials", "SMTP credentials and API keys for programs that send."
    MESSAGES = "Messages", "All messages of the account, with every delivery attempt."
    RECEIVING = "Receiving", "Addresses that receive mail, and received messages."
    REQUESTS = "Requests", "Every submission of the last 7 days, accepted or refused."
    TEMPLATES = "Templates", "Stored subjects and bodies with placeholders."
    SUPPRESSIONS = "Suppressions", "Addresses that the account no longer sends to."
    UNSUBSCRIBE = "Unsubscribe", "Tags whose messages get a one-click unsubscribe link."
    WEBHOOK = "Webhook", "Where results are posted, and the delivery history."
    ADMINISTRATION = "Administration", "All accounts, the queue and the nodes. For administrators."
    HEALTH = "Health", "For monitoring and load balancers."
    EVENTS = "Events", "What the service posts to the account's webhook."

    def __init__(self, title: str, description: str) -> None:
        self.title = title
        self.description = description


class Limited(Enum):
    """How an operation treats an API key that is limited to one domain."""

    REFUSED = auto()  # concerns the whole account
    NARROWED = auto()  # the handler returns and changes only data of the key's domain
    OPEN = auto()  # contains no data of any domain


class Operation(Struct, frozen=True):
    """One method of one path, such as `GET /emails/{id}`. A path parameter is `{name}` or `{name:converter}`.

    The handler gets the principal (if a permission is required), the path parameters and the decoded body.
    """

    name: str
    success: Success
    errors: tuple[Code, ...] = ()
    body: type | None = None
    security: tuple[Json, ...] = ()
    parameters: tuple[Json, ...] = ()
    headers: tuple[str, ...] = ()  # of the success response, besides X-Request-ID
    permission: Permission | None = None  # required of the principal; None: open to everyone
    people_only: bool = False  # refused to API keys: concerns the logged-in user
    of_login: bool = False  # allowed to a user who must first set up two-factor authentication
    limited: Limited = Limited.REFUSED
    id: str = ""
    summary: str = ""
    description: str = ""
    links: Json | None = None  # from the success response to other operations
    needs_body: bool = True  # if the operation takes a body
    action: str = ""  # name in the audit log; empty if it changes nothing

    def __call__(self, handler: Handler) -> Handler:
        summary, _, description = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
        body = self.body or handler.__annotations__.get("body")
        errors = self.errors if self.permission is None else tuple(dict.fromkeys(self._all_errors(body)))
        described: Json = {"id": camel_case(handler.__name__), "summary": summary, "description": description}
        operation = replace(self, body=body, errors=errors, **described)
        handler.operation = operation  # type: ignore[attr-defined]  # for `operations_of`
        return handler

    def _all_errors(self, body: type | None) -> Iterator[Code]:
        if any(declared["in"] == "query" for declared in self.parameters):
            yield Code.INVALID_REQUEST
        if body is not None:
            yield from WITH_BODY
        yield Code.RATE_LIMITED
        if self.permission is not Permission.VIEW or self.limited is not Limited.OPEN:
            yield Code.FORBIDDEN
        if "{" in self.name and self.method != "PUT":  # a PUT creates what its path names
            yield Code.NOT_FOUND
        yield from (*self.errors, Code.UNAUTHORIZED, *ALWAYS)

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        return _PARAMETER.sub(r"{\1}", self.name.partition(" ")[2])

    @property
    def rule(self) -> str:
        return _PARAMETER.sub(lambda match: f"<{match[2] or 'default'}:{match[1]}>", self.name.partition(" ")[2])


def camel_case(name: str) -> str:
    """Convert `list_domains` or `list.domains` to `listDomains`."""
    first, *others = re.split(r"[._]", name)
    return first + "".join(word.title() for word in others)


def operations_of(routes: type) -> Iterator[tuple[str, Operation]]:
    for name, value in vars(routes).items():
        if (operation := getattr(value, "operation", None)) is not None:
            yield name, operation


def for_customers(
    name: str,
    success: type | Success,
    *declared: Code | Json,
    permission: Permission | None = None,
    people_only: bool = False,
    limited: Limited = Limited.REFUSED,
    **options: Any,
) -> Operation:
    """An operation that requires a login or a key. `declared` are its own errors and its parameters.

    A bare type is a 200 that its docstring describes. The default permission is `view` for reads and `develop`
    otherwise. `limited` says whether a key that is limited to a domain may call it.
    """
    if not isinstance(success, tuple):
        success = (200, success, inspect.cleandoc(success.__doc__ or "").partition("\n")[0])
    if permission is None:
        permission = Permission.VIEW if name.startswith(("GET ", "HEAD ")) else Permission.DEVELOP
    return Operation(
        name,
        success,
        errors=tuple(error for error in declared if isinstance(error, Code)),
        parameters=tuple(parameter for parameter in declared if not isinstance(parameter, Code)),
        security=CUSTOMER if people_only or permission in (Permission.OWN, Permission.ADMINISTER) else CUSTOMER_OR_KEY,
        permission=permission,
        people_only=people_only,
        limited=limited,
        **options,
    )


for_admins = partial(for_customers, permission=Permission.ADMINISTER, people_only=True)
for_owners = partial(for_customers, permission=Permission.OWN)
# Concerns the user's own login, whatever the role.
for_people = partial(for_customers, permission=Permission.VIEW, people_only=True, of_login=True)


def parameter(name: str, place: str, description: str, schema: Json, *, required: bool = False) -> Json:
    required = required or place == "path"
    return {"name": name, "in": place, "required": required, "description": description, "schema": schema}


def identifier(description: str, pattern: str, name: str = "id") -> Json:
    return parameter(name, "path", description, {"type": "string", "pattern": pattern})


def choice_parameter(name: str, description: str, choices: Iterable[str]) -> Json:
    return parameter(name, "query", description, {"type": "string", "enum": list(choices)})


def number_parameter(name: str, description: str, default: int, maximum: int = PAGE_LIMIT) -> Json:
    schema = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return parameter(name, "query", description, schema)


def limit_parameter(default: int = PAGE_LIMIT, description: str = "Entries per page.") -> Json:
    return number_parameter("limit", description, default)


MESSAGE_ID = parameter("id", "path", "Message id from the send response.", {"type": "string"})
KEY_PARAMETER = parameter(
    "Idempotency-Key",
    "header",
    "Unique key of your choice, valid for 24 hours. Retrying with the same key and body is safe.",
    {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    required=True,
)
BEFORE_PARAMETER = parameter("before", "query", "`next` from the previous page.", {"type": "string"})
STREAM_FILTER = parameter(
    "stream", "query", "Filter by stream.", {"type": "string", "pattern": r"\S", "maxLength": STREAM_LENGTH}
)
PAGING = (limit_parameter(), {**BEFORE_PARAMETER, "name": "after"})
PAGING_BACK = (limit_parameter(), BEFORE_PARAMETER)
