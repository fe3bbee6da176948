"""Runs SMTP services on the configured addresses: submission here, feedback in `inbound/`.

`net/connection_server.py` accepts and limits the connections, by client network and by credential. An error in one
connection ends that connection only. On shutdown, messages under way finish within their part of
`server.shutdown_timeout`.
"""

import asyncio
import asyncio.events
import ipaddress
import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
import trio
from msgspec import Struct

from appliance.concurrency.fair_share import MemoryBudget
from appliance.config.load import LiveSettings
from appliance.config.settings import Config
from appliance.config.values import Endpoint
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused
from appliance.intake.request_log import SubmittedRequest
from appliance.intake.services import IntakeServices
from appliance.message.addresses import Address
from appliance.message.characters import cost_of_size
from appliance.message.limits import RECIPIENTS
from appliance.model.accounts import Caller
from appliance.net.connection_server import ConnectionServer, ConnectionTable, KnownNetworks, listen
from appliance.submission import dialogue
from appliance.submission.connection import SmtpSession
from appliance.submission.content import Backend, FindRecipient, Logins, Submit, any_recipient, caller_sender
from appliance.submission.dialogue import Login, Rejected, parse_address
from appliance.submission.protocol import SmtpProtocol
from appliance.system import memory
from appliance.telemetry.log import Log, get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES
from appliance.tls.certificate import Files, load_certificate, smtp_files

MESSAGE_COPIES: Final = 2  # in memory: as received, and as stored
ACCOUNT_MEMORY_PART: Final = 2  # one account gets this fraction of the memory for messages
ADMISSION_TIMEOUT: Final = 5.0  # seconds that a connection waits until others from its address have logged in
# Mail libraries open a new connection for each message. With one per turn they would wait while open ones are busy, and
# their messages would reach the disk one by one instead of in one commit.
ACCEPTS_PER_TURN: Final = 32
CALLBACKS_PER_TURN: Final = 64  # before other Trio tasks run
EVENTS_PER_POLL: Final = 256  # epoll reports the others next time

log = get_logger("submission")

BackendFor = Callable[[str, Callable[[Caller], bool]], Backend]  # from a client's address and `Logins.admit`


class SmtpService(Struct, frozen=True):
    way: str  # the service's name in metrics, and its section of the settings
    files: Callable[[Config], Files | None]  # of the certificate; None: no TLS
    memory: int  # bytes for messages being received
    owner_part: int  # one owner gets this fraction of the memory
    backend_for: BackendFor
    known: KnownNetworks
    log: Log


class SmtpServer:
    """State that all connections of one service share; the limits of `[smtp]` apply to every service."""

    def __init__(self, config: Config, service: SmtpService) -> None:
        self._hostname = config.server.hostname
        self._settings = smtp = config.smtp
        self._service = service
        files = service.files(config)
        self.certificate = None if files is None else load_certificate(service.way, files)
        message_memory = memory.for_messages(service.memory * MESSAGE_COPIES) // MESSAGE_COPIES
        self._budget = MemoryBudget(message_memory, owner_part=service.owner_part)
        self.table: ConnectionTable[SmtpSession] = ConnectionTable(
            smtp.max_connections, smtp.max_connections_per_address, known=service.known
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        """Prepare new settings; the returned call applies them to new sessions. OSError: unusable certificate."""
        files = self._service.files(config)
        use_certificate = self.certificate.replacement(*files) if self.certificate and files else None

        def apply() -> None:
            if use_certificate is not None:
                use_certificate()
            self._settings = smtp = config.smtp
            self.table.limit, self.table.limit_per_address = smtp.max_connections, smtp.max_connections_per_address

        return apply

    async def refuse(self, client: socket.socket, secure: bool) -> None:
        with client:
            if not secure:
                client.send(dialogue.CROWDED)

    async def serve_client(
        self, loop: asyncio.SelectorEventLoop, client: socket.socket, address: str, secure: bool
    ) -> None:
        backend = self._service.backend_for(address, lambda caller: self._admit(session, address, caller))
        session = SmtpSession(
            loop,
            SmtpProtocol(self._hostname, backend, self._budget, secure=secure),
            settings=self._settings,
            certificate=self.certificate,
            table=self.table,
            address=address,
            way=self._service.way,
            log=self._service.log,
        )
        with suppress(OSError), self.table.tracking(session, address):  # OSError: the client has disconnected
            if not secure:
                attach(loop, session, client)
            elif not await session.accept_tls(client):
                return
            await session.run()

    def _admit(self, session: SmtpSession, address: str, caller: Caller) -> bool:
        limit = self._settings.max_connections_per_credential
        if not self.table.log_in(session, caller.account_id, caller.idempotency_scope, limit):
            return False
        self._service.known.note(address)
        return True


async def serve_service(
    config: Config,
    service: SmtpService,
    binds: Iterable[tuple[str, Endpoint]],
    stopping: trio.Event,
    live: LiveSettings | None,
    *,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Serve each address as `smtp` or `smtps` until `stopping` is set; `started` returns the URLs."""
    listeners = [
        listener
        for scheme, bind in binds
        for listener in await listen(bind, scheme, secure=scheme == "smtps", per_turn=ACCEPTS_PER_TURN)
    ]
    if not listeners:
        task_status.started([])
        return
    server = SmtpServer(config, service)
    if live is not None:
        live.join(server.adopt)
    async with open_loop() as loop, trio.open_nursery() as helpers:
        prepare(loop)
        if (shown := server.certificate) is not None:
            CERTIFICATE_EXPIRIES[service.way] = lambda: shown.expires
            helpers.start_soon(shown.watch)
        # A mail library's pool opens all its connections at once; each soon counts for its credential instead.
        serve_client = partial(server.serve_client, loop)
        connections = ConnectionServer(
            service.way, server.table, serve_client, server.refuse, service.log, ADMISSION_TIMEOUT
        )
        await connections.run(
            listeners,
            stopping,
            shutdown_timeout=config.server.shutdown_timeout,
            started=lambda: task_status.started([listener.url for listener in listeners]),
        )
        helpers.cancel_scope.cancel()


# ---- the event loop: trio-asyncio's, tuned for SMTP with batched callbacks, attached sockets and logged errors

# This is the fence around trio-asyncio (written against 0.16.0). It uses no asyncio tasks: since Python 3.14 they
# fail on a loop that asyncio does not run itself. `run_coroutine` runs an asyncio coroutine in a Trio task instead.
#
# Four internals have no public equivalent. `tests/submission/test_loop.py` fails when one of them moves:
#
# - `_main_loop_one` runs one callback per turn of Trio's scheduler. A connection needs four, a handshake many more:
#   with twenty busy clients a new one waited 40 ms for its greeting. Ours runs all queued callbacks, as asyncio does.
# - `_add_reader` starts a task per socket, which registers the socket with epoll before every wait. Ours registers it
#   once (`Poller`), and one task reads from all sockets: that saves a sixth of the time per message. A session replies
#   within the read and schedules only its end, so it does not depend on the order of callbacks.
# - `_add_writer` gets a `context` from the transports of Python 3.15, which trio-asyncio's rejects. Ours drops it:
#   sessions use no context variables.
# - `_make_socket_transport` is what `connect_accepted_socket` calls without TLS. Calling it directly saves a task and
#   two futures, 0.8 ms per connection.
#
# trio-asyncio 0.16.0 derives classes from two names of asyncio that Python 3.14 removed, and the appliance uses neither
# class. `_removed_names` adds the names during the import. Delete it once trio-asyncio supports Python 3.14.


@contextmanager
def _removed_names() -> Iterator[None]:
    replacements = (
        (asyncio.events, "BaseDefaultEventLoopPolicy", getattr(asyncio.events, "_BaseDefaultEventLoopPolicy", object)),
        (asyncio, "AbstractChildWatcher", object),
    )
    missing = [(module, name, base) for module, name, base in replacements if not hasattr(module, name)]
    for module, name, base in missing:
        setattr(module, name, base)
    try:
        yield
    finally:
        for module, name, _ in missing:
            delattr(module, name)


with _removed_names():
    from trio_asyncio import open_loop as open_loop


def prepare(loop: Any) -> None:
    loop.set_exception_handler(_log_error)
    _read_by_callbacks(loop)
    run_one = loop._main_loop_one

    async def run_many(no_wait: bool = False) -> None:
        await run_one(no_wait=no_wait)
        try:
            for _ in range(CALLBACKS_PER_TURN):
                await run_one(no_wait=True)
        except trio.WouldBlock:
            pass

    loop._main_loop_one = run_many
    add_writer = loop._add_writer

    def add_writer_in_context(fd: int, callback: Callable[..., object], *args: Any, context: object = None) -> Any:
        return add_writer(fd, callback, *args)

    loop._add_writer = add_writer_in_context


def attach(loop: Any, protocol: asyncio.Protocol, client: socket.socket) -> None:
    client.setblocking(False)
    loop._make_socket_transport(client, protocol)


class Poller:
    """Calls a function for each socket that can be read; level-triggered, so unread data is reported again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def add(self, fd: int, callback: Callable[[], object]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        del self._callbacks[fd]
        with suppress(OSError, ValueError):  # the socket, or at the end the epoll, is already closed
            self._epoll.unregister(fd)

    async def run(self) -> None:
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in self._epoll.poll(0, EVENTS_PER_POLL):
                    if (callback := self._callbacks.get(fd)) is not None:
                        callback()


def _read_by_callbacks(loop: Any) -> None:
    poller = Poller()  # now: later there may be no free descriptor
    trio.lowlevel.spawn_system_task(poller.run, name="epoll poller")
    handles: dict[int, asyncio.Handle] = {}

    def add_reader(
        fd: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        remove_reader(fd)
        handle = asyncio.Handle(callback, args, loop, context)
        try:
            poller.add(fd, handle._run)
            handles[fd] = handle
        except OSError as error:  # out of memory or epoll watches
            log.warning("connection closed: out of local resources", reason=str(error))
            loop.call_soon(loop._transports[fd].abort)
        return handle

    def remove_reader(fd: int) -> bool:
        if fd not in handles:
            return False
        poller.remove(fd)
        handles.pop(fd).cancel()
        return True

    loop._add_reader, loop._remove_reader = add_reader, remove_reader


def _log_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error in a callback; without a handler it would end the process."""
    error = context.get("exception")
    # A broken connection or TLS handshake is the client's fault. A loop that has ended queues no callbacks.
    ended = loop.is_closed() or isinstance(error, trio.ClosedResourceError | trio.BrokenResourceError)
    if not ended and not isinstance(error, OSError | ssl.SSLError):
        log.exception("connection failed", error, message=str(context.get("message", "")))


# ---- submission
class Submission(Struct):
    config: Config
    env: Environment
    services: IntakeServices
    anonymous: Login | None = None  # of clients on this machine that send no AUTH; they get no STARTTLS either

    def backend_for(self, address: str, admit: Callable[[Caller], bool]) -> Backend:
        credentials, is_local = self.services.credentials, ipaddress.ip_address(address).is_loopback
        logins = Logins(
            known_caller=lambda login: credentials.known_caller(login.username, login.password_sha256),
            admit=admit,
            find_caller=lambda login: credentials.caller(login.username, login.password_sha256, address),
            wrong_login=credentials.wrong_guess,
            plaintext=self.config.smtp.allow_plaintext_auth and is_local,
            anonymous=self.anonymous if is_local else None,
        )
        return Backend(
            check_sender=partial(self._check_sender, address),
            check_recipient=partial(self._check_recipient, address),
            find_recipient=self._parse_recipient,
            submit=partial(self._submit, address),
            most_recipients=RECIPIENTS,
            logins=logins,
            dsn=True,
            now=self.env.now,
            starttls=self.anonymous is None,
            content_refused=partial(self._content_refused, address),
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        def apply() -> None:
            self.config = config

        return apply

    def _check(self, caller: Caller) -> None:
        self.services.rate.take(caller.idempotency_scope)
        self.services.intake.check_open(caller)

    # ---- refusals, for the request log

    def _check_sender(self, client: str, caller: Caller | None, sender: str, utf8: bool) -> str:
        try:
            return caller_sender(self._check, caller, sender, utf8)
        except Rejected as rejected:
            self._refused(client, caller, "MAIL FROM", rejected.reply, rejected.code, mail_from=sender)
            raise

    def _check_recipient(self, client: str, caller: Caller | None, text: str) -> Address | FindRecipient:
        try:
            return any_recipient(caller, text)
        except Rejected as rejected:
            self._refused(client, caller, "RCPT TO", rejected.reply, rejected.code, rcpt_to=text)
            raise

    def _content_refused(self, client: str, message: Submit, reply: bytes) -> None:
        code = Code.PAYLOAD_TOO_LARGE if reply == dialogue.TOO_LARGE else None
        self._refused(client, message.caller, "DATA", reply, code, message.size, **_envelope(message))

    def _refused(
        self,
        client: str,
        caller: Caller | None,
        route: str,
        reply: bytes,
        code: Code | None,
        size: int = 0,
        **body: Any,
    ) -> None:
        assert caller is not None  # noqa: S101 - a listener with logins
        request_id, envelope = self.env.identifier("req"), msgspec.json.encode(body)
        submission = SubmittedRequest(caller, request_id, "smtp", route, client, size, envelope)
        status, _, text = reply.decode("ascii").rstrip().partition(" ")
        self.services.requests.refused(submission, int(status), code, text)

    # ---- messages

    async def _submit(self, client: str, message: Submit) -> str:
        request_id, caller = self.env.identifier("req"), message.caller
        assert caller is not None  # noqa: S101 - a listener with logins
        envelope = msgspec.json.encode(_envelope(message))
        submission = SubmittedRequest(caller, request_id, "smtp", "DATA", client, message.size, envelope)
        try:
            message_id = await self._accept(client, message, request_id)
        except Exception as error:
            self.services.requests.failed(submission, error)
            raise
        self.services.requests.accepted(submission, 250, message_id)
        return message_id

    async def _accept(self, client: str, message: Submit, request_id: str) -> str:
        intake, credentials, login = self.services.intake, self.services.credentials, message.login
        assert login is not None  # noqa: S101 - a listener with logins
        # Look the caller up again: the message may have taken minutes, and the credential or domain may be gone.
        secret = login.username, login.password_sha256
        caller = credentials.known_caller(*secret) or await credentials.caller(*secret, client)
        if caller is None:
            raise Refused(Code.UNAUTHORIZED, "This credential was revoked. Create a new one.")
        content = await intake.workers.run(caller.account_id, cost_of_size(message.size), message.content)
        envelope = message.sender, message.recipients
        options: dict[str, Any] = {"secure": message.secure, "dsn": message.dsn, "hold": message.hold}
        submitted = await intake.submit(caller, *envelope, content, request_id, **options)
        return submitted.message_id

    async def _parse_recipient(self, action: FindRecipient) -> Address | Rejected | PublicError:
        # Always on a worker thread: thousands of moderately cheap addresses add up.
        try:
            return await self.services.intake.workers.run(action.owner, inf, parse_address, action.text)
        except (Rejected, PublicError) as refused:
            return refused


def _envelope(message: Submit) -> dict[str, Any]:
    return {"mail_from": message.sender, "rcpt_to": message.recipients}


async def serve(
    config: Config,
    env: Environment,
    services: IntakeServices,
    stopping: trio.Event,
    live: LiveSettings | None = None,
    *,
    anonymous: Login | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve submission until `stopping` is set; `started` returns the URLs of the listeners.

    With `anonymous`, clients on this machine need no AUTH, and TLS is not offered: mail libraries use it if it is, and
    then refuse a self-signed certificate.
    """
    submission = Submission(config, env, services, anonymous)
    if live is not None:
        live.join(submission.adopt)
    files = smtp_files if anonymous is None else lambda _: None
    service = SmtpService(
        "smtp", files, config.smtp.message_memory, ACCOUNT_MEMORY_PART, submission.backend_for, services.known, log
    )
    binds = [("smtp", bind) for bind in config.smtp.bind] + [("smtps", bind) for bind in config.smtp.bind_tls]
    await serve_service(config, service, binds, stopping, live, task_status=task_status)
