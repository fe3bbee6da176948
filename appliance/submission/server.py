"""Services over SMTP on the configured addresses: accepts connections, counts them, enforces deadlines, stops in order.

Submission is one of them; that of feedback is in `inbound/`.

Every connection is in a table that limits how many there are, in all, by client network and by credential. An error in
one connection ends that connection only. On shutdown no connection is accepted, idle ones are closed, and messages that
are on their way are finished within their part of `server.shutdown_timeout`.
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import trio

from appliance.config.reload import LiveSettings
from appliance.config.settings import Config, ConfigError
from appliance.config.values import Endpoint
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused
from appliance.intake.accept import IntakeServices
from appliance.message.addresses import Address
from appliance.message.cost import of_size
from appliance.message.limits import RECIPIENTS
from appliance.model.mail import Caller
from appliance.net.connection_limits import DEADLINE_CHECK, ConnectionTable, KnownNetworks, accept_connections
from appliance.net.memory_budget import MemoryBudget
from appliance.shutdown import CONNECTIONS_PART
from appliance.submission import replies
from appliance.submission.actions import Backend, FindRecipient, Logins, Submit
from appliance.submission.commands import parse_address
from appliance.submission.compat import open_loop
from appliance.submission.connection import SmtpSession
from appliance.submission.content import any_recipient, caller_sender
from appliance.submission.loop import attach, prepare
from appliance.submission.protocol import SmtpProtocol
from appliance.submission.replies import Rejected
from appliance.system import memory
from appliance.telemetry.log import Log, get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS
from appliance.tls.certificate import Certificate
from appliance.tls.certificate_files import Files, smtp_files

MESSAGE_COPIES: Final = 2  # in memory: as it came, and as it is stored
ACCOUNT_MEMORY_PART: Final = 2  # messages of one account have one part in so many of that memory
ADMISSION_TIMEOUT: Final = 5.0  # seconds that a connection may wait until others from its address have logged in
ACCEPT_BACKLOG: Final = 1_024  # connections that may wait to be accepted
ACCEPTS_PER_TURN: Final = 32  # before other tasks have a turn
# A connection that broke before it was accepted: accept(2) says to treat these as if it had not come.
_LOST_BEFORE_ACCEPT: Final = {
    errno.ECONNABORTED, errno.ECONNRESET, errno.EPERM, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT,
    errno.EHOSTDOWN, errno.ENONET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
}  # fmt: skip

log = get_logger("submission")


class SocketListener(trio.abc.Listener[Any]):
    """A listening socket that returns plain sockets.

    Trio's accepts one connection in a turn of the scheduler and wraps it in a stream, which asyncio has no use for: new
    connections wait while open ones are served, and their messages come to disk one by one instead of together.
    """

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._socket = listening
        self.address = str(Endpoint(*listening.getsockname()[:2]))  # as in a URL
        self._accepted = 0  # in this turn

    async def accept(self) -> socket.socket:
        """The next connection. Raises OSError when the system is out of descriptors or memory."""
        while True:
            if self._accepted == ACCEPTS_PER_TURN:
                self._accepted = 0
                await trio.lowlevel.checkpoint()
            self._accepted += 1
            try:
                client, _ = self._socket.accept()
            except BlockingIOError:
                self._accepted = 0
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                if error.errno not in _LOST_BEFORE_ACCEPT:
                    raise
            else:
                return client

    async def aclose(self) -> None:
        self._socket.close()
        await trio.lowlevel.checkpoint()


async def listen(bind: Endpoint) -> list[SocketListener]:
    """The listeners of an address to bind; a host name may have several."""
    opened = await trio.open_tcp_listeners(bind.port, host=bind.host, backlog=ACCEPT_BACKLOG)
    return [SocketListener(socket.socket(fileno=each.socket.detach())) for each in opened]


BackendFor = Callable[[str, Callable[[Caller], bool]], Backend]  # a client's address, and what counts its login


@dataclass(frozen=True, slots=True)
class SmtpService:
    """What tells one service over SMTP from another: submission, or feedback."""

    way: str  # its name in metrics, and its section of the settings
    files: Callable[[Config], Files]  # of its certificate
    memory: int  # bytes of messages on their way in
    owner_part: int  # messages of one owner have one part in so many of that memory
    backend_for: BackendFor
    known: KnownNetworks
    log: Log


class SmtpServer:
    """What all connections of one service share; the limits of all services are those of `[smtp]`."""

    def __init__(self, config: Config, service: SmtpService) -> None:
        self._hostname = config.server.hostname
        self._settings = smtp = config.smtp
        self._service = service
        self.certificate = load_certificate(config, service.way, service.files)
        message_memory = memory.for_messages(service.memory * MESSAGE_COPIES) // MESSAGE_COPIES
        self._budget = MemoryBudget(message_memory, owner_part=service.owner_part)
        self.table: ConnectionTable[SmtpSession] = ConnectionTable(
            smtp.max_connections, smtp.max_connections_per_address, known=service.known
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        """Prepare settings for sessions that begin after the returned call; OSError if its certificate is unusable."""
        show_certificate = self.certificate.replacement(*self._service.files(config))

        def apply() -> None:
            show_certificate()
            self._settings = smtp = config.smtp
            self.table.most, self.table.most_per_address = smtp.max_connections, smtp.max_connections_per_address

        return apply

    async def connected(self, loop: asyncio.SelectorEventLoop, secure: bool, client: socket.socket) -> None:
        try:
            address = str(client.getpeername()[0])
        except OSError:  # gone already
            client.close()
            return
        if self.table.is_crowded(address):
            # A mail library's pool opens all its connections at once; each soon counts for its credential instead.
            await self.table.queue(address, ADMISSION_TIMEOUT)
        if not self.table.admits(address):
            with suppress(OSError), client:
                if not secure:
                    client.send(replies.CROWDED)
            return
        try:
            await self._serve(loop, secure, client, address)
        except OSError:
            pass  # the client went away meanwhile
        except Exception:
            self._service.log.exception("connection failed", client=address)

    async def _serve(self, loop: asyncio.SelectorEventLoop, secure: bool, client: socket.socket, address: str) -> None:
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
        with self.table.inside(session, address):
            if not secure:
                attach(loop, session, client)
            elif not await session.accept_tls(client):
                return
            await session.run()

    def _admit(self, session: SmtpSession, address: str, caller: Caller) -> bool:
        """Count a session that has logged in by its credential instead of its address."""
        most = self._settings.max_connections_per_credential
        if not self.table.logged_in(session, caller.account_id, caller.idempotency_scope, most):
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
    """Serve on these addresses, each with `smtp` or `smtps`, until `stopping`; `started` returns their URLs."""
    listeners = [(each, f"{scheme}://{each.address}") for scheme, bind in binds for each in await listen(bind)]
    if not listeners:
        task_status.started([])
        return
    server = SmtpServer(config, service)
    OPEN_CONNECTIONS[service.way] = lambda: len(server.table.open)
    CERTIFICATE_EXPIRIES[service.way] = lambda: server.certificate.expires
    if live is not None:
        live.join(server.adopt)
    async with open_loop() as loop, trio.open_nursery() as helpers:
        prepare(loop)
        helpers.start_soon(server.certificate.watch)
        helpers.start_soon(_enforce_deadlines, server.table.open)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener, url in listeners:
                    connected = partial(server.connected, loop, url.startswith("smtps:"))
                    accepting.start_soon(accept_connections, listener, connected, connections)
                task_status.started([url for _, url in listeners])
                await stopping.wait()
                accepting.cancel_scope.cancel()
            for session in list(server.table.open):
                session.stop()
            connections.cancel_scope.deadline = trio.current_time() + config.server.shutdown_timeout * CONNECTIONS_PART
        helpers.cancel_scope.cancel()


def load_certificate(config: Config, way: str = "smtp", files: Callable[[Config], Files] = smtp_files) -> Certificate:
    chain, key = files(config)
    try:
        return Certificate(chain, key)
    except OSError as error:
        wanted = "expected a PEM chain and its PEM key, not encrypted"
        reason = f"{chain} and {key} cannot be used ({error}); {wanted}"
        raise ConfigError(f"{way}.tls_cert", reason) from error


async def _enforce_deadlines(sessions: Collection[SmtpSession]) -> None:
    """Check all sessions at once, until cancelled: cheaper than a timer for each."""
    while True:
        await trio.sleep(DEADLINE_CHECK)
        now = trio.current_time()
        for session in list(sessions):
            session.end_if_due(now)


# ---- submission


@dataclass(slots=True)
class Submission:
    """What programs submit: from callers that have logged in, with a sender of their own, to anyone."""

    config: Config
    env: Environment
    services: IntakeServices

    def backend_for(self, address: str, admit: Callable[[Caller], bool]) -> Backend:
        credentials = self.services.credentials
        logins = Logins(
            known_caller=lambda login: credentials.known_caller(login.username, login.password_sha256),
            admit=admit,
            find_caller=lambda login: credentials.caller(login.username, login.password_sha256),
            wrong_login=credentials.wrong_guess,
            plaintext=self.config.smtp.allow_plaintext_auth and ipaddress.ip_address(address).is_loopback,
        )
        return Backend(
            check_sender=partial(caller_sender, self._check),
            check_recipient=any_recipient,
            find_recipient=self._parse_recipient,
            submit=self._submit,
            most_recipients=RECIPIENTS,
            logins=logins,
            dsn=True,
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        def apply() -> None:
            self.config = config

        return apply

    def _check(self, caller: Caller) -> None:
        self.services.rate.take(caller.idempotency_scope)
        self.services.intake.check_open(caller)

    async def _submit(self, message: Submit) -> str:
        intake, credentials, login = self.services.intake, self.services.credentials, message.login
        assert login is not None  # noqa: S101 - a listener with logins
        # Looked up again: the message may have taken minutes, and its credential or domain may be gone.
        caller = credentials.known_caller(login.username, login.password_sha256)
        if caller is None and (caller := await credentials.caller(login.username, login.password_sha256)) is None:
            raise Refused(Code.UNAUTHORIZED, "This credential was revoked. Create a new one.")
        request_id = self.env.identifier("req")
        content = await intake.workers.run(caller.account_id, of_size(message.size), message.content)
        submitted = await intake.submit(
            caller, message.sender, message.recipients, content, request_id, secure=message.secure, dsn=message.dsn
        )
        return submitted.message_id

    async def _parse_recipient(self, action: FindRecipient) -> Address | Rejected | PublicError:
        # Always on a worker thread: thousands of addresses that are each just cheap enough add up.
        try:
            return await self.services.intake.workers.run(action.owner, inf, parse_address, action.text)
        except (Rejected, PublicError) as refused:
            return refused


async def serve(
    config: Config,
    env: Environment,
    services: IntakeServices,
    stopping: trio.Event,
    live: LiveSettings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve submission until `stopping`; `started` returns the URLs of the listeners."""
    submission = Submission(config, env, services)
    if live is not None:
        live.join(submission.adopt)
    service = SmtpService(
        "smtp", smtp_files, config.smtp.message_memory, ACCOUNT_MEMORY_PART, submission.backend_for, services.known, log
    )
    binds = [("smtp", bind) for bind in config.smtp.bind] + [("smtps", bind) for bind in config.smtp.bind_tls]
    await serve_service(config, service, binds, stopping, live, task_status=task_status)
