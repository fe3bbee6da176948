"""In charge of an SMTP connection: moves the bytes of the dialogues over a stream, within their time."""

from __future__ import annotations

from collections.abc import Callable

import trio

from appliance.deliver.smtp.capabilities import Capabilities
from appliance.deliver.smtp.commands import Credentials
from appliance.deliver.smtp.dialogue import CLOSING, Dialogue
from appliance.deliver.smtp.opening import Opening, State
from appliance.deliver.smtp.progress import Progress
from appliance.deliver.smtp.reply import ReplyReader
from appliance.deliver.smtp.results import Cause, NotOpened, Stage, TransactionResult, Verdict
from appliance.deliver.smtp.sending import Sending, Transaction
from appliance.deliver.smtp.timeouts import Timeouts
from appliance.deliver.smtp.tls import TlsFault, TlsPlan, TlsRecord, encrypt
from appliance.deliver.smtp.transcript import Line
from appliance.deliver.smtp.watch import Watch
from appliance.net.socket_stream import faster

RECEIVE_BYTES = 4_096  # at a time; replies are short, and a server that floods us is to be noticed soon
BLOCK_BYTES = 64 * 1024  # sent at a time, each with its own time limit
TOO_LONG = "the server took too long"

_STILL_LISTENING = (None, Cause.TLS_NOT_OFFERED, Cause.AUTH_NOT_OFFERED)
_LOST = (trio.BrokenResourceError, trio.ClosedResourceError)


class Connection:
    """One open connection to one server. Carries one transaction after the other, never two at once.

    It owns the stream: whatever ends the session, a cancellation too, closes it.
    """

    def __init__(self, stream: trio.abc.Stream, watch: Watch, timeouts: Timeouts, clock: Callable[[], float]) -> None:
        """Use `open`."""
        self.capabilities = Capabilities()
        self.tls: TlsRecord | None = None
        self.transcript: tuple[Line, ...] = ()  # of the opening
        self.transactions = 0  # carried so far
        self.deadline = 0.0  # of a transaction that runs, as the watch sees it
        self._stream = self._transport = faster(stream)
        self._watch = watch
        self._timeouts = timeouts
        self._clock = clock
        self._replies = ReplyReader()
        self._closed = False
        self._cut_off = False
        self._needs_reset = False
        self._progress = Progress(0.0)

    @classmethod
    async def open(
        cls,
        stream: trio.abc.Stream,
        hello_name: str,
        *,
        watch: Watch,
        tls: TlsPlan | None = None,
        credentials: Credentials | None = None,
        timeouts: Timeouts | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> Connection:
        """Take a dialled stream to where mail can be sent. Raises NotOpened, with the stream closed."""
        connection = cls(stream, watch, timeouts or Timeouts(), clock)
        connection._progress = progress or connection._progress
        try:
            opening = Opening(
                hello_name,
                connection._replies,
                clock,
                starttls=tls is not None,
                tls_required=tls is not None and tls.demanded,
                implicit_tls=tls is not None and tls.implicit,
                credentials=credentials,
            )
            await connection._open(opening, tls)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def _open(self, opening: Opening, tls: TlsPlan | None) -> None:
        await self._play(opening)
        if tls is not None and opening.state is State.HANDSHAKE:
            await self._encrypt(opening, tls)
            await self._play(opening)
        self.capabilities = opening.capabilities
        self.transcript = opening.transcript.lines()
        if opening.verdict is not None:
            await self._leave(opening.verdict)
            raise NotOpened(opening.verdict, self.transcript)

    async def _encrypt(self, opening: Opening, tls: TlsPlan) -> None:
        try:
            with trio.fail_after(self._timeouts.handshake):
                self._stream, self.tls = await encrypt(self._stream, tls)
        except TlsFault as fault:
            opening.not_secured(fault.cause, fault.text)
        except trio.TooSlowError:
            opening.not_secured(Cause.TIMEOUT, f"no TLS within {self._timeouts.handshake:g} seconds")
        else:
            opening.secured(str(self.tls))

    @property
    def reusable(self) -> bool:
        """Whether another transaction may be sent, as far as we know: the server may have hung up since."""
        return not self._closed

    def allow(self, timeouts: Timeouts) -> None:
        """Wait for so long from now on."""
        self._timeouts = timeouts

    async def send(self, transaction: Transaction, progress: Progress | None = None) -> TransactionResult:
        """Carry out one transaction; whatever happens on the wire is in the result, not raised."""
        if self._closed:
            raise trio.ClosedResourceError("this connection has carried its last transaction")
        self._progress = progress or Progress(0.0)
        sending = Sending(transaction, self.capabilities, self._replies, self._clock, reset=self._needs_reset)
        await self._carry_out(sending)
        self._needs_reset = sending.needs_reset
        if not sending.in_step:
            await self.aclose()
        stale = self.transactions > 0 and sending.verdict is not None and _found_closed(sending.verdict)
        self.transactions += 1
        return TransactionResult(sending.results(), sending.transcript.lines(), self.reusable, stale)

    async def quit(self) -> None:
        """Take leave as RFC 5321 4.1.1.10 wants it, but not for long, and close."""
        if self._closed:
            return
        try:
            with trio.move_on_after(self._timeouts.quit):
                await self._stream.send_all(b"QUIT\r\n")
                await self._stream.receive_some(RECEIVE_BYTES)
        except _LOST:
            pass
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close at once, without a word."""
        self._closed = True
        await trio.aclose_forcefully(self._stream)

    async def _leave(self, verdict: Verdict) -> None:
        """Take leave of a server that still listens, just close on any other."""
        if verdict.cause in _STILL_LISTENING and verdict.code != CLOSING:
            await self.quit()
        else:
            await self.aclose()

    async def _carry_out(self, sending: Sending) -> None:
        """Run a transaction, within its time by the watch. A cancellation from outside closes the connection."""
        stage = sending.awaiting
        if stage is None:
            return
        now = trio.current_time()
        end = now + self._timeouts.whole
        self.deadline = min(now + self._timeouts.of(stage), end)
        self._watch.begin(self)
        try:
            await self._exchange(sending, self, end)
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._watch.end(self)

    async def cut_off(self) -> None:
        """The server has taken too long, says the watch: end the transaction that runs."""
        self._closed = self._cut_off = True
        await trio.aclose_forcefully(self._transport)

    async def _play(self, dialogue: Dialogue) -> None:
        """Run the opening to where it awaits nothing. A cancellation from outside closes the connection."""
        stage = dialogue.awaiting
        if stage is None:
            return
        now = trio.current_time()
        end = now + self._timeouts.whole
        limit = trio.CancelScope(deadline=min(now + self._timeouts.of(stage), end))
        try:
            with limit:
                await self._exchange(dialogue, limit, end)
        except BaseException:
            await self.aclose()
            raise
        if limit.cancelled_caught:
            dialogue.fail(Cause.TIMEOUT, TOO_LONG)

    async def _exchange(self, dialogue: Dialogue, limit: trio.CancelScope | Connection, end: float) -> None:
        answers, progress = 0, self._progress
        while (stage := dialogue.awaiting) is not None:
            blocks = _blocks(dialogue.output())
            for block in blocks[:-1]:
                progress.moved_at = trio.current_time()
                limit.deadline = min(progress.moved_at + self._timeouts.block, end)
                await self._send(block, dialogue)
            if answers != dialogue.answers:  # a reply that comes in drips gets no more time for each
                answers = dialogue.answers
                progress.moved_at = trio.current_time()
                limit.deadline = min(progress.moved_at + self._timeouts.of(stage), end)
            if blocks:  # the last block, mostly the only one, within the time of the answer to it
                if stage is Stage.END_OF_DATA:
                    await trio.lowlevel.checkpoint_if_cancelled()  # the last moment at which it may be ended
                    progress.handed_over = True
                await self._send(blocks[-1], dialogue)
            dialogue.receive(await self._receive(dialogue))

    async def _send(self, block: bytes | memoryview, dialogue: Dialogue) -> None:
        try:
            await self._stream.send_all(block)
        except _LOST as error:
            self._is_lost(error, dialogue)

    async def _receive(self, dialogue: Dialogue) -> bytes | bytearray:
        try:
            return await self._stream.receive_some(RECEIVE_BYTES)
        except _LOST as error:
            self._is_lost(error, dialogue)
            return b""

    def _is_lost(self, error: Exception, dialogue: Dialogue) -> None:
        if self._cut_off:
            dialogue.fail(Cause.TIMEOUT, TOO_LONG)
        else:
            dialogue.broken(_reason(error))


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


def _reason(error: Exception) -> str:
    cause = error.__cause__
    return f"the connection broke: {getattr(cause, 'strerror', None) or cause or 'closed'}"


def _found_closed(verdict: Verdict) -> bool:
    """Whether a server seems to have given up an idle connection before it was used again."""
    closed = verdict.cause is Cause.CONNECTION_LOST or (verdict.reply is not None and verdict.reply.code == CLOSING)
    refused = verdict.stage is Stage.RESET and verdict.cause is Cause.PROTOCOL_FAULT
    return refused or (closed and verdict.stage in (Stage.RESET, Stage.MAIL))
