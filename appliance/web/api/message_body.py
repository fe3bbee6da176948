"""Answers `GET /v1/emails/{id}/body`: a stored message as the dashboard shows it.

A message may have 10 MiB and be written to be slow to read. So one message at a time is loaded and read, in a thread,
in turns between accounts; and few large answers exist at once: one has its slot (`AnswerSlots`) from before the message
is loaded until it has been written to the client. Small answers have none.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from weakref import finalize

import msgspec
import trio
from quart import Response
from quart.wrappers.response import DataBody

from appliance.concurrency.workers import FairQueue
from appliance.errors import Code, Refused
from appliance.message.reader import read_message
from appliance.store import Store
from appliance.web.answer import object_from
from appliance.web.api.answer_slots import AnswerSlot, AnswerSlots
from appliance.web.app import answer

SLOT_WAIT = 20.0  # seconds for a slot and for a turn; a client that waits longer gets 503
SMALL_MESSAGE = 32 * 1024  # bytes; every one of them may become six in JSON
SMALL_ANSWER = 256 * 1024  # bytes, as a page of a list may have
ANSWER_PIECE = 64 * 1024  # bytes of an answer written at once; after each it is known that the client reads
ANSWER_TIMEOUT = 60.0  # seconds for a whole answer


class HeaderObject(msgspec.Struct):
    """One field of a message's header."""

    name: str
    value: str


class FileObject(msgspec.Struct):
    """A file in a message."""

    filename: str
    content_type: str
    size: int
    content_id: str | None


class BodyAnswer(msgspec.Struct):
    """What a reader of the message sees; `truncated` when something is left out: of each text 1 MiB is shown."""

    headers: list[HeaderObject]
    text: str | None
    html: str | None
    attachments: list[FileObject]
    truncated: bool
    request_id: str


@dataclass(frozen=True, slots=True)
class MessageBodies:
    """Reads stored messages within these limits."""

    store: Store
    _slots: AnswerSlots = field(default_factory=lambda: AnswerSlots(SLOT_WAIT))
    _turns: FairQueue = field(default_factory=lambda: FairQueue(1, patience=SLOT_WAIT))
    _thread: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    async def answer(self, account_id: str, message_id: str, size: int, request_id: str) -> Response:
        """The answer, or a refusal; whether a message of this size is this account's must be known before."""
        if size <= SMALL_MESSAGE:
            return answer(await self._encoded(account_id, message_id, request_id))
        slot = await self._slots.take(account_id)
        try:
            encoded = await self._encoded(account_id, message_id, request_id)
        except BaseException:
            slot.release()
            raise
        if len(encoded) <= SMALL_ANSWER:  # most of a large message are files, which are not shown
            slot.release()
            return answer(encoded)
        response = Response(_SlotBody(encoded, slot), content_type="application/json")
        response.content_length = len(encoded)
        return response

    async def _encoded(self, account_id: str, message_id: str, request_id: str) -> bytes:
        async with self._turns.take(account_id):
            mime = await self.store.mail_log.mime(account_id, message_id)
            if mime is None:
                raise Refused(Code.NOT_FOUND, "The body of this message is no longer kept.")
            return await trio.to_thread.run_sync(_read, mime, request_id, limiter=self._thread)


class _SlotBody(DataBody):
    """An answer that gives its slot back once it has been written, is cut off, or is dropped unwritten."""

    def __init__(self, data: bytes, slot: AnswerSlot) -> None:
        super().__init__(data)
        self._slot = slot
        self._written = 0  # bytes
        self._writing = trio.CancelScope()
        # The garbage collector may run on any thread, but slots may only be used on Trio's.
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
        self._slot.progress()  # a piece is asked for when the one before has been written
        piece = self.data[self._written : self._written + ANSWER_PIECE]
        if not piece:
            raise StopAsyncIteration
        self._written += len(piece)
        return piece

    async def __aexit__(self, *exception: object) -> bool:  # type: ignore[override]  # a cut answer is no error
        self._dropped.detach()
        self._slot.release()
        return self._writing.__exit__(*exception)  # type: ignore[arg-type]  # what every __exit__ is given


def _read(mime: bytes, request_id: str) -> bytes:
    view = read_message(mime)
    headers = [HeaderObject(name, value) for name, value in view.headers]
    files = [object_from(FileObject, each) for each in view.attachments]
    return msgspec.json.encode(BodyAnswer(headers, view.text, view.html, files, view.truncated, request_id))
