"""Serves the doors: finds a request's door and route, and runs its translation around `Edge.submit` or our own API.

A door has no rights and no limits of its own. Its credential becomes the Authorization header of our API, which makes
every decision; the door returns its refusals in the provider's shape.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec

from appliance.config.settings import DoorName, HttpSettings
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.intake.accept import Accepted
from appliance.intake.batch import NoneAccepted
from appliance.intake.limits import RequestRate
from appliance.message.batch import Batch, Series, batch_of, cost_of_batch
from appliance.message.characters import cost_of_size
from appliance.message.request import UNKNOWN_FIELD, Body, Mime
from appliance.message.schema import BatchReceipt, SendRequest
from appliance.model.accounts import Caller, KeyPrincipal, Permission, Scope
from appliance.store.event_feed import EventRange, StoredEvent
from appliance.telemetry.metrics import REFUSALS
from appliance.web.app import ApiServices
from appliance.web.doors.frame import Call, Door, DoorReply, DoorRoute, Json, Needs, Refusal, Result, Send, Sends, Sent
from appliance.web.doors.mailgun import MAILGUN
from appliance.web.doors.postmark import POSTMARK
from appliance.web.doors.resend import RESEND
from appliance.web.doors.sendgrid import SENDGRID
from appliance.web.exchange import (
    Answer,
    AsgiScope,
    AsgiSend,
    BodyBudgets,
    ClientGone,
    Exchange,
    Form,
    Receive,
    RequestBody,
    check_encoding,
    declared_length,
    idempotency_key,
    json_answer,
    keep_connection,
    public_error,
    received,
)
from appliance.web.sent import SentMessages

_T = TypeVar("_T")
_U = TypeVar("_U")

# The first door that a path or header at the root belongs to answers: Mailgun's path goes before Postmark's header.
DOORS: dict[str, Door] = {door.name: door for door in (RESEND, MAILGUN, POSTMARK, SENDGRID)}
REQUEST_BODY = 64 * 1024  # bytes of a request without mail
EVENT_READS = 40  # of the store for one page, 50 ms each
EVENT_SIZE = 2_000  # bytes of a long event
QUERY_BYTES = 4 * 1024
PARSING = 2  # times the cost of decoding a request of our own
ONE_AUTHORIZATION = "Send exactly one Authorization header."
_CODES = {code.value: code for code in Code}
_PLACE = re.compile(r"^emails\[\d+\]\.?")
_WORD = re.compile(r"[A-Za-z_]+")


class Core(Protocol):
    """What a door uses of the edge."""

    services: ApiServices
    settings: HttpSettings
    budgets: BodyBudgets
    rate: RequestRate
    read_rate: RequestRate
    sent: SentMessages

    @property
    def pages(self) -> Callable[[AsgiScope, Receive, AsgiSend], Awaitable[None]]: ...
    async def submit(self, exchange: Exchange, address: str, route: str, form: Form) -> Accepted: ...


class Found(NamedTuple):
    door: Door
    path: str  # below the door


class Doors:
    def find(self, names: Sequence[DoorName], path: str, headers: Mapping[bytes, bytes]) -> Found | None:
        """The door, of those that are open, that answers at this path."""
        first, _, rest = path.lstrip("/").partition("/")
        if (door := DOORS.get(first)) is not None:
            return Found(door, "/" + rest.strip("/")) if door.name in names else None
        for door in DOORS.values():
            if door.name in names and door.is_root(path, headers):
                return Found(door, "/" + path.strip("/"))
        return None

    async def answer(
        self, core: Core, exchange: Exchange, address: str, found: Found, method: str, query: bytes
    ) -> Answer:
        door = found.door
        credential = door.credential(exchange.headers)
        try:
            reply = await self._reply(core, exchange, address, found, credential, method, query)
        except ClientGone:
            raise
        except Exception as error:
            refused = public_error(error, exchange.request_id, method, f"/{door.name}{found.path}")
            await keep_connection(exchange, refused)
            if credential is None and refused.code is Code.UNAUTHORIZED:
                refused = Refused(Code.UNAUTHORIZED, door.login)
            name = _named(refused, refused.field, door.names_at(method, found.path))
            reply = _refusal(door, refused, name, has_credential=credential is not None)
        body = b"" if reply.body is None else msgspec.json.encode(reply.body)
        return reply.status, [*json_answer(body, exchange.request_id), *reply.headers], body

    async def _reply(
        self,
        core: Core,
        exchange: Exchange,
        address: str,
        found: Found,
        credential: bytes | None,
        method: str,
        query: bytes,
    ) -> DoorReply:
        door, headers = found.door, exchange.headers
        headers.pop(b"authorization", None)
        if credential is not None:
            headers[b"authorization"] = credential
        if door.credential_header in exchange.doubled:
            raise Refused(Code.UNAUTHORIZED, ONE_AUTHORIZATION)
        route, params = door.route(method, found.path)
        parameters, now = _parameters(query, route.query, door.parameter), core.services.env.now()
        base_url, streams = core.settings.base_url, core.services.intake.streams
        request = Call(params, parameters, headers, exchange.request_id, now, base_url, streams)
        if isinstance(route.handle, Send):
            return await _send(core, exchange, address, door, route, route.handle, request)
        api = await _Api.opened(core, exchange, address, route)
        request.body = await api.body(route.check_type)
        reply = await route.handle(request, api)
        return reply if reply.body is None else reply._replace(body=msgspec.Raw(await api.encoded(reply.body)))


# ---- messages


async def _send(
    core: Core, exchange: Exchange, address: str, door: Door, route: DoorRoute, send: Send, call: Call
) -> DoorReply:
    def decode(body: Body) -> SendRequest | Batch | Series | Mime:
        parsed = send.parse(call, body)
        return batch_of(parsed.items, skip=parsed.skip) if isinstance(parsed, Sends) else parsed

    form = Form(
        decode,
        send.cost or (lambda body: PARSING * cost_of_batch(len(body), send.messages)),
        partial(_key, door),
        route.check_type,
        door.name,
        send.status,
        lambda: call.is_test,
    )
    try:
        accepted = await core.submit(exchange, address, f"{route.method} /{door.name}{route.path}", form)
    except NoneAccepted as none:  # of a call that skips bad messages
        return send.answer(call, [_within(refused, door) for _, refused in sorted(none.refusals.items())])
    if accepted.refusals is None:
        return send.answer(call, [Sent(accepted.message_id)])
    receipt = msgspec.json.decode(accepted.receipt, type=BatchReceipt)
    results: list[Result] = []
    for one in receipt.results:
        if isinstance(one.id, str):
            results.append(Sent(one.id))
        else:
            refused = accepted.refusals.get(one.index) or Refused(_CODES[str(one.code)], str(one.error))
            results.append(_within(refused, door))
    return send.answer(call, results)


def _key(door: Door, exchange: Exchange) -> str | None:
    """The client's idempotency key, if its provider has one and it sent one."""
    key = exchange.headers.get(b"idempotency-key") if door.has_keys else None
    return None if key is None else idempotency_key(key, doubled=b"idempotency-key" in exchange.doubled)


# ---- other requests


class _Api:
    """Our own API, as a handler of a door asks it: with the rights of the request's key, and no others."""

    def __init__(self, core: Core, exchange: Exchange, address: str, caller: Caller, needs: Needs) -> None:
        self._core, self._exchange, self._address, self._caller, self._needs = core, exchange, address, caller, needs
        self._read = 0  # bytes of answers

    @classmethod
    async def opened(cls, core: Core, exchange: Exchange, address: str, route: DoorRoute) -> "_Api":
        """Check what can be checked without the body."""
        caller, needs = await core.services.auth.caller(exchange.headers.get(b"authorization"), address), route.needs
        exchange.peer.authenticated = True
        if needs is not Needs.SEND:
            if caller.key is None:
                raise Refused(Code.FORBIDDEN, "Send an API key of this service.")
            if needs is Needs.READ and not caller.may_read:
                raise Refused(Code.FORBIDDEN, "This API key may only send. Use a key with the scope full or read.")
            if needs is Needs.MANAGE and Permission.DEVELOP not in caller.key.permissions:
                raise Refused(Code.FORBIDDEN, "This needs an API key with the scope manage.")
            rate = core.read_rate if route.method == "GET" else core.rate
            rate.take(f"user:{caller.key.id}")
            if route.method not in ("GET", "DELETE"):
                core.services.intake.check_disk()
        return cls(core, exchange, address, caller, needs)

    async def body(self, check_type: Callable[[bytes], None]) -> bytes:
        headers = self._exchange.headers
        check_encoding(headers.get(b"content-encoding"))
        length, owner = declared_length(headers, REQUEST_BODY), self._core.budgets.of_account(self._caller.account_id)
        async with RequestBody(self._exchange.receive, length, REQUEST_BODY, owner) as body:
            if body:
                check_type(headers.get(b"content-type", b""))
            return bytes(body)

    async def __call__(self, method: str, path: str, body: Json = None, **query: str | int | None) -> Json:
        """The JSON with which our API answers this request."""
        payload = b"" if body is None else msgspec.json.encode(body)
        if path.startswith("/emails/"):
            return await self._decoded((await self._of_message(method, path.split("/")[2:], payload))[2])
        key = self._caller.key
        if key is None or (key.test and not path.startswith("/v1/emails/")):
            raise Refused(Code.FORBIDDEN, "A test key reads only the messages that it sent.")
        if key.test:  # decides which messages those are
            await self._of_message("GET", path.split("/")[3:4], b"")
        if self._needs is Needs.READ and method == "GET":
            key = msgspec.structs.replace(key, scope=Scope.MANAGE, test=False)  # the route has checked its right
        status, parts = 500, list[bytes]()

        async def send(event: Any) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
            elif event["type"] == "http.response.body":
                parts.append(event.get("body", b""))

        await self._core.pages(self._scope(method, path, query, key, len(payload)), received(payload), send)
        answer = await self._decoded(b"".join(parts))
        if status >= 400:
            raise Refused(_CODES[answer["code"]], answer["error"])
        return answer

    async def events(
        self, select: Callable[[StoredEvent], _T | None], wanted: EventRange
    ) -> tuple[list[_T], str | None]:
        key, feed, items = self._caller.key, self._core.services.store.event_feed, list[_T]()

        def select_own(event: StoredEvent) -> _T | None:
            is_hidden = key is None or (key.test and event.credential != key.id)
            if is_hidden or (key and not key.reaches(event.envelope_from.rpartition("@")[2])):
                return None
            return select(event)

        left, position = wanted, None
        for _ in range(EVENT_READS):
            more, position = await feed.page(self._caller.account_id, select_own, left)
            items += more
            if position is None or len(items) == wanted.most:
                break
            left = left.behind(position, len(more))
        self._read += EVENT_SIZE * len(items)
        return items, position

    async def _decoded(self, answer: bytes) -> Json:
        self._read += len(answer)
        return await self._work(len(answer), msgspec.json.decode, answer)

    async def encoded(self, body: Json) -> bytes:
        """Encode what was made of the answers."""
        return await self._work(self._read, msgspec.json.encode, body)

    async def _work(self, size: int, work: Callable[[_T], _U], value: _T) -> _U:
        workers = self._core.services.intake.workers
        return await workers.run(self._caller.account_id, cost_of_size(size), work, value)

    async def _of_message(self, method: str, parts: Sequence[str], payload: bytes) -> Answer:
        outer, sent = self._exchange, self._core.sent
        headers = {b"authorization": outer.headers[b"authorization"], b"content-type": b"application/json"}
        headers[b"content-length"] = b"%d" % len(payload)
        exchange = Exchange(received(payload), headers, outer.peer, outer.request_id, False)
        handlers = {"GET": sent.get_email, "PATCH": sent.reschedule_email, "POST": sent.cancel_email_delivery}
        return await handlers[method](exchange, self._address, parts[0])

    def _scope(self, method: str, path: str, query: Mapping[str, Any], key: KeyPrincipal, size: int) -> AsgiScope:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % size)]
        authorization = self._exchange.headers.get(b"authorization")
        return {
            "type": "http",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode({name: value for name, value in query.items() if value is not None}).encode(),
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
            "state": {},
            "extensions": {},
            "appliance": (self._exchange.request_id, self._address, authorization),
            "principal": key,
        }


def _parameters(query: bytes, known: Sequence[str], spelled: Callable[[str], str]) -> dict[str, str]:
    if len(query) > QUERY_BYTES:
        raise Refused(Code.INVALID_REQUEST, f"The query is too long (limit {QUERY_BYTES} bytes). Shorten it.")
    parameters: dict[str, str] = {}
    for given, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if (name := spelled(given)) not in known:
            raise invalid(given[:64], "this parameter does not exist here")
        if name in parameters:
            raise invalid(given, "this parameter occurs twice")
        parameters[name] = value
    return parameters


# ---- errors


def _within(refused: PublicError, door: Door) -> Refused:
    """A refusal of one message, with the provider's names and without the message's place."""
    return Refused(refused.code, refused.reason, field=_named(refused, _PLACE.sub("", refused.field), door.names))


def _named(refused: PublicError, field: str, names: Mapping[str, str]) -> str:
    """The provider's name of a field. It stays if the client wrote it so, such as an unknown one or `template.id`."""
    if refused.reason == UNKNOWN_FIELD or field in names.values():
        return field
    return _WORD.sub(lambda word: names.get(word[0], word[0]), field)


def _refusal(door: Door, refused: PublicError, name: str, *, has_credential: bool) -> DoorReply:
    REFUSALS.add(("http", refused.code))
    text = f"{name}: {refused.reason}" if name else refused.reason
    status, body = door.refuse(Refusal(refused.code, text, name, has_credential))
    retry = [] if refused.retry_after is None else [(b"retry-after", b"%d" % refused.retry_after)]
    return DoorReply(body, status, retry)
