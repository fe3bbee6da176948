"""One SMTP connection: moves bytes between the client and `protocol.py`, runs its actions, and enforces deadlines.

This file is the fence around aiosmtpd (written against 1.4.6). `aiosmtpd.smtp.SMTP` is only the base class, and every
callback is overridden, by test: its own loop costs 1.6 ms per message and 3.2 ms per connection on trio-asyncio, tells
clients about internal errors, and lets a client that disconnects cancel the storing of its message.

asyncio calls the session when data arrives, and replies leave within that call. Only slow actions run in the session's
Trio task (`run`), which nothing but the end of the program cancels.
"""

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeVar, cast

import trio
from aiosmtpd.smtp import SMTP

from appliance.config.settings import SmtpSettings
from appliance.errors import Code, PublicError
from appliance.model.accounts import Caller
from appliance.net.connection_server import ConnectionTable
from appliance.submission import dialogue
from appliance.submission.content import Action, FindCaller, FindRecipient, Logins, Phase, PlainAction, Submit
from appliance.submission.protocol import SmtpProtocol
from appliance.telemetry.log import Log
from appliance.telemetry.metrics import REFUSALS
from appliance.tls.certificate import Certificate

READ_AHEAD: Final = 64 * 1024  # octets read while a message is being stored
SLOW_START: Final = 10.0  # seconds before the rate is checked
MIN_CONTENT_RATE: Final = 500  # octets per second of a message after SLOW_START
TURN_PAUSE: Final = 0.005  # seconds between two turns of one client
# Seconds; the timeouts of commands, messages and sessions are settings.
WRITE_TIMEOUT: Final = 30.0  # for a client that does not read its replies
REPLY_LINGER: Final = 2.0  # for reading input after the last reply, so that no reset destroys it
STOPPING_LINGER: Final = 0.3  # the same during shutdown
TLS_HANDSHAKE: Final = 10.0
_TLS_TIMEOUTS: dict[str, Any] = {"ssl_handshake_timeout": TLS_HANDSHAKE, "ssl_shutdown_timeout": 2.0}

T = TypeVar("T")


async def run_coroutine(coroutine: Coroutine[Any, None, T]) -> T:
    """Run an asyncio coroutine that waits only for futures. Cancelling the Trio task cancels the coroutine."""
    try:
        while True:
            future: asyncio.Future[object] = coroutine.send(None)
            future._asyncio_future_blocking = False  # as asyncio's tasks do, so that it can be awaited again
            done = trio.Event()
            future.add_done_callback(lambda _, done=done: done.set())  # type: ignore[misc]
            try:
                await done.wait()
            finally:
                future.cancel()  # without effect if it is done
    except StopIteration as result:
        return cast(T, result.value)
    finally:
        coroutine.close()


class SmtpSession(SMTP):
    """A client's connection. aiosmtpd's `__init__` is not called, since none of its code runs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: SmtpProtocol,
        *,
        settings: SmtpSettings,
        certificate: Certificate | None,
        table: "ConnectionTable[SmtpSession]",
        address: str,
        way: str,
        log: Log,
    ) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self._protocol = protocol
        self._settings = settings
        self._certificate = certificate
        self._table = table
        self._address = address
        self._way = way  # in metrics
        self._log = log
        self._action: Action | None = None
        self._wakeup = trio.Event()  # an action is pending, or the connection is lost
        self._handshake = trio.CancelScope()
        self._abort_timer: asyncio.TimerHandle | None = None
        self._lost = False
        self._at_eof = False  # the client sends nothing more
        self._blocked = False  # the client does not read its replies
        self._awaits_tls = False  # after STARTTLS no plaintext is read: it may be injected
        self._began = now = trio.current_time()
        self._phase = Phase.COMMAND
        self._phase_began = now
        self._due = now + settings.command_timeout

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.transport = transport
        if self._phase is Phase.OVER:  # the shutdown has begun
            transport.abort()
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.OVER:
            return  # input is read only so that no reset destroys the last reply
        try:
            action = self._protocol.receive(data)
        except Exception:
            self._fail()
        else:
            self._begin(action)

    def eof_received(self) -> bool:
        """Keep the transport open while a reply is pending; TLS cannot."""
        self._at_eof = True
        return self._phase is Phase.ACTION and not self._protocol.secure

    def connection_lost(self, error: Exception | None) -> None:
        """End the session; a message being stored is stored anyway."""
        self._lost = True
        if self._abort_timer is not None:
            self._abort_timer.cancel()  # frees the transport now
        self._protocol.close()
        self._wakeup.set()

    def pause_writing(self) -> None:
        """The client does not read its replies: stop reading from it."""
        self._blocked = True
        self._due = trio.current_time() + WRITE_TIMEOUT
        self._pause()

    def resume_writing(self) -> None:
        self._blocked = False
        self._enter(self._phase)
        self._resume()

    # ---- called by the server

    async def accept_tls(self, client: socket.socket) -> bool:
        """Do the TLS handshake on a new socket and attach the session to it; return False if it failed."""
        with suppress(OSError), self._handshake:
            await run_coroutine(
                self.loop.connect_accepted_socket(lambda: self, client, ssl=self._context(), **_TLS_TIMEOUTS)
            )
        return self.transport is not None

    async def run(self) -> None:
        try:
            while not self._lost:
                await self._wakeup.wait()
                self._wakeup = trio.Event()
                action, self._action = self._action, None
                if action is not None:
                    await self._do(action)
        finally:
            if self.transport is not None:
                self.transport.abort()

    def drain(self) -> None:
        self._handshake.cancel()
        self._protocol.stop()
        self._flush()

    def evict(self) -> None:
        self._handshake.cancel()
        if self.transport is not None:
            if self._phase is Phase.COMMAND:
                self.transport.write(dialogue.CROWDED)  # sent immediately or not at all
            self.transport.abort()

    def close_if_late(self, now: float) -> None:
        if self._blocked:
            if now >= self._due and self.transport is not None:
                self.transport.abort()
            return
        content, seconds = self._protocol.content, now - self._phase_began - SLOW_START
        is_slow = self._phase is Phase.CONTENT and content and content.size < MIN_CONTENT_RATE * seconds
        if now >= self._due or is_slow:
            self._end(dialogue.TOO_SLOW)
        elif self._phase is Phase.COMMAND and now >= self._began + self._settings.session_timeout:
            self._end(dialogue.SESSION_OVER)

    # ---- actions

    async def _do(self, action: Action) -> None:
        following: Action | None = None
        try:
            if isinstance(action, Submit):
                self._protocol.submitted(await self._submit(action))
            elif isinstance(action, FindCaller):
                following = self._protocol.caller_found(action, await self._find_caller(action))
            elif isinstance(action, FindRecipient):
                self._protocol.recipient_found(await self._protocol.backend.find_recipient(action))
            elif action is PlainAction.WRONG_LOGIN:
                refused = await self._logins().wrong_login(self._address)
                REFUSALS.add((self._way, Code.UNAUTHORIZED))
                self._protocol.login_failed(too_many=refused.retry_after is not None)
            elif action is PlainAction.YIELD:
                await trio.sleep(TURN_PAUSE)
                self._protocol.resume()
            elif not await self._start_tls():
                return
            following = following or self._protocol.proceed()
        except Exception:
            self._fail()
            return
        if self._at_eof and following is None:
            self._protocol.close()
        self._begin(following)
        self._resume()

    async def _find_caller(self, action: FindCaller) -> Caller | PublicError | None:
        try:
            return await self._logins().find_caller(action.login)
        except PublicError as refused:
            return refused

    def _logins(self) -> Logins:
        logins = self._protocol.backend.logins
        assert logins is not None  # noqa: S101 - the protocol looks up callers only with logins
        return logins

    async def _submit(self, message: Submit) -> str | PublicError | None:
        try:
            return await self._protocol.backend.submit(message)
        except PublicError as refused:
            REFUSALS.add((self._way, refused.code))
            # Only our own faults are logged: other refusals may quote the message.
            if refused.__cause__ is not None and refused.code.status >= 500:
                self._log.error("message refused", client=self._address, cause=repr(refused.__cause__))
            return refused
        except Exception:
            REFUSALS.add((self._way, Code.INTERNAL_ERROR))
            self._log.exception("message failed", client=self._address)
            return None

    def _context(self) -> ssl.SSLContext:
        assert self._certificate is not None  # noqa: S101 - a service without TLS has no TLS listener or STARTTLS
        return self._certificate.context

    async def _start_tls(self) -> bool:
        """Do the TLS handshake after STARTTLS; the transport reads nothing until it completes."""
        plain = self.transport
        assert plain is not None  # noqa: S101
        self._protocol.input.take()  # drop any input that arrived as plaintext
        secured = None
        with suppress(OSError), self._handshake:  # ssl.SSLError is an OSError
            secured = await run_coroutine(
                self.loop.start_tls(plain, self, self._context(), server_side=True, **_TLS_TIMEOUTS)
            )
        if secured is None or self._lost:
            # asyncio does not call connection_lost when a handshake fails.
            plain.abort()
            self._lost = True
            self._protocol.close()
            self._flush()
            return False
        plain.resume_reading()  # a lot of data right after the handshake pauses it
        self.transport, self._awaits_tls = secured, False
        self._protocol.secured()
        return True

    # ---- between the protocol and the transport

    def _begin(self, action: Action | None) -> None:
        if action is PlainAction.START_TLS:
            # Before the client can read the reply: its next bytes belong to TLS.
            self._awaits_tls = True
            self._pause()
        self._flush()
        if action is not None:
            self._action = action
            self._wakeup.set()
        elif self._phase is Phase.ACTION and len(self._protocol.input.data) > READ_AHEAD:
            self._pause()

    def _flush(self) -> None:
        protocol, transport = self._protocol, self.transport
        wrote = bool(protocol.out)
        if wrote:
            written = b"".join(protocol.out)
            protocol.out.clear()
            if transport is not None and not self._lost:
                transport.write(written)
        if wrote or protocol.phase is not self._phase:
            self._enter(protocol.phase)

    def _enter(self, phase: Phase) -> None:
        now = trio.current_time()
        if phase is not self._phase:
            self._table.mark_session(self, busy=phase is not Phase.COMMAND, has_message=self._protocol.has_message)
            self._phase, self._phase_began = phase, now
            if phase is Phase.OVER:
                self._close()
        if self._blocked:
            return
        if phase is Phase.COMMAND:
            self._due = now + self._settings.command_timeout
        else:
            self._due = self._phase_began + self._settings.data_timeout if phase is Phase.CONTENT else inf

    def _close(self) -> None:
        """Close after the client has read the last reply, or after a moment: unread input would destroy the reply."""
        if self._protocol.quit:
            self._table.remove(self)  # a client that did not say QUIT counts until it disconnects
        transport = self.transport
        if transport is None or self._lost:
            return
        if self._protocol.quit or self._at_eof or not transport.can_write_eof():
            if not transport.is_closing():  # after a second `close` asyncio's TLS transport has no buffer to ask for
                transport.close()
            if not transport.get_write_buffer_size() and not self._protocol.stopping:
                return
        else:
            transport.write_eof()
            self._resume()
        linger = STOPPING_LINGER if self._protocol.stopping else REPLY_LINGER
        self._abort_timer = self.loop.call_later(linger, transport.abort)

    def _end(self, last_reply: bytes) -> None:
        self._protocol.end(last_reply)
        self._flush()

    def _fail(self) -> None:
        """End the session after an internal error; only the log has the details."""
        self._log.exception("session failed", client=self._address)
        self._end(dialogue.INTERNAL_ERROR)

    def _pause(self) -> None:
        if self.transport is not None:
            with suppress(RuntimeError):  # the transport is closing
                self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and not self._blocked and not self._awaits_tls:
            with suppress(RuntimeError):
                self.transport.resume_reading()
