"""In charge of one SMTP connection: aiosmtpd's protocol, driven by our dialogue, with a deadline in every phase.

aiosmtpd reads lines through a stream, a future and a task switch each, builds every reply and its tables anew, and lets
its own coroutine be cancelled by the client. Measured on trio-asyncio, that is 1.6 ms of each message and 3.2 ms of
each connection. So its line loop is replaced, where asyncio hands over what has come (`data_received`): the dialogue
reads and answers on the spot, and only what takes time is done in the connection's own Trio task (`run`), which nothing
but the end of the program cancels.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Protocol

import trio
import trio_asyncio
from aiosmtpd.smtp import SMTP

from appliance.config.settings import SmtpSettings
from appliance.errors import Code, Refused
from appliance.message.addresses import Address
from appliance.submission import limits, replies
from appliance.submission.actions import Action, Phase, ReadRecipient, StartTls, Submit, WrongLogin, Yield
from appliance.submission.intake import BadAddress
from appliance.submission.protocol import Dialogue
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import REFUSALS
from appliance.tls.certificate import Certificate

READ_AHEAD = 64 * 1024  # bytes that may wait while a message is being stored
TLS_GOODBYE = 2.0  # seconds for the other side to say it, too

log = get_logger("submission")


@dataclass(frozen=True, slots=True)
class Deeds:
    """What a session has done for it by the rest of the program."""

    submit: Callable[[Submit], Awaitable[str]]  # the id of the stored message; raises Refused
    wrong_login: Callable[[str], Awaitable[Refused]]  # from this address; takes its time
    read_recipient: Callable[[ReadRecipient], Awaitable[Address]]  # raises BadAddress or Refused
    leave: Callable[["Session"], None]  # its client has said goodbye, and counts no longer
    transacts: "Transacts"  # it has a message under way, or has none any more


class Transacts(Protocol):
    """Is told whether a session has a message under way."""

    def __call__(self, connection: "Session", /, *, busy: bool) -> None:
        """Take note of it."""


class Session(SMTP):
    """A client's connection. aiosmtpd's own set-up is left out: all of it is for the loop that is replaced."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dialogue: Dialogue,
        deeds: Deeds,
        settings: SmtpSettings,
        certificate: Certificate,
        address: str,
    ) -> None:
        self.loop = loop
        self.transport: asyncio.Transport | None = None
        self._dialogue = dialogue
        self._deeds = deeds
        self._settings = settings
        self._certificate = certificate
        self._address = address
        self._work: Action | None = None
        self._news = trio.Event()  # there is work, or the connection is gone
        self._handshake = trio.CancelScope()
        self._last_moment: asyncio.TimerHandle | None = None
        self._lost = False
        self._client_done = False  # it will send nothing more
        self._blocked = False  # it does not read what we write
        self._began = now = trio.current_time()
        self._phase = Phase.COMMAND
        self._phase_began = now
        self._due = now + settings.command_timeout

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a client, under TLS if the dialogue says so: greet it."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.transport = transport
        if self._phase is Phase.OVER:  # the program was told to end meanwhile
            transport.abort()
            return
        self._dialogue.greet()
        self._settle()

    def data_received(self, data: bytes) -> None:
        """Answer at once whatever can be answered at once."""
        if self._phase is Phase.OVER:
            return  # read only so that our last word is not destroyed by a reset
        try:
            action = self._dialogue.receive(data)
        except Exception:
            self._break_off()
            return
        self._begin(action)

    def eof_received(self) -> bool:
        """The client is done. What it waits for, it still gets, where the transport can do that."""
        self._client_done = True
        return self._phase is Phase.ACTION and not self._dialogue.secure

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody is there any more; a message that is being stored is stored all the same."""
        self._lost = True
        if self._last_moment is not None:
            self._last_moment.cancel()  # which lets go of the transport now, not when its time would have come
        self._dialogue.close()
        self._news.set()

    def pause_writing(self) -> None:
        """The client does not read: then we do not read either."""
        self._blocked = True
        self._due = trio.current_time() + limits.WRITE
        self._pause()

    def resume_writing(self) -> None:
        """It reads again."""
        self._blocked = False
        self._enter(self._phase)
        self._resume()

    # ---- what the Trio side calls

    async def shake_hands(self, client: socket.socket) -> bool:
        """Put TLS on a socket, and the session on that; whether there is one now."""
        with suppress(OSError), self._handshake:
            await trio_asyncio.aio_as_trio(self.loop.connect_accepted_socket)(
                lambda: self,
                client,
                ssl=self._certificate.context,
                ssl_handshake_timeout=limits.TLS_HANDSHAKE,
                ssl_shutdown_timeout=TLS_GOODBYE,
            )
        return self.transport is not None

    async def run(self) -> None:
        """Do what takes time, until the connection has ended."""
        try:
            while not self._lost:
                await self._news.wait()
                self._news = trio.Event()
                work, self._work = self._work, None
                if work is not None:
                    await self._do(work)
        finally:
            if self.transport is not None:
                self.transport.abort()

    def stop(self) -> None:
        """The program is ending; a message on its way is finished first, a handshake is not."""
        self._handshake.cancel()
        self._dialogue.stop()
        self._settle()

    def give_way(self) -> None:
        """End it for another client: this one has no message under way."""
        self._handshake.cancel()
        if self.transport is not None:
            if self._phase is Phase.COMMAND:
                self.transport.write(replies.CROWDED)  # sent at once, or not at all
            self.transport.abort()

    def end_if_due(self, now: float) -> None:
        """End it if the client has kept us waiting too long, or has been here for too long."""
        if self._blocked:
            if now >= self._due and self.transport is not None:
                self.transport.abort()
        elif now >= self._due or self._is_slow(now):
            self._end(replies.TOO_SLOW)
        elif self._phase is Phase.COMMAND and now >= self._began + self._settings.session_timeout:
            self._end(replies.SESSION_OVER)

    def _is_slow(self, now: float) -> bool:
        content = self._dialogue.content
        if self._phase is not Phase.CONTENT or content is None:
            return False
        return content.size < limits.LOWEST_RATE * (now - self._phase_began - limits.SLOW_START)

    # ---- actions

    async def _do(self, work: Action) -> None:
        try:
            if isinstance(work, Submit):
                await self._submit(work)
            elif isinstance(work, WrongLogin):
                refused = await self._deeds.wrong_login(self._address)
                REFUSALS.add(("smtp", Code.UNAUTHORIZED))
                log.info("login failed", client=self._address)
                self._dialogue.login_failed(too_many=refused.retry_after is not None)
            elif isinstance(work, ReadRecipient):
                self._dialogue.recipient_read(await self._read_recipient(work))
            elif isinstance(work, Yield):
                await trio.sleep(limits.PAUSE)
                self._dialogue.go_on()
            elif not await self._start_tls():
                return
            action = self._dialogue.proceed()
        except Exception:
            self._break_off()
            return
        if self._client_done and action is None:
            self._dialogue.close()
        self._begin(action)
        self._resume()

    async def _submit(self, work: Submit) -> None:
        try:
            message_id = await self._deeds.submit(work)
        except Refused as refused:
            REFUSALS.add(("smtp", refused.code))
            # Only our own faults are for the log: what is wrong with a message may quote it.
            if refused.__cause__ is not None and refused.status >= 500:
                log.error("message refused", client=self._address, cause=repr(refused.__cause__))
            self._dialogue.answer(None, refused)
        except Exception:
            REFUSALS.add(("smtp", Code.INTERNAL_ERROR))
            log.exception("message failed", client=self._address)
            self._dialogue.answer(None)
        else:
            self._dialogue.answer(message_id)

    async def _read_recipient(self, work: ReadRecipient) -> Address | BadAddress | Refused:
        try:
            return await self._deeds.read_recipient(work)
        except (BadAddress, Refused) as refused:
            return refused

    async def _start_tls(self) -> bool:
        """Put TLS under the dialogue; the transport reads nothing until that is done."""
        assert self.transport is not None  # noqa: S101
        secured = None
        # ssl.SSLError is an OSError: the client's fault, and the client's loss.
        with suppress(OSError), self._handshake:
            secured = await trio_asyncio.aio_as_trio(self.loop.start_tls)(
                self.transport,
                self,
                self._certificate.context,
                server_side=True,
                ssl_handshake_timeout=limits.TLS_HANDSHAKE,
                ssl_shutdown_timeout=TLS_GOODBYE,
            )
        if secured is None or self._lost:
            # asyncio tells nobody that a connection was lost during its handshake, so this is the end of it.
            self.transport.abort()
            self._lost = True
            self._dialogue.close()
            self._settle()
            return False
        self.transport = secured
        self._dialogue.secured()
        return True

    # ---- between the two

    def _begin(self, action: Action | None) -> None:
        """Write the replies, and have the action done if there is one."""
        if isinstance(action, StartTls):
            # Before the client can know: what it sends next is for TLS to read, not for us.
            self._pause()
        self._settle()
        if action is not None:
            self._work = action
            self._news.set()
        elif self._phase is Phase.ACTION and self._dialogue.waiting > READ_AHEAD:
            self._pause()

    def _settle(self) -> None:
        """Write what there is to be written, and note what is waited for now, and until when."""
        dialogue, transport = self._dialogue, self.transport
        wrote = bool(dialogue.out)
        if wrote:
            written = b"".join(dialogue.out)
            dialogue.out.clear()
            if transport is not None and not self._lost:
                transport.write(written)
        if wrote or dialogue.phase is not self._phase:
            self._enter(dialogue.phase)

    def _enter(self, phase: Phase) -> None:
        now = trio.current_time()
        if phase is not self._phase:
            if Phase.COMMAND in (phase, self._phase):
                self._deeds.transacts(self, busy=phase is not Phase.COMMAND)
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
        """Close once our last word is read, or after a moment: a socket closed with unread input would destroy it."""
        if self._dialogue.quit:
            self._deeds.leave(self)  # whoever was sent away counts until it is gone: it may hold on for a while
        transport = self.transport
        if transport is None or self._lost:
            return
        if self._dialogue.quit or self._client_done or not transport.can_write_eof():
            transport.close()
            if not transport.get_write_buffer_size() and not self._dialogue.stopping:
                return
        else:
            transport.write_eof()
            self._resume()
        linger = limits.LAST_LINGER if self._dialogue.stopping else limits.LINGER
        self._last_moment = self.loop.call_later(linger, transport.abort)

    def _end(self, last_word: bytes) -> None:
        self._dialogue.goodbye(last_word)
        self._settle()

    def _break_off(self) -> None:
        """A bug of ours: the log has it, the client only learns that it was not its fault."""
        log.exception("session failed", client=self._address)
        self._end(replies.INTERNAL_ERROR)

    def _pause(self) -> None:
        if self.transport is not None:
            with suppress(RuntimeError):  # a transport that is closing has nothing to pause
                self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and not self._blocked:
            with suppress(RuntimeError):
                self.transport.resume_reading()
