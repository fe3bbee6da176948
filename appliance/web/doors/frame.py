"""What a door consists of, and what its translation uses. A door translates requests into ours, and our answers back.

One file per provider exports its `Door`: its credential, routes and errors; `serving.py` lists the doors. Nothing
in it does I/O or repeats a rule: messages go through `Edge.submit` and the one intake, other requests through our API.

- A route that sends has a `Send`. `parse(call, body)`, on a worker thread for a large body, returns one SendRequest,
  `Sends` for several, a `Series` for the same message to many, or a complete message as `Mime`. It decodes JSON with
  `decoded` into structs that forbid unknown fields, and makes each request with `send_request`, which checks sizes and
  shape; the intake checks all other rules. In `Sends`, `skip` accepts the good messages; `attempted` makes its items,
  so that one bad message refuses only itself; over 100 messages take several transactions. `answer(call, results)` gets
  a `Sent` or a Refused for each message, in order; a call that does not skip raises its first refusal instead.
- Any other route is `async handle(call, api)`. `await api(method, path, body, **query)` asks our own API and returns
  its JSON, or raises its refusal. `needs` is the key's right; `query` lists the parameters that exist.
- `refused` lists starts of paths that the provider has and we have not, with a sentence that says what to do.
- `refuse(refusal)` returns status and JSON of an error. `names` maps our names of a message's fields to the provider's,
  for texts.
- `call.kept` takes what `answer` needs from `parse`. Clients that drop the path of a base URL are found by `is_root`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from appliance.config.settings import DoorName
from appliance.errors import Code, Refused, invalid
from appliance.message import limits
from appliance.message.batch import Series
from appliance.message.request import Body, Mime, check_number_of_values, colons_outside_strings, explain, explain_value
from appliance.message.schema import DoorRequest, SendRequest
from appliance.model.streams import Streams
from appliance.store.event_feed import EventRange, StoredEvent
from appliance.web.exchange import check_content_type

T = TypeVar("T")
Json = Any


# ---- what a door consists of


class Needs(Enum):
    """What a route that sends nothing needs of its key: sending, reading (`full`, `read`), or the scope `manage`."""

    SEND = auto()
    READ = auto()
    MANAGE = auto()


@dataclass(slots=True)
class Call:
    """One request of a door, without its body."""

    params: dict[str, str]  # of the path
    query: dict[str, str]
    headers: Mapping[bytes, bytes]
    request_id: str
    now: int  # microseconds
    base_url: str = ""  # of this server
    streams: Streams = field(default_factory=Streams)
    key: str | None = None  # the client's idempotency key
    body: bytes = b""  # of a request that sends nothing
    kept: Any = None
    is_test: bool = False  # set by `parse`: simulate the messages, as with a test key


class Sent(NamedTuple):
    id: str


class Sends(NamedTuple):
    items: list[SendRequest | Refused]
    skip: bool = False  # accept the good messages if others are bad


class DoorReply(NamedTuple):
    body: Json  # None: empty
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()


class Refusal(NamedTuple):
    code: Code
    text: str  # with the provider's names
    field: str  # at fault, with the provider's names, or empty
    has_credential: bool  # whether the request had a credential


Result = Sent | Refused


class Api(Protocol):
    """Our own API with the rights of the request's key: its JSON routes, and the account's events."""

    async def __call__(self, method: str, path: str, body: Json = None, **query: str | int | None) -> Json: ...
    async def events(self, select: Callable[[StoredEvent], T | None], wanted: EventRange) -> tuple[list[T], str | None]:
        """Selected events, and the id to continue behind; None: these were all."""


class Send(NamedTuple):
    parse: Callable[[Call, Body], SendRequest | Sends | Series | Mime]
    answer: Callable[[Call, list[Result]], DoorReply]
    messages: int = 1  # in one request, at most
    status: int = 200
    cost: Callable[[Body], int] | None = None  # microseconds that `parse` takes; None: by the size and `messages`


class DoorRoute(NamedTuple):
    method: str
    path: str  # below the door; `{name}` is one segment
    handle: Send | Callable[[Call, Api], Awaitable[DoorReply]]
    needs: Needs = Needs.SEND
    query: Sequence[str] = ()
    check_type: Callable[[bytes], None] = check_content_type  # raises for another Content-Type


@dataclass(frozen=True, kw_only=True)
class Door:
    name: DoorName
    # The value of our Authorization, or None.
    credential: Callable[[Mapping[bytes, bytes]], bytes | None] = lambda headers: headers.get(b"authorization")
    credential_header: bytes = b"authorization"  # where it comes from
    login: str = "Send an API key of this server: Authorization: Bearer ma_live_…"  # for a request without a credential
    routes: Sequence[DoorRoute]
    refuse: Callable[[Refusal], tuple[int, Json]]
    refused: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    has_keys: bool = False  # whether the provider has Idempotency-Key
    parameter: Callable[[str], str] = str  # a query parameter's name as the routes spell it
    is_root: Callable[[str, Mapping[bytes, bytes]], bool] = lambda path, headers: False  # for clients that drop paths

    @cached_property
    def patterns(self) -> list[tuple[DoorRoute, re.Pattern[str]]]:
        named = [(route, re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", route.path)) for route in self.routes]
        return [(route, re.compile(pattern)) for route, pattern in named]

    def names_at(self, method: str, path: str) -> Mapping[str, str]:
        """The names of a message's fields, if the route sends one."""
        for route, pattern in self.patterns:
            if route.method == method and isinstance(route.handle, Send) and pattern.fullmatch(path):
                return self.names
        return {}

    def route(self, method: str, path: str) -> tuple[DoorRoute, dict[str, str]]:
        for start, text in self.refused.items():
            if path.startswith(start):
                raise Refused(Code.NOT_FOUND, text)
        for route, pattern in self.patterns:
            if route.method == method and (match := pattern.fullmatch(path)) is not None:
                return route, match.groupdict()
        text = f"{method} {path[:100]} does not exist here. docs/doors.md lists the routes of this door."
        raise Refused(Code.NOT_FOUND, text)


# ---- for the providers' files


def decoded(body: Body, kind: type[T], most: int = limits.JSON_VALUES) -> T:
    """Decode JSON of any bytes; raises only Refused and MemoryError."""
    check_number_of_values(body, most)
    bytes(3 * len(body))  # msgspec does not check allocations and would crash; this raises MemoryError first
    try:
        value = msgspec.json.decode(body)
        if _pairs(value) != colons_outside_strings(body):
            raise invalid("body", "an object in it has the same key twice")
        return msgspec.convert(value, kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise explain(cause, body) from cause


def _pairs(value: Json) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_pairs(inner) for inner in value.values() if isinstance(inner, dict | list))
    return sum(_pairs(inner) for inner in value if isinstance(inner, dict | list)) if isinstance(value, list) else 0


def converted(value: Json, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as cause:
        raise explain_value(str(cause)) from cause


def attempted(items: Sequence[Json], make: Callable[[Json], SendRequest]) -> list[SendRequest | Refused]:
    """Make a request of each item; one that is refused leaves its refusal in its place."""
    requests: list[SendRequest | Refused] = []
    for item in items:
        try:
            requests.append(make(item))
        except Refused as refused:
            requests.append(refused)
    return requests


_LISTED = re.compile(r'(?:"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[^",])+', re.DOTALL)  # between commas outside quotes
_MESSAGE_ID = re.compile("msg_[0-9a-f]{32}")


def split_addresses(text: str) -> list[str]:
    """The addresses of a list with commas."""
    return [part for listed in _LISTED.findall(text) if (part := listed.strip(" "))]


def is_message_id(text: str) -> bool:
    return _MESSAGE_ID.fullmatch(text) is not None


def message_id(call: Call) -> str:
    """The id of a message in the path."""
    if not is_message_id(call.params["id"]):
        raise Refused(Code.NOT_FOUND, "No message has this id.")
    return call.params["id"]


def number_of(call: Call, name: str, default: int | None, most: int, least: int = 0) -> int:
    """A whole number in the query."""
    text = call.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise invalid(name, f"expected a number from {least} to {most}")
    return int(text)


def check_all_accepted(results: Sequence[Result], what: str) -> None:
    """Raise the first refusal of a request for several `what`, with the number of those that were accepted."""
    refused = [result for result in results if isinstance(result, Refused)]
    if refused:
        text = f"{refused[0].text} Only the first {len(results) - len(refused)} of {len(results)} {what} were accepted."
        raise Refused(refused[0].code, text, retry_after=refused[0].retry_after)


NO_ROUTE = "This door has no such route. Use the dashboard, the command line or this server's own API."
STREAM_HEADER = "X-Service-Stream"


def send_request(fields: Mapping[str, Json]) -> DoorRequest:
    """Our request with these fields; those that are None are left out. `reply_to` may be a list.

    The header X-Service-Stream chooses the stream, as over SMTP, because other providers have no field for it.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    named = [name for name in values.get("headers", ()) if name.lower() == STREAM_HEADER.lower()]
    if len(named) > 1 or (named and "stream" in values):
        raise invalid("stream", f"{STREAM_HEADER} names the stream once, and only where no field names it")
    if named:
        headers = dict(values["headers"])
        values |= {"stream": headers.pop(named[0]), "headers": headers}
    return converted(values, DoorRequest)
