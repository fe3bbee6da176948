"""In charge of the SMTP listeners: trio-asyncio's loop, connections counted and guarded, and their orderly end."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import trio
import trio_asyncio

from appliance.config.load import Config, Endpoint
from appliance.config.reload import LiveSettings
from appliance.intake.services import Entrance
from appliance.message.addresses import Address
from appliance.message.cost import of_size
from appliance.model.mail import Caller
from appliance.net.connection_limits import ConnectionTable, accept_connections
from appliance.outside import Outside
from appliance.shutdown import CONNECTIONS_PART
from appliance.submission import certificate, replies
from appliance.submission.actions import ReadRecipient, Submit
from appliance.submission.connection import Deeds, Session
from appliance.submission.content import Room
from appliance.submission.intake import address as read_address
from appliance.submission.listener import Listener, listen
from appliance.submission.login import Login
from appliance.submission.loop import prepare
from appliance.submission.protocol import Dialogue
from appliance.system import memory
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS
from appliance.tls.certificate import Certificate
from appliance.tls.certificate_files import smtp_files

COPIES = 2  # of a message, as it came and as it is stored
QUEUE_PATIENCE = 5.0  # seconds for which a connection may wait until others from its address have logged in
LOOK_EVERY = 0.25  # seconds, by which a client may overstay any of its deadlines

log = get_logger("submission")


@dataclass(frozen=True, slots=True)
class _House:
    """What one connection's dialogue asks of the rest of the program."""

    entrance: Entrance
    admit: Callable[[Caller], bool]

    def caller(self, login: Login) -> Caller | None:
        return self.entrance.credentials.caller(login.username, login.password_sha256)

    def check(self, caller: Caller) -> None:
        self.entrance.rate.take(caller.idempotency_scope)
        self.entrance.door.check_open(caller)


class Submission:
    """Everything the connections share."""

    def __init__(self, config: Config, outside: Outside, entrance: Entrance, shown: Certificate) -> None:
        smtp = config.smtp
        self._hostname = config.server.hostname
        self._settings = smtp
        self._outside = outside
        self._door = entrance.door
        self._entrance = entrance
        self._certificate = shown
        self._room = Room(memory.for_messages(smtp.message_memory * COPIES) // COPIES)
        self.doorkeeper: ConnectionTable[Session] = ConnectionTable(
            smtp.max_connections, smtp.max_connections_per_address, known=entrance.known
        )
        OPEN_CONNECTIONS["smtp"] = lambda: len(self.doorkeeper.open)
        table = self.doorkeeper
        self._deeds = Deeds(
            self._submit, entrance.credentials.wrong_guess, self._read_recipient, table.leave, table.transacts
        )

    def adopt(self, config: Config) -> Callable[[], None]:
        """Make ready for other settings, which sessions that begin later have; OSError for a certificate of no use."""
        show = self._certificate.replacement(*smtp_files(config))

        def put_in_place() -> None:
            show()
            self._settings = smtp = config.smtp
            self.doorkeeper.most, self.doorkeeper.most_per_address = (
                smtp.max_connections,
                smtp.max_connections_per_address,
            )

        return put_in_place

    async def connected(self, loop: asyncio.SelectorEventLoop, secure: bool, client: socket.socket) -> None:
        """Serve one client; whatever goes wrong in it ends it alone."""
        try:
            address = str(client.getpeername()[0])
        except OSError:  # gone already
            client.close()
            return
        if self.doorkeeper.is_crowded(address):
            # A pool of a mail library opens all its connections at once; each soon counts for its credential instead.
            await self.doorkeeper.queue(address, QUEUE_PATIENCE)
        if not self.doorkeeper.admits(address):
            with suppress(OSError), client:
                if not secure:
                    client.send(replies.CROWDED)
            return
        try:
            await self._serve(loop, secure, client, address)
        except OSError:
            pass  # a client that went away while it was let in
        except Exception:
            log.exception("connection failed", client=address)

    async def _serve(self, loop: asyncio.SelectorEventLoop, secure: bool, client: socket.socket, address: str) -> None:
        may_be_plain = self._settings.allow_plaintext_auth and ipaddress.ip_address(address).is_loopback
        house = _House(self._entrance, lambda caller: self._admit(session, address, caller))
        dialogue = Dialogue(self._hostname, house, self._room, secure=secure, plaintext_login=may_be_plain)
        session = Session(loop, dialogue, self._deeds, self._settings, self._certificate, address)
        with self.doorkeeper.inside(session, address):
            if not secure:
                _attach(loop, session, client)
            elif not await session.shake_hands(client):
                return
            await session.run()

    def _admit(self, session: Session, address: str, caller: Caller) -> bool:
        """Count a session that has logged in by its credential, no longer by its address."""
        most = self._settings.max_connections_per_credential
        if not self.doorkeeper.logged_in(session, caller.account_id, caller.idempotency_scope, most):
            return False
        self._entrance.known.note(address)
        return True

    async def _submit(self, work: Submit) -> str:
        request_id = self._outside.identifier("req")
        content = await self._door.workers.run(work.caller.account_id, of_size(work.size), work.content)
        submitted = await self._door.submit(
            work.caller, work.sender, work.recipients, content, request_id, secure=work.secure
        )
        return submitted.message_id

    async def _read_recipient(self, work: ReadRecipient) -> Address:
        # Whatever the estimate says: thousands of addresses that are each just cheap enough add up.
        return await self._door.workers.run(work.account_id, inf, read_address, work.text, "RCPT TO")


def _attach(loop: Any, session: Session, client: socket.socket) -> None:
    """What `connect_accepted_socket` does without TLS, less a task and two futures: 0.8 ms of each connection."""
    client.setblocking(False)
    loop._make_socket_transport(client, session)


async def serve(
    config: Config,
    outside: Outside,
    entrance: Entrance,
    stopping: trio.Event,
    live: LiveSettings | None = None,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopping`, then let messages on their way come in for their part of `shutdown_timeout` at most."""
    listeners = await _listen(config.smtp.bind, "smtp") + await _listen(config.smtp.bind_tls, "smtps")
    if not listeners:
        task_status.started([])
        return
    shown = certificate.of_settings(config)
    CERTIFICATE_EXPIRIES["smtp"] = lambda: shown.expires
    submission = Submission(config, outside, entrance, shown)
    if live is not None:
        live.join(submission.adopt)
    async with trio_asyncio.open_loop() as loop, trio.open_nursery() as helpers:
        prepare(loop)
        helpers.start_soon(shown.watch)
        helpers.start_soon(_watch, submission.doorkeeper.open)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener, url in listeners:
                    connected = partial(submission.connected, loop, url.startswith("smtps:"))
                    accepting.start_soon(accept_connections, listener, connected, connections)
                task_status.started([url for _, url in listeners])
                await stopping.wait()
                accepting.cancel_scope.cancel()
            for session in list(submission.doorkeeper.open):
                session.stop()
            connections.cancel_scope.deadline = trio.current_time() + config.server.shutdown_timeout * CONNECTIONS_PART
        helpers.cancel_scope.cancel()


async def _listen(binds: tuple[Endpoint, ...], scheme: str) -> list[tuple[Listener, str]]:
    return [(listener, f"{scheme}://{listener.url}") for bind in binds for listener in await listen(bind)]


async def _watch(sessions: Collection[Session]) -> None:
    """End, for ever, whatever session's client is late: one look at all of them instead of a timer for each."""
    while True:
        await trio.sleep(LOOK_EVERY)
        now = trio.current_time()
        for session in list(sessions):
            session.end_if_due(now)
