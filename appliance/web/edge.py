"""The ASGI application in front of Quart. It assigns request ids, checks requests, and answers `/emails` itself.

`POST /emails` and `/emails/{id}` (`sent.py`) carry the load and bypass Quart. Every check that needs no body runs
before the body is read.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Awaitable, Callable

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.config.settings import HttpSettings
from appliance.errors import Code, Refused
from appliance.feedback.return_path import UNSUBSCRIBE_PATH
from appliance.intake.accept import Accepted
from appliance.intake.batch import BatchIntake
from appliance.intake.limits import RequestRate
from appliance.intake.request_log import LARGE_BODY, RequestLog, SubmittedRequest, shortened
from appliance.message.batch import Batch, Series, cost_of_batch, decode_batch
from appliance.message.characters import cost_of_size
from appliance.message.quick_fingerprint import QUICK_FROM, is_quick, of_kind, quick_fingerprint
from appliance.message.request import Body, Mime, decode, fingerprint
from appliance.message.schema import BatchReceipt, BatchRequest, Receipt, SendRequest
from appliance.model.accounts import Caller
from appliance.model.mail import Source
from appliance.net.address_policy import client_network
from appliance.web.app import ApiServices
from appliance.web.auth import COOKIE_NAME, check_may_send, check_reach
from appliance.web.doors.serving import ONE_AUTHORIZATION, Doors
from appliance.web.exchange import (
    Answer,
    AsgiExchange,
    AsgiScope,
    AsgiSend,
    BodyBudgets,
    ClientGone,
    Exchange,
    Form,
    Headers,
    MethodNotAllowed,
    Peer,
    Receive,
    RequestBody,
    check_encoding,
    declared_length,
    failure_answer,
    json_answer,
    keep_connection,
    received,
)
from appliance.web.http1 import QuickRequest
from appliance.web.live import LIVE_PATH, STREAMS_PART, LiveStreams
from appliance.web.operations import KEY_PARAMETER, SEND, Operation
from appliance.web.sent import SentMessages

NO_PATH = "Nothing exists at this path. See /openapi.json for all paths."
V1_BODY = 64 * 1024  # bytes
RECHECK_AFTER = 1.0  # seconds after which a slow body's sender is authenticated again
BY_COOKIE = "/v1/auth/refresh"  # needs no Authorization header and no body, and adds no row
# Requests that work on a full disk, besides DELETE: logging out, and stopping what fills the disk.
ON_A_FULL_DISK = ("/v1/auth/logout", "/v1/admin/")
# Limits on what Quart parses on the event loop; the worst case takes 2 ms.
OPTIONAL_FIELDS = frozenset({b"accept-encoding", b"if-none-match"})  # HTTP allows a server to ignore them
OPTIONAL_FIELD = 512  # bytes; browsers send 30 and 40
QUERY_PARAMETERS, QUERY_ESCAPES = 50, 1_500  # all list filters together have 12 parameters and 1,400 escaped bytes
UNSUBSCRIBE_BODY = 8 * 1024  # bytes; a form with one field has at most 200

# The hosts that Quart's router accepts; it fails on an empty or overlong label.
_HOST = re.compile(
    rb"(?:[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?|\[[0-9a-f:.]{2,45}\])?(?::[0-9]{0,5})?", re.IGNORECASE
)
_CANCEL = re.compile("/emails/([^/]+)/cancel")
_SLASHES = re.compile("/+")
_OWN_NAME = COOKIE_NAME.encode()
_OWN_COOKIE = re.compile(rb"(?:^|;)[ \t]*(%s=[^;]{0,200})(?:;|$)" % _OWN_NAME)

_GET_EMAIL = {
    "operationId": "getEmail",
    "parameters": {"id": "$response.body#/id"},
    "description": "Status of the message.",
}

_MESSAGE = Form(decode, lambda body: cost_of_size(len(body)))
_BATCH = Form(decode_batch, lambda body: cost_of_batch(len(body)))


class Edge(Struct, kw_only=True):
    services: ApiServices
    rate: RequestRate
    read_rate: RequestRate
    requests: RequestLog
    settings: HttpSettings  # may be replaced between requests
    pages: Callable[..., Awaitable[None]]  # Quart, for all other paths
    open_bodies: frozenset[str]  # paths under /v1 that take a body from anyone
    budgets: BodyBudgets
    sent: SentMessages
    streams: LiveStreams
    batches: BatchIntake
    doors: Doors

    async def __call__(self, scope: AsgiScope, receive: Receive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await self.pages(scope, receive, send)
            return
        request_id = self.services.env.identifier("req")
        exchange = AsgiExchange(receive, send, scope, request_id)
        try:
            answer = await self._answer(scope, exchange)
        except ClientGone:
            return
        except Exception as error:
            answer = failure_answer(error, request_id, scope["method"], scope["path"])
            await keep_connection(exchange, error)
        if answer is not None:
            await exchange.send(answer)

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[Answer, bool]:
        """Answer a complete POST that sends. Return the answer, and whether the connection must close."""
        request_id = self.services.env.identifier("req")
        exchange = Exchange(received(request.body), request.headers, peer, request_id, secure)
        exchange.expects_body = request.headers[b"content-length"] != b"0"
        address = self.client_address(peer, request.headers)
        try:
            if request.path == "/emails":
                answer = await self.send_email(exchange, address)
            elif (found := self.doors.find(self.settings.doors, request.path, request.headers)) is not None:
                answer = await self.doors.answer(self, exchange, address, found, "POST", b"")
            else:
                raise Refused(Code.NOT_FOUND, NO_PATH)
        except Exception as error:
            answer = failure_answer(error, request_id, "POST", request.path)
            await keep_connection(exchange, error)
        status, headers, body = answer
        return (status, exchange.framed(headers), body), exchange.expects_body

    async def _answer(self, scope: AsgiScope, exchange: AsgiExchange) -> Answer | None:
        headers = exchange.headers
        if len(headers) < len(scope["headers"]):
            times = Counter(name for name, _ in scope["headers"])
            exchange.doubled = frozenset(name for name in times if times[name] > 1)
        exchange.expects_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        raw_path = scope["path"]
        if (found := self.doors.find(self.settings.doors, raw_path, headers)) is not None:
            address = self.client_address(exchange.peer, headers)
            return await self.doors.answer(self, exchange, address, found, scope["method"], scope["query_string"])
        if b"authorization" in exchange.doubled:
            raise Refused(Code.UNAUTHORIZED, ONE_AUTHORIZATION)
        path = scope["path"] = _route(raw_path)
        if path == "/emails" and raw_path.endswith("/") and scope["method"] in ("GET", "HEAD"):
            path = "/emails/"  # the id is missing: not found
        address = self.client_address(exchange.peer, headers)
        if path == "/emails":
            _check_method(scope, ("POST",))
            return await self.send_email(exchange, address)
        if path == "/emails/batch":
            _check_method(scope, ("POST",))
            return await self.send_batch(exchange, address)
        if path.startswith("/emails/") and path.count("/") == 2:
            _check_method(scope, ("GET", "HEAD", "PATCH"))
            change = scope["method"] == "PATCH"
            handler = self.sent.reschedule_email if change else self.sent.get_email
            return await handler(exchange, address, path.removeprefix("/emails/"))
        if (match := _CANCEL.fullmatch(path)) is not None:
            _check_method(scope, ("POST",))
            return await self.sent.cancel_email_delivery(exchange, address, match[1])
        if path == LIVE_PATH:
            _check_method(scope, ("GET",))
            await self._stream(exchange, address)
        else:
            await self._pass_on(scope, exchange, address)
        return None

    # ---- POST /emails

    @Operation(
        "POST /emails",
        (202, Receipt, "Stored on disk. A retry also has `Idempotent-Replayed` and `Original-Request-ID`."),
        tuple(code for code in Code if code not in (Code.NOT_FOUND, Code.CONFLICT)),
        SendRequest,
        SEND,
        (KEY_PARAMETER,),
        ("Idempotent-Replayed", "Original-Request-ID"),
        links={"getEmail": _GET_EMAIL},
    )
    async def send_email(self, exchange: Exchange, address: str) -> Answer:
        """Accept a message for delivery.

        Each unique recipient reserves one credit. A 202 means that the message is stored on disk, not that it was
        delivered. Read the result with `getEmail` or receive it by webhook.

        After no response, a 429, a 503 or `idempotency_in_progress`, retry with the same `Idempotency-Key` and body.
        The message is never accepted twice.
        """
        return self._accepted(await self.submit(exchange, address, "POST /emails", _MESSAGE), exchange)

    @Operation(
        "POST /emails/batch",
        (202, BatchReceipt, "Stored on disk. A retry also has `Idempotent-Replayed` and `Original-Request-ID`."),
        tuple(code for code in Code if code not in (Code.NOT_FOUND, Code.CONFLICT)),
        BatchRequest,
        SEND,
        (KEY_PARAMETER,),
        ("Idempotent-Replayed", "Original-Request-ID"),
    )
    async def send_batch(self, exchange: Exchange, address: str) -> Answer:
        """Accept up to 100 messages for delivery, all in one transaction.

        The rules and credits of each message are those of `sendEmail`. One bad message refuses all of them, and `error`
        starts with its place, as in `emails[3].to: …`. With `on_error` `skip` the others are accepted, unless all are
        bad. Every 10 messages begun count as one request against the rate.

        One `Idempotency-Key` covers the call: a retry returns the results of the first one.
        """
        return self._accepted(await self.submit(exchange, address, "POST /emails/batch", _BATCH), exchange)

    def _accepted(self, accepted: Accepted, exchange: Exchange) -> Answer:
        answer = json_answer(accepted.receipt, exchange.request_id)
        if accepted.replay_of is not None:
            answer.append((b"idempotent-replayed", b"true"))
            answer.append((b"original-request-id", accepted.replay_of.encode("ascii")))
        return 202, answer, accepted.receipt

    async def submit(self, exchange: Exchange, address: str, route: str, form: Form) -> Accepted:
        """Accept the messages of a request, and log it."""
        caller = await self._sender(exchange, address)
        submission = SubmittedRequest(caller, exchange.request_id, form.source, route, address)
        try:
            accepted = await self._accept(exchange, submission, form)
        except ClientGone:
            raise
        except Exception as error:
            self.requests.failed(submission, error)
            raise
        self.requests.accepted(submission, form.status, accepted.message_id)
        return accepted

    async def _accept(self, exchange: Exchange, submission: SubmittedRequest, form: Form) -> Accepted:
        headers, caller = exchange.headers, submission.caller
        check_may_send(caller)
        if self.services.stopping.is_set():
            text = "The server is shutting down. Retry in a few seconds with the same Idempotency-Key."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)
        self.rate.take(caller.idempotency_scope)
        length = declared_length(headers, self.settings.max_body)
        form.check_type(headers.get(b"content-type", b""))
        check_encoding(headers.get(b"content-encoding"))
        key = form.key(exchange)
        self.services.intake.check_open(caller)
        memory, began = self.budgets.of_account(caller.account_id), trio.current_time()
        async with RequestBody(exchange.receive, length, self.settings.max_body, memory) as body:
            submission.size = size = len(body)
            if form.source == "api":  # the request log knows the secrets of our own requests only
                submission.body = bytes(body[:LARGE_BODY])
            workers, cost = self.services.intake.workers, form.cost(body)
            # In a cluster, a node of an earlier version may get the retry, and knows only the other fingerprint.
            quick = size > QUICK_FROM and not self.services.store.engine.is_shared
            request, digest, shown = await workers.run(caller.account_id, cost, _read, form, body, key, quick)
            body.clear()  # frees memory: a large message does not fit twice
            if isinstance(request, Batch | Series):
                self.rate.take(caller.idempotency_scope, request.requests, paid=1)
            if shown is not None:
                submission.body = shown
            if trio.current_time() - began > RECHECK_AFTER:  # the key or the domain may be revoked by now
                caller = await self._sender(exchange, submission.client)
                check_may_send(caller)
                self.services.intake.check_open(caller)
            if form.is_test():
                caller = replace(caller, test=True)
            if isinstance(request, Mime):
                return await self._accept_mime(caller, request, exchange.request_id)
            if isinstance(request, Batch | Series):
                return await self.batches.send(caller, request, key, exchange.request_id, size)
            if key is not None and size > QUICK_FROM:
                digest = await self._comparable(caller, request, key, digest, cost)
            return await self.services.intake.send(caller, request, key, digest, exchange.request_id, size)

    async def _comparable(self, caller: Caller, request: SendRequest, key: str, digest: bytes, cost: float) -> bytes:
        """The fingerprint of the same kind as the stored one, if an earlier version or a cluster has accepted this.

        The intake does not look before it composes the message, which releases the files.
        """
        messages = self.services.store.messages
        earlier = await messages.remembered(caller.account_id, caller.idempotency_scope, key)
        if earlier is None or is_quick(earlier.fingerprint) == is_quick(digest):
            return digest
        stored, workers = earlier.fingerprint, self.services.intake.workers
        return await workers.run(caller.account_id, cost, of_kind, stored, request, key)

    async def _accept_mime(self, caller: Caller, mime: Mime, request_id: str) -> Accepted:
        submitted = await self.services.intake.submit(
            caller, mime.sender, mime.recipients, mime.data, request_id, hold=mime.due_at, source=Source.API
        )
        return Accepted(b"", submitted.message_id)

    async def _sender(self, exchange: Exchange, address: str) -> Caller:
        caller = await self.services.auth.caller(exchange.headers.get(b"authorization"), address)
        exchange.peer.authenticated = True
        return caller

    # ---- GET /dashboard/live

    async def _stream(self, exchange: AsgiExchange, address: str) -> None:
        authorization = exchange.headers.get(b"authorization")
        principal = await self.services.auth.principal(authorization, address)
        check_reach(principal)
        exchange.peer.authenticated = True
        await self.streams.serve(
            principal.account_id,
            client_network(address),
            exchange.peer,
            self.settings.max_connections // STREAMS_PART,
            exchange.write,
            lambda: self.services.auth.is_still_valid(authorization),
            lambda: self.services.auth.changes,
        )

    # ---- everything else

    async def _pass_on(self, scope: AsgiScope, exchange: AsgiExchange, address: str) -> None:
        """Let Quart answer, with a small, complete body from a user who may send one.

        Under /v1, every request counts for its user's rate limit. Reads have their own. Both are checked before Quart
        runs.
        """
        headers = exchange.headers
        if not _HOST.fullmatch(headers.get(b"host", b"")):
            raise Refused(Code.INVALID_REQUEST, "Host: expected a host name or an IP address, with an optional port.")
        _check_query(scope["query_string"])
        scope["headers"] = _cheap_fields(scope["headers"])
        authorization, network = headers.get(b"authorization"), client_network(address)
        scope["appliance"] = (exchange.request_id, address, authorization)
        if not scope["path"].startswith("/v1/"):
            # No other route outside /v1 takes a body; an announced one stays unread.
            if scope["method"] == "POST" and scope["path"].startswith(f"{UNSUBSCRIBE_PATH}/"):
                # Discard the body, which carries no information (RFC 8058 3.2).
                length, memory = declared_length(headers, UNSUBSCRIBE_BODY), self.budgets.of_network(network)
                async with RequestBody(exchange.receive, length, UNSUBSCRIBE_BODY, memory):
                    pass
            await self.pages(scope, received(b""), exchange.pass_on)
            return
        length = declared_length(headers, V1_BODY)
        memory = self.budgets.of_network(network)
        check_encoding(headers.get(b"content-encoding"))
        method, path = scope["method"], scope["path"]
        changes = method not in ("GET", "HEAD") and path != BY_COOKIE
        if not changes and not exchange.expects_body and authorization is not None:
            principal = await self.services.auth.principal(authorization, address)
            exchange.peer.authenticated = True
            self.read_rate.take(f"user:{principal.id}")
            scope["principal"] = principal
        elif (changes or exchange.expects_body) and path not in self.open_bodies:
            principal = await self.services.auth.principal(authorization, address)
            exchange.peer.authenticated = True
            memory = self.budgets.of_account(principal.account_id)
            self.rate.take(f"user:{principal.id}")
            if method != "DELETE" and not path.startswith(ON_A_FULL_DISK):
                self.services.intake.check_disk()
        async with RequestBody(exchange.receive, length, V1_BODY, memory) as body:
            await self.pages(scope, received(bytes(body)), exchange.pass_on)

    # ---- checks

    def client_address(self, peer: Peer, headers: dict[bytes, bytes]) -> str:
        """The client's address: the peer, or the address that a trusted proxy reports in X-Forwarded-For."""
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


def _read(
    form: Form, body: Body, key: str | None, quick: bool
) -> tuple[SendRequest | Batch | Series | Mime, bytes, str | None]:
    """Decode a body; return its fingerprint, too, and the text for the request log unless that is the body itself.

    All in one job: after each, the worker thread rests.
    """
    request = form.decode(body)
    digest = b""
    if key is not None and isinstance(request, SendRequest):
        digest = quick_fingerprint(request, key) if quick else fingerprint(request)
    return request, digest, shortened(request) if len(body) > LARGE_BODY or form.source != "api" else None


def _route(path: str) -> str:
    """Normalize slashes of joined URLs: trailing, doubled leading, and below /emails inner ones (not in addresses)."""
    if path[-1:] != "/" and "//" not in path:
        return path
    path = "/" + path.strip("/")
    return _SLASHES.sub("/", path) if path.startswith("/emails/") else path


def _check_method(scope: AsgiScope, allowed: tuple[str, ...]) -> None:
    if scope["method"] not in allowed:
        raise MethodNotAllowed(allowed)


def _check_query(query: bytes) -> None:
    if query.count(b"&") >= QUERY_PARAMETERS:
        text = f"The query has too many parameters (limit {QUERY_PARAMETERS}). Send fewer."
        raise Refused(Code.INVALID_REQUEST, text)
    if query.count(b"%") > QUERY_ESCAPES:
        text = f"The query has too many escaped bytes (limit {QUERY_ESCAPES:,}). Shorten it."
        raise Refused(Code.INVALID_REQUEST, text)


def _cheap_fields(headers: Headers) -> Headers:
    """Drop headers that are expensive to parse, and the cookies of other applications on the same host."""
    passed = []
    for name, value in headers:
        if name == b"cookie":
            own = _OWN_COOKIE.search(value) if _OWN_NAME in value else None
            passed += [(name, own[1])] if own else []
        elif name not in OPTIONAL_FIELDS or len(value) <= OPTIONAL_FIELD:
            passed.append((name, value))
    return passed
