"""Serves stored messages: `/v1/emails/{id}/body` for the dashboard, the raw message, and its attachments.

A message may have 10 MiB and be crafted to be slow to parse. One message at a time is loaded and parsed, on a thread,
in turns between accounts. A large response holds a slot (`AnswerSlots`) from before the load until its client has read
it. Small responses need none.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from math import inf
from typing import Annotated, TypeVar
from weakref import finalize

import msgspec
import trio
from msgspec import Meta, Struct, field
from quart import Response
from quart.wrappers.response import DataBody

from appliance.concurrency.fair_share import FairQueue, Shares, TurnQueue
from appliance.errors import Code, Refused
from appliance.message.limits import MESSAGE_SIZE
from appliance.message.reader import read_attachment, read_message
from appliance.store import Store
from appliance.web.exchange import ApiAnswer, object_from

T = TypeVar("T")

ANSWER_SLOTS = 8  # a response takes up to 12 MiB if every character must be escaped
ACCOUNT_SLOTS = 2
STALLED_AFTER = 1.0  # seconds without a read
STALL_CHECK_INTERVAL = 0.25  # seconds between two searches for a stalled client


class AnswerSlot(Struct, eq=False):
    """One client's slot, or its place in the queue for one."""

    account_id: str
    table: "AnswerSlots"
    granted: trio.Event = field(default_factory=trio.Event)
    read_at: float = inf  # when the client last read something; infinite until there is something to read
    cut: Callable[[], None] | None = None

    def begin(self, cut: Callable[[], None]) -> None:
        self.cut = cut
        self.progress()

    def progress(self) -> None:
        self.read_at = trio.current_time()

    def release(self) -> None:
        """Give the slot back; may be called more than once."""
        self.table.end(self)


class AnswerSlots:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout  # seconds that a client waits at most
        self._shares = Shares[str](ANSWER_SLOTS)  # by account
        self._held: set[AnswerSlot] = set()
        self._waiting = TurnQueue[str, AnswerSlot]()

    async def take(self, account_id: str) -> AnswerSlot:
        slot = AnswerSlot(account_id, self)
        self._waiting.add(account_id, slot)
        self._grant()
        try:
            with trio.move_on_after(self._timeout):
                while not slot.granted.is_set():
                    with trio.move_on_after(STALL_CHECK_INTERVAL):
                        await slot.granted.wait()
                        break
                    self._cut_stalled(account_id)
        except BaseException:
            slot.release()
            raise
        if slot in self._held:
            return slot
        slot.release()
        text = "The server is reading too many messages. Retry in a few seconds."
        raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=5)

    def end(self, slot: AnswerSlot) -> None:
        if slot in self._held:
            self._held.remove(slot)
            self._shares.give_back(slot.account_id)
        elif not slot.granted.is_set():
            slot.granted.set()  # so that a second release changes nothing
            self._waiting.remove(slot.account_id, slot)
        self._grant()

    def _grant(self) -> None:
        while (slot := self._waiting.next_that(self._may_have)) is not None:
            self._shares.take(slot.account_id)
            self._held.add(slot)
            slot.granted.set()

    def _may_have(self, slot: AnswerSlot) -> bool:
        held = self._shares.of(slot.account_id)
        return self._shares.free > (0 if not held else ANSWER_SLOTS // 2) and held < ACCOUNT_SLOTS

    def _cut_stalled(self, account_id: str) -> None:
        """End the response that its client has not read for longest, if that is too long."""
        own = self._shares.of(account_id)
        writing = [slot for slot in self._held if slot.cut and (not own or slot.account_id == account_id)]
        stalled = min(writing, key=lambda slot: slot.read_at, default=None)
        if stalled is not None and stalled.cut is not None and trio.current_time() - stalled.read_at >= STALLED_AFTER:
            stalled.cut()
            stalled.cut = None


SLOT_WAIT = 20.0  # seconds to wait for a slot and a turn before a 503
SMALL_MESSAGE = 32 * 1024  # bytes; each may become six in JSON
SMALL_ANSWER = 256 * 1024  # bytes, like a page of a list
ANSWER_PIECE = 64 * 1024  # bytes per write; each completed write shows that the client reads
JSON, RAW_MESSAGE, OCTETS = "application/json", "message/rfc822", "application/octet-stream"
RAW_FILE, ATTACHED_FILE = (200, RAW_MESSAGE, "The stored message, before signing."), (200, OCTETS, "The file.")
ANSWER_TIMEOUT = 60.0  # seconds for a whole response


class HeaderObject(msgspec.Struct):
    """A header field."""

    name: Annotated[str, Meta(description="Header field name.")]
    value: Annotated[str, Meta(description="Decoded value.")]


class FileObject(msgspec.Struct):
    """An attached file."""

    filename: Annotated[str, Meta(description="File name without a path.")]
    content_type: Annotated[str, Meta(description="Media type.")]
    size: Annotated[int, Meta(description="Decoded size in bytes.")]
    content_id: Annotated[str | None, Meta(description="Content id of an inline image; null without one.")]


_TRUNCATED = Meta(description="Whether content is omitted: 1 MiB per text, 200 headers and 200 parts are shown.")


class BodyAnswer(ApiAnswer):
    """The content of a message."""

    headers: Annotated[list[HeaderObject], Meta(description="Decoded header fields, at most 200.")]
    text: Annotated[str | None, Meta(description="Plain-text body; null without one.")]
    html: Annotated[str | None, Meta(description="HTML body; null without one.")]
    attachments: Annotated[list[FileObject], Meta(description="Attached files.")]
    truncated: Annotated[bool, _TRUNCATED]


class MessageBodies(Struct, frozen=True):
    """Reads stored messages within these limits."""

    store: Store
    _slots: AnswerSlots = field(default_factory=lambda: AnswerSlots(SLOT_WAIT))
    _turns: FairQueue = field(default_factory=lambda: FairQueue(1, patience=SLOT_WAIT))
    _thread: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    async def answer(
        self,
        account_id: str,
        message_id: str,
        size: int,
        read: Callable[[bytes], bytes],
        kind: str,
        filename: str = "",
        *,
        load: Callable[[], Awaitable[bytes | None]] | None = None,
    ) -> Response:
        """The message as `read` encodes it, a download if it has a file name. The caller has checked the account.

        `load` returns its bytes (default: the body of a sent message).
        """
        load = load or partial(self.store.mail_log.mime, account_id, message_id)
        headers = {"Content-Disposition": f'attachment; filename="{filename}"'} if filename else {}
        if size <= SMALL_MESSAGE:
            return Response(await self.read(account_id, load, read), 200, headers, content_type=kind)
        slot = await self._slots.take(account_id)
        try:
            encoded = await self.read(account_id, load, read)
        except BaseException:
            slot.release()
            raise
        if len(encoded) <= SMALL_ANSWER:  # a large message is mostly attachments, which the response omits
            slot.release()
            return Response(encoded, 200, headers, content_type=kind)
        response = Response(_SlotBody(encoded, slot), 200, headers, content_type=kind)
        response.content_length = len(encoded)
        return response

    async def read(self, account_id: str, load: Callable[[], Awaitable[bytes | None]], read: Callable[[bytes], T]) -> T:
        """Return what `read` makes of the message. It runs on a thread, for one message at a time."""
        async with self._turns.take(account_id):
            mime = await load()
            if mime is None:
                raise Refused(Code.NOT_FOUND, "The body of this message is no longer stored.")
            return await trio.to_thread.run_sync(read, mime, limiter=self._thread)


class _SlotBody(DataBody):
    """A response that releases its slot when it is written, cut off or dropped unwritten."""

    def __init__(self, data: bytes, slot: AnswerSlot) -> None:
        super().__init__(data)
        self._slot = slot
        self._written = 0  # bytes
        self._writing = trio.CancelScope()
        # The garbage collector may run on any thread, but slots belong to Trio's thread.
        self._dropped = finalize(self, trio.lowlevel.current_trio_token().run_sync_soon, slot.release)
        self._dropped.atexit = False

    async def __aenter__(self) -> "_SlotBody":
        self._writing.deadline = trio.current_time() + ANSWER_TIMEOUT
        self._writing.__enter__()
        self._slot.begin(self._writing.cancel)
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._slot.progress()  # the previous piece has been written
        piece = self.data[self._written : self._written + ANSWER_PIECE]
        if not piece:
            raise StopAsyncIteration
        self._written += len(piece)
        return piece

    async def __aexit__(self, *exception: object) -> bool:  # type: ignore[override]  # a cut answer is no error
        self._dropped.detach()
        self._slot.release()
        return self._writing.__exit__(*exception)  # type: ignore[arg-type]  # what every __exit__ is given


def encoded_attachment(number: int, mime: bytes) -> bytes:
    content = read_attachment(mime, number, MESSAGE_SIZE)
    if content is None:
        raise Refused(Code.NOT_FOUND, "This message has no attachment with this number.")
    return content


def encoded_body(request_id: str, mime: bytes) -> bytes:
    view = read_message(mime)
    headers = [HeaderObject(name, value) for name, value in view.headers]
    files = [object_from(FileObject, file) for file in view.attachments]
    return msgspec.json.encode(BodyAnswer(headers, view.text, view.html, files, view.truncated, request_id=request_id))
