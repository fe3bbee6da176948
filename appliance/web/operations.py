"""The operations of the API: each is declared once, as the decorator of the method that answers it.

A class of routes has one method per operation. Its name is the operation's id, and its docstring the summary and, below
it, the description. `create_app` registers them with Quart, and `openapi.document` describes them, both from the same
declaration.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

import msgspec
from quart import Response

from appliance.errors import Code
from appliance.model.accounts import Permission

Json = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[msgspec.Struct | bytes | Response]])

PAGE_LIMIT = 100  # entries of a list on a page: the default, and the maximum

SEND: tuple[Json, ...] = ({"basic": []}, {"apiKey": []}, {"customer": []})
CUSTOMER: tuple[Json, ...] = ({"customer": []},)
CUSTOMER_OR_KEY: tuple[Json, ...] = (*CUSTOMER, {"apiKey": []})

# Who has a permission, in words: for a refusal, and for the description of an operation.
HOLDERS = {
    Permission.VIEW: "Every user of the account, and an API key with the scope manage,",
    Permission.DEVELOP: "Only an owner or a developer of the account, and an API key with the scope manage,",
    Permission.OWN: "Only an owner of the account",
    Permission.ADMINISTER: "Only an administrator",
}

ALWAYS = (Code.INTERNAL_ERROR, Code.TEMPORARY_FAILURE)  # any request may be answered with these
WITH_BODY = (Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE, Code.RATE_LIMITED)

_PARAMETER = re.compile(r"{(\w+)(?::(\w+))?}")


class Limited(Enum):
    """What an operation is to an API key that is limited to one domain."""

    REFUSED = auto()  # it concerns the whole account
    NARROWED = auto()  # its handler shows and changes only what belongs to the key's domain
    OPEN = auto()  # no domain's data are in it


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, such as `GET /emails/{id}`. A parameter is `{name}`, or `{name:converter}`.

    The handler is called with the principal, if one is needed, with the parameter of the path, and with the decoded
    body.
    """

    name: str
    success: tuple[int, type, str]  # status, what is answered, and a sentence on it
    errors: tuple[Code, ...] = ()
    body: type | None = None
    security: tuple[Json, ...] = ()
    parameters: tuple[Json, ...] = ()
    headers: tuple[str, ...] = ()  # of the success, besides X-Request-ID
    permission: Permission | None = None  # the method is called with a principal who has it; None: for everyone
    people_only: bool = False  # no API key may do it: it is about the person who has logged in
    limited: Limited = Limited.REFUSED
    id: str = ""
    summary: str = ""
    description: str = ""
    links: Json | None = None  # from the success to other operations
    needs_body: bool = True  # if it takes one
    action: str = ""  # as the audit log calls it; empty: it changes nothing
    media: str = "application/json"  # of the success; with any other its type is `bytes`

    def __call__(self, handler: Handler) -> Handler:
        """As a decorator: mark the method that answers this operation."""
        summary, _, description = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
        described = replace(self, id=camel_case(handler.__name__), summary=summary, description=description)
        handler.operation = described  # type: ignore[attr-defined]  # for `operations_of`
        return handler

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        """As OpenAPI writes it."""
        return _PARAMETER.sub(r"{\1}", self.name.partition(" ")[2])

    @property
    def rule(self) -> str:
        """The path as Quart writes it."""
        return _PARAMETER.sub(lambda found: f"<{found[2] or 'default'}:{found[1]}>", self.name.partition(" ")[2])


def camel_case(name: str) -> str:
    """`list_domains` and `list.domains` as `listDomains`."""
    first, *others = re.split(r"[._]", name)
    return first + "".join(word.title() for word in others)


def operations_of(routes: type) -> Iterator[tuple[str, Operation]]:
    """The operations that a class of routes answers, each with the name of its method."""
    for name, value in vars(routes).items():
        if (operation := getattr(value, "operation", None)) is not None:
            yield name, operation


def for_customers(
    name: str,
    success: tuple[int, type, str],
    *errors: Code,
    body: type | None = None,
    parameters: tuple[Json, ...] = (),
    permission: Permission | None = None,
    people_only: bool = False,
    limited: Limited = Limited.REFUSED,
    needs_body: bool = True,
    action: str = "",
    media: str = "application/json",
) -> Operation:
    """An operation that needs a login, with the errors all of them have.

    Without a permission of its own it needs `view` if it only reads, else `develop`. An API key that is limited to a
    domain may use it only if `limited` says so.
    """
    if permission is None:
        permission = Permission.VIEW if name.startswith(("GET ", "HEAD ")) else Permission.DEVELOP
    of_query = (Code.INVALID_REQUEST,) if any(each["in"] == "query" for each in parameters) else ()
    of_body = () if body is None else WITH_BODY
    of_permission = () if permission is Permission.VIEW and limited is Limited.OPEN else (Code.FORBIDDEN,)
    all_errors = (*of_query, *of_body, Code.RATE_LIMITED, *of_permission, *errors, Code.UNAUTHORIZED, *ALWAYS)
    security = CUSTOMER if people_only or permission in (Permission.OWN, Permission.ADMINISTER) else CUSTOMER_OR_KEY
    made = Operation(name, success, tuple(dict.fromkeys(all_errors)), body, security, parameters)
    return replace(
        made,
        permission=permission,
        people_only=people_only,
        limited=limited,
        needs_body=needs_body,
        action=action,
        media=media,
    )


for_admins = partial(for_customers, permission=Permission.ADMINISTER, people_only=True)
# On the person itself, whatever its role.
for_people = partial(for_customers, permission=Permission.VIEW, people_only=True)


def parameter(name: str, place: str, description: str, schema: Json, *, required: bool = False) -> Json:
    required = required or place == "path"
    return {"name": name, "in": place, "required": required, "description": description, "schema": schema}


def identifier(description: str, pattern: str, name: str = "id") -> Json:
    return parameter(name, "path", description, {"type": "string", "pattern": pattern})


def limit_parameter(default: int = PAGE_LIMIT, description: str = "Entries on the page.") -> Json:
    schema = {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT, "default": default}
    return parameter("limit", "query", description, schema)


BEFORE_PARAMETER = parameter("before", "query", "`next` of the page before.", {"type": "string"})
PAGING = (limit_parameter(), {**BEFORE_PARAMETER, "name": "after"})
PAGING_BACK = (limit_parameter(), BEFORE_PARAMETER)
