"""Drives SMTP over a stream: moves the bytes of the opening and of transactions, within their deadlines.

`Timeouts` are those of RFC 5321 4.5.3.2. A server that let a session run into one gets short time-outs (`SlowServers`),
for an hour at most: the later attempts of a message give every server the full time again, so a merely slow one gets
its mail in the end. The time for the answer to the final dot is never shortened.

`DeadlineWatch` enforces the deadline of every running transaction, once a second: a timer per transaction, set, moved
and removed, would cost a tenth of what the transaction does, and a server may as well have 301 seconds as 300.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.smtp.opening import Opening, OpeningState
from appliance.deliver.smtp.protocol import (
    SERVICE_CLOSING,
    Cause,
    NotOpened,
    RelayCredentials,
    SmtpExchange,
    Stage,
    TransactionResult,
    TranscriptLine,
    Verdict,
)
from appliance.deliver.smtp.reply import Capabilities, ReplyReader
from appliance.deliver.smtp.sending import MailTransaction, Sending
from appliance.deliver.smtp.tls import TlsFault, TlsPlan, TlsRecord, encrypt
from appliance.net.socket_stream import faster

# ---- deadlines

SHORT_TIMEOUT = 20.0  # seconds for each answer of a server that is remembered
SHORT_CONNECT_TIMEOUT = 10.0
SLOW_FOR = 3_600.0  # seconds
SLOW_SERVERS_KEPT = 10_000  # addresses
CONNECTION, HANDSHAKE = "connection", "handshake"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Each reply has its own time, from when it is waited for until it is whole (RFC 5321 4.5.3.2)."""

    greeting: float = 300
    ehlo: float = 300
    starttls: float = 300
    handshake: float = 60  # ours: a TLS handshake is two round trips, not a decision
    auth: float = 300
    reset: float = 300
    mail: float = 300
    rcpt: float = 300
    data: float = 120
    block: float = 180
    end_of_data: float = 600
    quit: float = 5  # nothing depends on the answer
    connect: float = 30  # ours: for a TCP connection
    whole: float = 3_600  # ours: opening or one transaction, against one that answers each of 50 RCPTs just in time

    def of(self, stage: Stage) -> float:
        seconds: float = getattr(self, stage)
        return seconds


@dataclass(slots=True)
class SlowServers:
    """Servers that took too long lately; `usual` are the time-outs of all others."""

    usual: Timeouts
    short: Timeouts = field(init=False)
    _slow: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(SLOW_SERVERS_KEPT, SLOW_FOR))  # by address

    def __post_init__(self) -> None:
        waits = ("greeting", "ehlo", "starttls", "handshake", "auth", "reset", "mail", "rcpt", "data", "block")
        short = {wait: min(SHORT_TIMEOUT, getattr(self.usual, wait)) for wait in waits}
        self.short = replace(self.usual, **short, connect=SHORT_CONNECT_TIMEOUT)

    def __contains__(self, address: str) -> bool:
        return address in self._slow

    def timeouts(self, address: str) -> Timeouts:
        return self.short if address in self else self.usual

    def add(self, address: str) -> None:
        self._slow.put(address, True)

    def remove(self, address: str) -> None:
        self._slow.discard(address)


@dataclass(slots=True)
class Progress:
    """How far a session has come; written by the connection, read by the scheduler.

    Until the final dot is sent a session can be ended at any time: the server has no message. After it, only the
    server's answer tells whether it took the message, so ending the session would risk a duplicate.
    """

    moved_at: float  # Trio's clock: when a server last gave a whole reply, or took a block of the message
    handed_over: bool = False  # the final dot may have been sent
    host: str | None = None  # the server being tried
    address: str | None = None
    awaits: str = CONNECTION  # this, `HANDSHAKE`, or the stage whose answer is waited for
    may_hand_over: Callable[[], bool] = lambda: (
        True
    )  # asked before the final dot: another node may have the mail by then


class LeaseLost(Exception):
    """Another node may have this mail by now. No server has it: the final dot was not sent."""


# ---- the connection

REPLY_RECEIVE_BYTES = 4_096  # at a time; replies are short, and a server that floods us is to be noticed soon
BLOCK_BYTES = 64 * 1024  # sent at a time, each with its own time limit
TOO_LONG = "the server took too long"
WATCH_EVERY = 1.0  # seconds

_STILL_LISTENING = (None, Cause.TLS_NOT_OFFERED, Cause.AUTH_NOT_OFFERED)
_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


class SmtpConnection:
    """One open connection to one server. Carries one transaction after the other, never two at once.

    It owns the stream: whatever ends the session, a cancellation too, closes it.
    """

    def __init__(self, stream: trio.abc.Stream, watch: DeadlineWatch, timeouts: Timeouts) -> None:
        self.reusable = True  # for another transaction, as far as we know: the server may have hung up since
        self.timeouts = timeouts
        self.capabilities = Capabilities()
        self.tls: TlsRecord | None = None
        self.transcript: tuple[TranscriptLine, ...] = ()  # of the opening
        self.transactions = 0  # carried so far
        self.deadline = 0.0  # of a transaction that runs, as the watch sees it
        self._stream = self._transport = faster(stream)
        self._watch = watch
        self._clock = trio.lowlevel.current_clock().current_time  # asked ten times for a message
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
        """Carry out one transaction; whatever happens on the wire is in the result, not raised."""
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
        stale = self.transactions > 0 and sending.verdict is not None and _found_closed(sending.verdict)
        self.transactions += 1
        return TransactionResult(sending.verdicts(), sending.transcript.lines(), self.reusable, stale)

    async def quit(self) -> None:
        """Say QUIT (RFC 5321 4.1.1.10), wait briefly for the answer, and close."""
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
        """The deadline is over: end the transaction that runs."""
        self.reusable, self._cut_off = False, True
        await trio.aclose_forcefully(self._transport)

    async def _run_opening(self, exchange: SmtpExchange) -> None:
        """Run the opening until it awaits nothing."""
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
                await self._transfer(self._stream.send_all(block), exchange)
            if answers != exchange.answers:  # a reply that comes in drips gets no more time for each
                answers = exchange.answers
                progress.moved_at = self._clock()
                limit.deadline = min(progress.moved_at + self.timeouts.of(stage), end)
            if blocks:  # the last block, mostly the only one, within the time of the answer to it
                if stage is Stage.END_OF_DATA:
                    await trio.lowlevel.checkpoint_if_cancelled()  # the last moment at which it may be ended
                    if not progress.may_hand_over():
                        raise LeaseLost
                    progress.handed_over = True
                await self._transfer(self._stream.send_all(blocks[-1]), exchange)
            exchange.receive(await self._transfer(self._stream.receive_some(REPLY_RECEIVE_BYTES), exchange) or b"")

    async def _transfer(
        self, transfer: Awaitable[bytes | bytearray | None], exchange: SmtpExchange
    ) -> bytes | bytearray | None:
        """What was received; None if it was sent, or if the connection broke, which the exchange is told."""
        try:
            return await transfer
        except _LOST as error:
            if self._cut_off:
                exchange.fail(Cause.TIMEOUT, TOO_LONG)
            else:
                cause = error.__cause__
                exchange.broken(f"the connection broke: {getattr(cause, 'strerror', None) or cause or 'closed'}")
            return None


def _blocks(output: list[bytes]) -> list[bytes | memoryview]:
    """The output in pieces that can be sent within the time of one; slices of a memoryview are no copies."""
    blocks: list[bytes | memoryview] = []
    for part in output:
        if len(part) <= BLOCK_BYTES:
            blocks.append(part)
        else:
            view = memoryview(part)
            blocks += [view[start : start + BLOCK_BYTES] for start in range(0, len(part), BLOCK_BYTES)]
    return blocks


def _found_closed(verdict: Verdict) -> bool:
    """Whether a server seems to have given up an idle connection before it was used again."""
    closed = verdict.cause is Cause.CONNECTION_LOST or verdict.code == SERVICE_CLOSING
    refused = verdict.stage is Stage.RESET and verdict.cause is Cause.PROTOCOL_FAULT
    return refused or (closed and verdict.stage in (Stage.RESET, Stage.MAIL))


class DeadlineWatch:
    """The transactions that wait at the moment; `run` ends those whose deadline is over."""

    def __init__(self) -> None:
        self._waiting: set[SmtpConnection] = set()
        self._none_waits = trio.lowlevel.ParkingLot()

    def begin(self, watched: SmtpConnection) -> None:
        self._waiting.add(watched)
        self._none_waits.unpark_all()

    def end(self, watched: SmtpConnection) -> None:
        self._waiting.discard(watched)

    async def run(self) -> None:
        """Cut off what is late, until cancelled."""
        while True:
            if not self._waiting:
                await self._none_waits.park()
            await trio.sleep(WATCH_EVERY)
            now = trio.current_time()
            for late in [each for each in self._waiting if now >= each.deadline]:
                if late in self._waiting:  # it may have had its answer while another was cut off
                    await late.cut_off()
