"""Serves stored messages: `/v1/emails/{id}/body` for the dashboard, the raw message, and its attachments.

A message may have 10 MiB and be crafted to be slow to parse. One message at a time is loaded and parsed, on a thread,
in turns between accounts. A large response holds a slot (`AnswerSlots`) from before the load until it is written to the
client. Small responses need none.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated
from weakref import finalize

import msgspec
import trio
from msgspec import Meta
from quart import Response
from quart.wrappers.response import DataBody

from appliance.concurrency.fair_share import FairQueue
from appliance.errors import Code, Refused
from appliance.message.limits import MESSAGE_SIZE
from appliance.message.reader import read_attachment, read_message
from appliance.store import Store
from appliance.web.answer import RequestId, object_from
from appliance.web.api.answer_slots import AnswerSlot, AnswerSlots

SLOT_WAIT = 20.0  # seconds to wait for a slot and a turn before a 503
SMALL_MESSAGE = 32 * 1024  # bytes; each may become six in JSON
SMALL_ANSWER = 256 * 1024  # bytes, like a page of a list
ANSWER_PIECE = 64 * 1024  # bytes per write; each completed write shows that the client reads
JSON, RAW_MESSAGE, OCTETS = "application/json", "message/rfc822", "application/octet-stream"
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


class BodyAnswer(msgspec.Struct):
    """The content of a message."""

    headers: Annotated[list[HeaderObject], Meta(description="Decoded header fields, at most 200.")]
    text: Annotated[str | None, Meta(description="Plain-text body; null without one.")]
    html: Annotated[str | None, Meta(description="HTML body; null without one.")]
    attachments: Annotated[list[FileObject], Meta(description="Attached files.")]
    truncated: Annotated[
        bool, Meta(description="Whether content is omitted: 1 MiB per text, 200 headers and 200 parts are shown.")
    ]
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class MessageBodies:
    """Reads stored messages within these limits."""

    store: Store
    _slots: AnswerSlots = field(default_factory=lambda: AnswerSlots(SLOT_WAIT))
    _turns: FairQueue = field(default_factory=lambda: FairQueue(1, patience=SLOT_WAIT))
    _thread: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    async def answer(self, account_id: str, message_id: str, size: int, request_id: str) -> Response:
        """The parsed message. The caller has checked that the message belongs to the account."""
        return await self._answer(account_id, message_id, size, partial(_read, request_id))

    async def raw(self, account_id: str, message_id: str, size: int) -> Response:
        """The raw message, as a download."""
        response = await self._answer(account_id, message_id, size, bytes, RAW_MESSAGE)
        return _as_file(response, f"{message_id}.eml")

    async def attachment(self, account_id: str, message_id: str, size: int, number: int) -> Response:
        """An attachment, always as a download: a stranger chose its type and name."""
        response = await self._answer(account_id, message_id, size, partial(_attachment, number), OCTETS)
        return _as_file(response, f"{message_id}-{number}")

    async def _answer(
        self, account_id: str, message_id: str, size: int, read: Callable[[bytes], bytes], kind: str = JSON
    ) -> Response:
        if size <= SMALL_MESSAGE:
            return Response(await self._encoded(account_id, message_id, read), content_type=kind)
        slot = await self._slots.take(account_id)
        try:
            encoded = await self._encoded(account_id, message_id, read)
        except BaseException:
            slot.release()
            raise
        if len(encoded) <= SMALL_ANSWER:  # a large message is mostly attachments, which the response omits
            slot.release()
            return Response(encoded, content_type=kind)
        response = Response(_SlotBody(encoded, slot), content_type=kind)
        response.content_length = len(encoded)
        return response

    async def _encoded(self, account_id: str, message_id: str, read: Callable[[bytes], bytes]) -> bytes:
        async with self._turns.take(account_id):
            mime = await self.store.mail_log.mime(account_id, message_id)
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


def _as_file(response: Response, name: str) -> Response:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _attachment(number: int, mime: bytes) -> bytes:
    content = read_attachment(mime, number, MESSAGE_SIZE)
    if content is None:
        raise Refused(Code.NOT_FOUND, "This message has no attachment with this number.")
    return content


def _read(request_id: str, mime: bytes) -> bytes:
    view = read_message(mime)
    headers = [HeaderObject(name, value) for name, value in view.headers]
    files = [object_from(FileObject, file) for file in view.attachments]
    return msgspec.json.encode(BodyAnswer(headers, view.text, view.html, files, view.truncated, request_id))
