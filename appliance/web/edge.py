"""The ASGI application in front of Quart: gives every request its id, checks it, and answers `/emails` itself.

`POST /emails` and `GET /emails/{id}` carry the load and are answered here without Quart. Whatever can be refused is
refused before the body is read.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio

from appliance.config.settings import HttpSettings
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused
from appliance.feedback.unsubscribe import UNSUBSCRIBE_PATH
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import RequestRate
from appliance.message.cost import of_size
from appliance.message.request import decode
from appliance.model.accounts import Caller
from appliance.model.mail import Message, Source
from appliance.net.address_policy import client_network
from appliance.store import Store
from appliance.store.sqlite.faults import translated
from appliance.telemetry.log import get_logger
from appliance.web.answer import (
    OUR_FAULT,
    SECURITY_HEADERS,
    Answer,
    Headers,
    MethodNotAllowed,
    error_answer,
    json_answer,
    refusal_answer,
)
from appliance.web.auth import Authenticator, check_reach, sees
from appliance.web.body import (
    BodyBudgets,
    ClientGone,
    Receive,
    RequestBody,
    check_content_type,
    check_encoding,
    declared_length,
    idempotency_key,
)
from appliance.web.fast_post import QuickRequest
from appliance.web.http1 import Peer
from appliance.web.live import LIVE_PATH, STREAMS_PART, LiveStreams, stream_headers
from appliance.web.message_json import message_json
from appliance.web.session_cookie import COOKIE_NAME

V1_BODY = 64 * 1024  # bytes
DROPPED_BODY = 64 * 1024  # bytes of a body that is dropped to keep the connection of a client that calls too often
RECHECK_AFTER = 1.0  # seconds that a body may take before its sender is authenticated again
UNAUTHENTICATED_BODIES = frozenset({"/v1/auth/login", "/v1/auth/invitation"})
BY_COOKIE = "/v1/auth/refresh"  # needs no Authorization header, takes no body, and adds no row
# What must work on a full disk, besides DELETE: to log out, and to stop what fills it.
ON_A_FULL_DISK = ("/v1/auth/logout", "/v1/admin/")
# Bounds of what Quart takes apart on the event loop, so that the worst of it takes 2 ms.
OPTIONAL_FIELDS = frozenset({b"accept-encoding", b"if-none-match"})  # HTTP allows to ignore them
OPTIONAL_FIELD = 512  # bytes; browsers send 30 and 40
QUERY_PARAMETERS, QUERY_ESCAPES = 100, 2_000  # all filters of a list at once have 12, and 1,400 bytes outside ASCII
UNSUBSCRIBE_BODY = 8 * 1024  # bytes; a form with one field has 200 at most

AsgiSend = Callable[[Any], Awaitable[None]]
AsgiScope = dict[str, Any]

# What the router of Quart accepts: an empty or overlong label would make it fail.
_HOST = re.compile(
    rb"(?:[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?|\[[0-9a-f:.]{2,45}\])?(?::[0-9]{0,5})?", re.IGNORECASE
)
_SLASHES = re.compile("/+")
_OWN_COOKIE = re.compile(rb"(?:^|;)[ \t]*(%s=[^;]{0,200})(?:;|$)" % COOKIE_NAME.encode())
_HSTS = (b"strict-transport-security", b"max-age=31536000")
_CLOSE = (b"connection", b"close")

log = get_logger("web")


@dataclass(slots=True, kw_only=True)
class Edge:
    """The ASGI application that hypercorn serves."""

    intake: MessageIntake
    store: Store
    env: Environment
    auth: Authenticator
    rate: RequestRate
    read_rate: RequestRate
    settings: HttpSettings  # may be replaced between requests
    stopping: trio.Event
    pages: Callable[..., Awaitable[None]]  # Quart: everything that is not answered here
    budgets: BodyBudgets
    streams: LiveStreams

    async def __call__(self, scope: AsgiScope, receive: Receive, send: AsgiSend) -> None:
        """Answer one request; whatever goes wrong, with the error object."""
        if scope["type"] != "http":
            await self.pages(scope, receive, send)
            return
        request_id = self.env.identifier("req")
        exchange = _AsgiExchange(receive, send, scope, request_id)
        try:
            answer = await self._answer(scope, exchange)
        except ClientGone:
            return
        except Exception as error:
            answer = _failure(error, request_id, scope["method"], scope["path"])
            await _keep_connection(exchange, error)
        if answer is not None:
            await exchange.send(answer)

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[Answer, bool]:
        """The answer to a `POST /emails` that was read whole, and whether the connection must be closed after it."""
        request_id = self.env.identifier("req")
        exchange = _Exchange(_once(request.body), request.headers, peer, request_id, secure=secure)
        exchange.expects_body = request.headers[b"content-length"] != b"0"
        try:
            answer = await self._send(exchange, self.client_address(peer, request.headers))
        except Exception as error:
            answer = _failure(error, request_id, "POST", "/emails")
            await _keep_connection(exchange, error)
        status, headers, body = answer
        return (status, exchange.framed(headers), body), exchange.expects_body

    async def _answer(self, scope: AsgiScope, exchange: "_AsgiExchange") -> Answer | None:
        headers = exchange.headers
        if len(headers) < len(scope["headers"]):
            times = Counter(name for name, _ in scope["headers"])
            exchange.doubled = frozenset(name for name in times if times[name] > 1)
        if b"authorization" in exchange.doubled:
            raise Refused(Code.UNAUTHORIZED, "Send one Authorization header, not several.")
        exchange.expects_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        given = scope["path"]
        path = scope["path"] = _route(given)
        if path == "/emails" and given.endswith("/") and scope["method"] in ("GET", "HEAD"):
            path = "/emails/"  # the id is missing: not found
        address = self.client_address(exchange.peer, headers)
        if path == "/emails":
            _check_method(scope, ("POST",))
            return await self._send(exchange, address)
        if path.startswith("/emails/") and path.count("/") == 2:
            _check_method(scope, ("GET", "HEAD"))
            return await self._read(exchange, address, path.removeprefix("/emails/"))
        if path == LIVE_PATH:
            _check_method(scope, ("GET",))
            await self._stream(exchange, address)
        else:
            await self._pass_on(scope, exchange, address)
        return None

    # ---- POST /emails

    async def _send(self, exchange: "_Exchange", address: str) -> Answer:
        headers, request_id = exchange.headers, exchange.request_id
        caller = await self._sender(exchange, address)
        if self.stopping.is_set():
            text = "The server is shutting down. Retry in a moment with the same key."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)
        self.rate.take(caller.idempotency_scope)
        length = declared_length(headers, self.settings.max_body)
        check_content_type(headers.get(b"content-type", b""))
        check_encoding(headers.get(b"content-encoding"))
        key = idempotency_key(headers.get(b"idempotency-key"), doubled=b"idempotency-key" in exchange.doubled)
        self.intake.check_open(caller)
        memory, began = self.budgets.of_account(caller.account_id), trio.current_time()
        async with RequestBody(exchange.receive, length, self.settings.max_body, memory) as body:
            size = len(body)
            request = await self.intake.workers.run(caller.account_id, of_size(size), decode, body)
            body.clear()  # decoded: memory is not enough for both of a large message
            if trio.current_time() - began > RECHECK_AFTER:  # the key or the domain may be gone by now
                caller = await self._sender(exchange, address)
                self.intake.check_open(caller)
            accepted = await self.intake.send(caller, request, key, request_id, size)
        answer = json_answer(accepted.receipt, request_id)
        if accepted.replay_of is not None:
            answer.append((b"idempotent-replayed", b"true"))
            answer.append((b"original-request-id", accepted.replay_of.encode("ascii")))
        return 202, answer, accepted.receipt

    async def _sender(self, exchange: "_Exchange", address: str) -> Caller:
        """The caller of the request, who may send."""
        caller = await self.auth.caller(exchange.headers.get(b"authorization"), address)
        exchange.peer.authenticated = True
        if not caller.may_send:
            what = "login" if caller.key is None else "API key, whose scope is read,"
            raise Refused(Code.FORBIDDEN, f"With this {what} you may only read, not send.")
        return caller

    # ---- GET /emails/{id}

    async def _read(self, exchange: "_Exchange", address: str, message_id: str) -> Answer:
        try:
            caller = await self.auth.caller(exchange.headers.get(b"authorization"), address)
        except Refused as refused:
            if refused.code is not Code.FORBIDDEN:
                raise
            raise Refused(Code.UNAUTHORIZED, refused.text) from refused  # by the interface no read is forbidden
        exchange.peer.authenticated = True
        if not caller.may_read:
            raise Refused(Code.UNAUTHORIZED, "this key may only send")
        message = await self.store.messages.read(caller.account_id, message_id)
        if message is None or not await self._may_see(caller, message):
            raise Refused(Code.NOT_FOUND, "There is no message with this id.")
        body = message_json(message, exchange.request_id)
        return 200, json_answer(body, exchange.request_id), body

    async def _may_see(self, caller: Caller, message: Message) -> bool:
        """Whether the limits of the caller's key allow this message: its domain, and for a test key simulated mail."""
        if not sees(caller.key, message):
            return False
        if caller.key is None or not caller.key.test:
            return True
        facts = await self.store.mail_log.facts(caller.account_id, message.id)
        return message.source is Source.TEST and facts is not None and facts.simulated

    # ---- GET /dashboard/live

    async def _stream(self, exchange: "_AsgiExchange", address: str) -> None:
        authorization = exchange.headers.get(b"authorization")
        principal = await self.auth.principal(authorization, address)
        check_reach(principal)
        exchange.peer.authenticated = True
        most = self.settings.max_connections // STREAMS_PART
        network = client_network(address)

        async def is_valid() -> bool:
            return await self.auth.is_still_valid(authorization)

        await self.streams.serve(
            principal.account_id, network, exchange.peer, most, exchange.write, is_valid, lambda: self.auth.changes
        )

    # ---- everything else

    async def _pass_on(self, scope: AsgiScope, exchange: "_AsgiExchange", address: str) -> None:
        """Let Quart answer, with a small body, read whole, from a user who may send one.

        Under /v1 every request counts for the rate of its user: those that only read in a bucket of their own. Both are
        refused here, before Quart has any work with them.
        """
        headers = exchange.headers
        if not _HOST.fullmatch(headers.get(b"host", b"")):
            raise Refused(Code.INVALID_REQUEST, "Host: must be a host name or an IP address, with or without a port")
        _check_query(scope["query_string"])
        scope["headers"] = _cheap_fields(scope["headers"])
        authorization = headers.get(b"authorization")
        scope["appliance"] = (exchange.request_id, address, authorization)
        if not scope["path"].startswith("/v1/"):
            # No other route outside /v1 takes a body: one that was announced stays unread.
            if scope["method"] == "POST" and scope["path"].startswith(f"{UNSUBSCRIBE_PATH}/"):
                await self._read_away(exchange, client_network(address))
            await self.pages(scope, _once(b""), exchange.pass_on)
            return
        length = declared_length(headers, V1_BODY)
        memory = self.budgets.of_network(client_network(address))
        check_encoding(headers.get(b"content-encoding"))
        method, path = scope["method"], scope["path"]
        changes = method not in ("GET", "HEAD") and path != BY_COOKIE
        if not changes and not exchange.expects_body and authorization is not None:
            principal = await self.auth.principal(authorization, address)
            exchange.peer.authenticated = True
            self.read_rate.take(f"user:{principal.id}")
            scope["principal"] = principal
        elif (changes or exchange.expects_body) and path not in UNAUTHENTICATED_BODIES:
            principal = await self.auth.principal(authorization, address)
            exchange.peer.authenticated = True
            memory = self.budgets.of_account(principal.account_id)
            self.rate.take(f"user:{principal.id}")
            if method != "DELETE" and not path.startswith(ON_A_FULL_DISK):
                self.intake.check_disk()
        async with RequestBody(exchange.receive, length, V1_BODY, memory) as body:
            await self.pages(scope, _once(bytes(body)), exchange.pass_on)

    async def _read_away(self, exchange: "_AsgiExchange", network: str) -> None:
        """Read the body of a link's POST, in which there is nothing to know (RFC 8058 3.2)."""
        length = declared_length(exchange.headers, UNSUBSCRIBE_BODY)
        async with RequestBody(exchange.receive, length, UNSUBSCRIBE_BODY, self.budgets.of_network(network)):
            pass

    # ---- checks

    def client_address(self, peer: Peer, headers: dict[bytes, bytes]) -> str:
        """The address of the client: the peer, or what a trusted proxy says in X-Forwarded-For."""
        client = peer.address[0] if peer.address else "0.0.0.0"  # noqa: S104 - "unknown", not a bind
        forwarded = headers.get(b"x-forwarded-for")
        if forwarded is None or not self._trusted(client):
            return client
        for hop in reversed(forwarded.decode("latin-1").split(",")):
            try:
                address = ipaddress.ip_address(hop.strip())
            except ValueError:
                break
            client = str(address)
            if not self._trusted(client):
                break
        return client

    def _trusted(self, client: str) -> bool:
        address = ipaddress.ip_address(client.partition("%")[0])
        return any(address in network for network in self.settings.trusted_proxies)


def _failure(error: Exception, request_id: str, method: str, path: str) -> Answer:
    """The answer to a request that failed; called while the error is being handled."""
    error = translated(error)  # a full or failing disk is not a bug
    if not isinstance(error, PublicError):
        log.exception("request failed", request_id=request_id, method=method, path=path[:200])
        return error_answer(Code.INTERNAL_ERROR, OUR_FAULT, request_id)
    if error.__cause__ is not None and error.code.status >= 500:
        log.error("request refused", request_id=request_id, cause=repr(error.__cause__))
    answer = refusal_answer(error, request_id)
    # Release the frames of the error, and with them the body. An error raised in a thread is part of a reference cycle,
    # which is collected much later: sixty refused bodies of 15 MB held two gigabytes.
    chained: BaseException | None = error
    while chained is not None:
        chained.__traceback__ = None
        chained = chained.__cause__ or chained.__context__
    return answer


async def _keep_connection(exchange: "_Exchange", error: Exception) -> None:
    """After a 429 drop a small body unread, so that the connection stays open.

    A client that calls too often would else connect again for each call, which costs more than the call.
    """
    if not isinstance(error, Refused) or error.code is not Code.RATE_LIMITED or b"expect" in exchange.headers:
        return
    if not 0 < int(exchange.headers.get(b"content-length", b"0")) <= DROPPED_BODY:
        return
    while exchange.expects_body and (await exchange.receive())["type"] == "http.request":
        pass


def _route(path: str) -> str:
    """The path without slashes at its end and doubled ones at its beginning, which clients make when they join URLs.

    Doubled slashes inside are removed below /emails only: below /v1 they may be part of an address.
    """
    if path[-1:] != "/" and "//" not in path:
        return path
    path = "/" + path.strip("/")
    return _SLASHES.sub("/", path) if path.startswith("/emails/") else path


def _check_method(scope: AsgiScope, allowed: tuple[str, ...]) -> None:
    if scope["method"] not in allowed:
        raise MethodNotAllowed(allowed)


def _check_query(query: bytes) -> None:
    if query.count(b"&") >= QUERY_PARAMETERS:
        raise Refused(Code.INVALID_REQUEST, f"The query may have {QUERY_PARAMETERS} parameters at most.")
    if query.count(b"%") > QUERY_ESCAPES:
        raise Refused(Code.INVALID_REQUEST, f"The query may have {QUERY_ESCAPES:,} escaped bytes (%XX) at most.")


def _cheap_fields(headers: Headers) -> Headers:
    """The header fields without those that are costly to take apart, and of the cookies only the session's.

    Other applications on the same host may have set any number of cookies.
    """
    passed = []
    for name, value in headers:
        if name == b"cookie":
            passed += [(name, own[1])] if (own := _OWN_COOKIE.search(value)) else []
        elif name not in OPTIONAL_FIELDS or len(value) <= OPTIONAL_FIELD:
            passed.append((name, value))
    return passed


class _Exchange:
    """One request and its answer, and whether its body is still to be read."""

    doubled: frozenset[bytes] = frozenset()  # headers that occur twice: a proxy in between may have read the other one
    expects_body = False

    def __init__(
        self, receive: Receive, headers: dict[bytes, bytes], peer: Peer, request_id: str, *, secure: bool
    ) -> None:
        self._receive = receive
        self.headers = headers
        self.peer = peer
        self.request_id = request_id
        self._secure = secure

    async def receive(self) -> dict[str, Any]:
        """The next ASGI event of the body."""
        event = await self._receive()
        if not event.get("more_body", False):
            self.expects_body = False
        return event

    def framed(self, headers: Headers) -> Headers:
        """The headers of an answer, with those of the connection."""
        if self._secure:
            headers = [*headers, _HSTS]
        if self.expects_body:
            # Refused unread: the next bytes on the connection are the rest of that body.
            headers = [*headers, _CLOSE]
        return headers


class _AsgiExchange(_Exchange):
    _begun = False  # a stream

    def __init__(self, receive: Receive, send: AsgiSend, scope: AsgiScope, request_id: str) -> None:
        secure = scope["scheme"] == "https"
        super().__init__(receive, dict(scope["headers"]), scope["peer"], request_id, secure=secure)
        self._send = send

    async def send(self, answer: Answer) -> None:
        status, headers, body = answer
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def write(self, data: bytes, more: bool) -> None:
        """A piece of a stream, which leaves at once."""
        if not self._begun:
            self._begun = True
            await self._start(200, stream_headers(self.request_id))
        await self._send({"type": "http.response.body", "body": data, "more_body": more, "flush": more})

    async def _start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": self.framed(headers)})

    async def pass_on(self, event: Any) -> None:
        """The ASGI `send` for Quart: adds the request id, and the security headers that the answer does not set."""
        if event["type"] == "http.response.start":
            given = {name for name, _ in event["headers"]}
            ours = [header for header in SECURITY_HEADERS if header[0] not in given]
            identified = (b"x-request-id", self.request_id.encode("ascii"))
            await self._start(event["status"], [*event["headers"], identified, *ours])
        else:
            await self._send(event)


def _once(body: bytes) -> Receive:
    """The ASGI `receive` for a body read already; a client that disconnects cancels nothing."""
    given = False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await trio.sleep_forever()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
