"""Answers `GET /v1/emails/{id}/body`: a stored message as the dashboard shows it.

A message may have 10 MiB and be written to be slow to read. So one message at a time is loaded and read, in a thread,
and few answers exist at once: an answer has its place from before the message is loaded until it has been written to
the client. One account has at most OWN_ANSWERS of the places, so that its readers cannot keep others from theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary, finalize

import msgspec
import trio
from quart import Response
from quart.wrappers.response import DataBody

from appliance.errors import Code, Refused
from appliance.message.reader import MessageView, read_message
from appliance.store import Store

ANSWERS = 8  # in memory at once, of all accounts; each has up to 12 MiB when every character of it must be escaped
OWN_ANSWERS = 2  # of one account
WAIT = 20.0  # seconds for a place; whoever waits longer is told to come back


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
    """Reads stored messages for their owners, within the limits above."""

    store: Store
    _places: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(ANSWERS))
    _own_places: WeakValueDictionary[str, trio.CapacityLimiter] = field(default_factory=WeakValueDictionary)
    _turn: trio.Lock = field(default_factory=trio.Lock)
    _thread: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    async def answer(self, account_id: str, message_id: str, request_id: str) -> Response:
        """The answer, or a refusal; whether the message is this account's must be known before."""
        release = await self._place(account_id)
        try:
            encoded = await self._encoded(message_id, request_id)
        except BaseException:
            release()
            raise
        response = Response(_PlacedBody(encoded, release), content_type="application/json")
        response.content_length = len(encoded)
        return response

    async def _encoded(self, message_id: str, request_id: str) -> bytes:
        async with self._turn:
            mime = await self.store.mail_log.mime(message_id)
            if mime is None:
                raise Refused(Code.NOT_FOUND, "The body of this message is no longer kept.")
            return await trio.to_thread.run_sync(_read, mime, request_id, limiter=self._thread)

    async def _place(self, account_id: str) -> Callable[[], None]:
        """Wait for a place; what is returned gives it back, and may be called more than once."""
        own = self._own_places.setdefault(account_id, trio.CapacityLimiter(OWN_ANSWERS))
        holder = object()
        taken: list[trio.CapacityLimiter] = []

        def release() -> None:
            while taken:
                taken.pop().release_on_behalf_of(holder)

        try:
            with trio.move_on_after(WAIT):
                for limiter in (own, self._places):
                    await limiter.acquire_on_behalf_of(holder)
                    taken.append(limiter)
                return release
        except BaseException:
            release()
            raise
        release()
        raise Refused(
            Code.TEMPORARY_FAILURE, "Too many messages are being read right now. Retry in a moment.", retry_after=5
        )


class _PlacedBody(DataBody):
    """An answer that gives its place back once it has been written, or when it is dropped unwritten."""

    def __init__(self, data: bytes, release: Callable[[], None]) -> None:
        super().__init__(data)
        self._release = release
        # A collector may find it on any thread, and limiters belong to Trio's.
        self._dropped = finalize(self, trio.lowlevel.current_trio_token().run_sync_soon, release)
        self._dropped.atexit = False

    async def __aexit__(self, *exception: object) -> None:
        self._dropped.detach()
        self._release()


def _read(mime: bytes, request_id: str) -> bytes:
    return msgspec.json.encode(_object(read_message(mime), request_id))


def _object(view: MessageView, request_id: str) -> BodyAnswer:
    return BodyAnswer(
        [HeaderObject(name, value) for name, value in view.headers],
        view.text,
        view.html,
        [FileObject(each.filename, each.content_type, each.size, each.content_id) for each in view.attachments],
        view.truncated,
        request_id,
    )
