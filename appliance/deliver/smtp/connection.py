"""Drives SMTP over a stream: moves the bytes of the opening and of transactions, within their deadlines, and keeps
idle connections for the next message to the same server.

`Timeouts` are those of RFC 5321 4.5.3.2. After a time-out its server gets short time-outs (`SlowServers`) for an hour
at most, so that a merely slow server still gets its mail in a later attempt. The time for the reply to the final dot is
never shortened. `DeadlineWatch` checks the deadlines of all transactions once a second: a timer for each would cost a
tenth of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.smtp.protocol import (
    SERVICE_CLOSING,
    Capabilities,
    Cause,
    Dialogue,
    NotOpened,
    RelayCredentials,
    ReplyReader,
    SmtpExchange,
    Stage,
    TransactionResult,
)
from appliance.deliver.smtp.sending import MailTransaction, Opening, OpeningState, Sending
from appliance.deliver.smtp.tls import TlsFault, TlsPlan, TlsRecord, encrypt
from appliance.model.sources import OutgoingSource
from appliance.net.dial import IdlePool, faster

# ---- deadlines

SHORT_TIMEOUT, SHORT_CONNECT_TIMEOUT = 20.0, 10.0  # seconds, for each reply and for the connection of a slow server
SLOW_FOR, SLOW_SERVERS_KEPT = 3_600.0, 10_000  # seconds; addresses
CONNECTION, HANDSHAKE = "connection", "handshake"


class Timeouts(Struct, frozen=True):
    """Seconds for each complete reply (RFC 5321 4.5.3.2)."""

    greeting: float = 300
    ehlo: float = 300
    starttls: float = 300
    handshake: float = 60  # ours: a TLS handshake is two round trips
    auth: float = 300
    reset: float = 300
    mail: float = 300
    rcpt: float = 300
    data: float = 120
    block: float = 180
    end_of_data: float = 600
    quit: float = 5  # nothing depends on the reply
    connect: float = 30  # ours: for a TCP connection
    whole: float = 3_600  # ours: the opening or one transaction; stops a server that delays each of 50 replies to RCPT

    def of(self, stage: Stage) -> float:
        seconds: float = getattr(self, stage)
        return seconds


@dataclass(slots=True)
class SlowServers:
    """Servers that timed out lately; `usual` are the time-outs of all others."""

    usual: Timeouts
    short: Timeouts = field(init=False)
    _slow: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(SLOW_SERVERS_KEPT, SLOW_FOR))  # by address

    def __post_init__(self) -> None:
        waits = ("greeting", "ehlo", "starttls", "handshake", "auth", "reset", "mail", "rcpt", "data", "block")
        short = {wait: min(SHORT_TIMEOUT, getattr(self.usual, wait)) for wait in waits}
        self.short = replace(self.usual, **short, connect=SHORT_CONNECT_TIMEOUT)

    def timeouts(self, address: str) -> Timeouts:
        return self.short if address in self._slow else self.usual

    def add(self, address: str) -> None:
        self._slow.put(address, True)

    def remove(self, address: str) -> None:
        self._slow.discard(address)


@dataclass(slots=True)
class Progress:
    """The state of a session; written by the connection, read by the scheduler.

    A session can end at any time until the final dot is sent: the server has no message. After it, only the reply says
    whether the server has the message, so ending the session would risk a duplicate.
    """

    moved_at: float  # Trio's clock: the last complete reply, or block of the message sent
    handed_over: bool = False  # the final dot may have been sent
    host: str | None = None  # the server being tried
    address: str | None = None
    awaits: str = CONNECTION  # this, `HANDSHAKE`, or the stage of the awaited reply
    may_hand_over: Callable[[], bool] = lambda: True  # whether this node still owns the mail, before the final dot


class LeaseLost(Exception):
    """Another node may have this mail by now. No server has it: the final dot was not sent."""


# ---- the connection

REPLY_RECEIVE_BYTES = 4_096  # at a time: replies are short
BLOCK_BYTES = 64 * 1024  # sent at a time, each with its own time limit
TOO_LONG = "the server took too long"
WATCH_EVERY = 1.0  # seconds
_STILL_LISTENING = (None, Cause.TLS_NOT_OFFERED, Cause.AUTH_NOT_OFFERED)
_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


class SmtpConnection:
    """One open connection, for one transaction after the other. The end of the session always closes the stream."""

    def __init__(self, stream: trio.abc.Stream, watch: DeadlineWatch, timeouts: Timeouts) -> None:
        self.reusable = True  # for another transaction, unless the server has closed the connection
        self.timeouts = timeouts
        self.capabilities = Capabilities()
        self.tls: TlsRecord | None = None
        self.transcript: Dialogue = ()  # of the opening
        self.transactions = 0  # carried so far
        self.deadline = 0.0  # of the running transaction, for the watch
        self._stream = self._transport = faster(stream)
        self._watch = watch
        self._clock = trio.lowlevel.current_clock().current_time  # read ten times for a message
        self._replies = ReplyReader()
        self._cut_off = self._needs_reset = False
        self._progress = Progress(0.0)

    @classmethod
    async def open(
        cls,
        stream: trio.abc.Stream,
        hello_name: str,
        *,
        watch: DeadlineWatch,
        tls: TlsPlan | None = None,
        credentials: RelayCredentials | None = None,
        timeouts: Timeouts | None = None,
        progress: Progress | None = None,
    ) -> SmtpConnection:
        """Open a session on a dialled stream. Raises NotOpened, with the stream closed."""
        connection = cls(stream, watch, timeouts or Timeouts())
        connection._progress = progress or connection._progress
        try:
            opening = Opening(hello_name, connection._replies, connection._clock, tls, credentials)
            await connection._open(opening, tls)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def _open(self, opening: Opening, tls: TlsPlan | None) -> None:
        await self._run_opening(opening)
        if tls is not None and opening.state is OpeningState.HANDSHAKE:
            self._progress.awaits = HANDSHAKE
            try:
                with trio.fail_after(self.timeouts.handshake):
                    self._stream, self.tls = await encrypt(self._stream, tls)
                opening.secured(str(self.tls))
            except TlsFault as fault:
                opening.not_secured(fault.cause, fault.text)
            except trio.TooSlowError:
                opening.not_secured(Cause.TIMEOUT, f"no TLS within {self.timeouts.handshake:g} seconds")
            await self._run_opening(opening)
        self.capabilities = opening.capabilities
        self.transcript = opening.transcript.lines()
        if (verdict := opening.verdict) is not None:
            if verdict.cause in _STILL_LISTENING and verdict.code != SERVICE_CLOSING:
                await self.quit()
            raise NotOpened(verdict, self.transcript)

    async def send(self, transaction: MailTransaction, progress: Progress | None = None) -> TransactionResult:
        """Run one transaction. Faults of the server or the network are in the result, not raised."""
        if not self.reusable:
            raise trio.ClosedResourceError("this connection has carried its last transaction")
        self._progress = progress or Progress(0.0)
        sending = Sending(transaction, self.capabilities, self._replies, self._clock, reset=self._needs_reset)
        if (stage := sending.awaiting) is not None:
            now = self._clock()
            end = now + self.timeouts.whole
            self.deadline = min(now + self.timeouts.of(stage), end)
            self._watch.begin(self)
            try:
                await self._run(sending, self, end)
            except BaseException:
                await self.aclose()
                raise
            finally:
                self._watch.end(self)
        self._needs_reset = sending.needs_reset
        if not sending.in_step:
            await self.aclose()
        stale = False
        if self.transactions > 0 and (verdict := sending.verdict) is not None:
            closed = verdict.cause is Cause.CONNECTION_LOST or verdict.code == SERVICE_CLOSING
            refused = verdict.stage is Stage.RESET and verdict.cause is Cause.PROTOCOL_FAULT
            stale = refused or (closed and verdict.stage in (Stage.RESET, Stage.MAIL))
        self.transactions += 1
        dialogues = tuple(map(sending.transcript.lines, range(len(transaction.recipients))))
        return TransactionResult(sending.verdicts(), dialogues, self.reusable, stale)

    async def quit(self) -> None:
        """Send QUIT (RFC 5321 4.1.1.10), wait briefly for the reply, and close."""
        if not self.reusable:
            return
        try:
            with suppress(*_LOST), trio.move_on_after(self.timeouts.quit):
                await self._stream.send_all(b"QUIT\r\n")
                await self._stream.receive_some(REPLY_RECEIVE_BYTES)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        self.reusable = False
        await trio.aclose_forcefully(self._stream)

    async def cut_off(self) -> None:
        """End the running transaction: its deadline is over."""
        self.reusable, self._cut_off = False, True
        await trio.aclose_forcefully(self._transport)

    async def _run_opening(self, exchange: SmtpExchange) -> None:
        stage = exchange.awaiting
        if stage is None:
            return
        now = trio.current_time()
        end = now + self.timeouts.whole
        with trio.CancelScope(deadline=min(now + self.timeouts.of(stage), end)) as limit:
            await self._run(exchange, limit, end)
        if limit.cancelled_caught:
            exchange.fail(Cause.TIMEOUT, TOO_LONG)

    async def _run(self, exchange: SmtpExchange, limit: trio.CancelScope | SmtpConnection, end: float) -> None:
        answers, progress = 0, self._progress
        while (stage := exchange.awaiting) is not None:
            progress.awaits = stage
            blocks = _blocks(exchange.output())
            for block in blocks[:-1]:
                progress.moved_at = self._clock()
                limit.deadline = min(progress.moved_at + self.timeouts.block, end)
                await self._send(block, exchange)
            if answers != exchange.answers:  # a part of a reply does not extend the deadline
                answers = exchange.answers
                progress.moved_at = self._clock()
                limit.deadline = min(progress.moved_at + self.timeouts.of(stage), end)
            if blocks:  # the last block, mostly the only one, within the time of the reply to it
                if stage is Stage.END_OF_DATA:
                    await trio.lowlevel.checkpoint_if_cancelled()  # the last moment at which the session may end
                    if not progress.may_hand_over():
                        raise LeaseLost
                    progress.handed_over = True
                await self._send(blocks[-1], exchange)
            try:
                data = await self._stream.receive_some(REPLY_RECEIVE_BYTES)
            except _LOST as error:
                data = b""
                self._lost(error, exchange)
            exchange.receive(data)

    async def _send(self, block: bytes | memoryview, exchange: SmtpExchange) -> None:
        try:
            await self._stream.send_all(block)
        except _LOST as error:
            self._lost(error, exchange)

    def _lost(self, error: Exception, exchange: SmtpExchange) -> None:
        """Tell the exchange that the connection broke, or was cut off."""
        if self._cut_off:
            exchange.fail(Cause.TIMEOUT, TOO_LONG)
        else:
            cause = error.__cause__
            exchange.broken(f"the connection broke: {getattr(cause, 'strerror', None) or cause or 'closed'}")


def _blocks(output: list[bytes]) -> list[bytes | memoryview]:
    blocks: list[bytes | memoryview] = []
    for part in output:
        if len(part) <= BLOCK_BYTES:
            blocks.append(part)
        else:
            view = memoryview(part)
            blocks += [view[start : start + BLOCK_BYTES] for start in range(0, len(part), BLOCK_BYTES)]
    return blocks


class DeadlineWatch:
    """The running transactions; `run` ends those whose deadline is over."""

    def __init__(self) -> None:
        self._running: set[SmtpConnection] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def begin(self, connection: SmtpConnection) -> None:
        if not self._running:
            self._idle.unpark_all()
        self._running.add(connection)

    def end(self, connection: SmtpConnection) -> None:
        self._running.discard(connection)

    async def run(self) -> None:
        while True:
            if not self._running:
                await self._idle.park()
            await trio.sleep(WATCH_EVERY)
            now = trio.current_time()
            for late in [connection for connection in self._running if now >= connection.deadline]:
                if late in self._running:  # its reply may have arrived while another one was cut off
                    await late.cut_off()


# ---- idle connections

SMTP_IDLE_LIMIT = 20.0  # seconds; servers close idle connections after 30 to 300
IDLE_CONNECTIONS = 100  # kept open in all


class ConnectionKey(NamedTuple):
    """Connections with the same key are interchangeable."""

    host: str
    address: str
    port: int
    tls: Hashable  # the demand, without the domain that makes it: a provider's domains share connections
    relay: Hashable = None  # the relay and the login there
    source: OutgoingSource | None = None  # None: the system chooses the address of this machine


class Connections(IdlePool[ConnectionKey, SmtpConnection]):
    def __init__(self, most_idle: int = IDLE_CONNECTIONS) -> None:
        super().__init__()
        self.most_idle = most_idle
        self.to_quit: list[SmtpConnection] = []

    def give_back(self, key: ConnectionKey, connection: SmtpConnection, most_transactions: int) -> None:
        """Keep a connection for the next message, or queue it for QUIT: its outcome must not wait for the reply."""
        if not connection.reusable:
            return
        if connection.transactions >= most_transactions or len(self) >= self.most_idle:
            self.to_quit.append(connection)
        else:
            self.put(key, connection)

    async def close_idle(self, older_than: float = SMTP_IDLE_LIMIT) -> None:
        limit = trio.current_time() - older_than
        while (connection := self.take_oldest(idle_since=limit)) is not None:
            self.to_quit.append(connection)
        await self.quit_ended()

    async def drop_idle(self) -> None:
        """Close all idle connections without QUIT: this machine needs the descriptors."""
        dropped, self.to_quit = self.to_quit, []
        while (connection := self.take_oldest()) is not None:
            dropped.append(connection)
        for connection in dropped:
            await connection.aclose()

    async def quit_ended(self) -> None:
        ending, self.to_quit = self.to_quit, []
        async with trio.open_nursery() as nursery:
            for connection in ending:
                nursery.start_soon(connection.quit)
