"""Loads and shapes received messages for posts in other providers' formats.

Such a body may have 30 MiB, and its receiver may be slow. Two large messages are in memory at a time, in turns between
accounts; a post that waits too long for its turn is not an attempt.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import trio
from msgspec import Struct, field

from appliance.concurrency.fair_share import FairQueue
from appliance.errors import Refused, StorageUnavailable
from appliance.model.webhooks import DuePost, Webhook
from appliance.net.dial import Shortage
from appliance.webhook.connect import NotPosted
from appliance.webhook.received_formats import (
    Received,
    ShapedMessage,
    example_mime,
    read_event,
    shaped_message,
)

UNTURNED_BYTES: Final = 256 * 1024  # a message of this size or less needs no turn
LARGE_AT_ONCE: Final = 2
TURN_WAIT: Final = 20.0  # seconds
GONE: Final = "the received message is no longer stored"


class ReceivedPosts(Struct, frozen=True):
    load: Callable[[str, str], Awaitable[bytes | None]]  # the message by account and id
    _turns: FairQueue = field(default_factory=partial(FairQueue, LARGE_AT_ONCE, patience=TURN_WAIT, rest=0.0))
    _thread: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, 1))

    @asynccontextmanager
    async def shaped(
        self, webhook: Webhook, post: DuePost, secret: bytes, seconds: int
    ) -> AsyncIterator[ShapedMessage]:
        """Hold the message's turn until it is posted; raises `Shortage` without a turn, and `NotPosted`."""
        async with AsyncExitStack() as turn:
            data = read_event(post.body)
            try:
                if data.size > UNTURNED_BYTES:
                    await turn.enter_async_context(self._turns.take(webhook.account_id))
                # A test event is about no message.
                message_id = post.message_id
                mime = example_mime(data) if message_id is None else await self.load(webhook.account_id, message_id)
            except (Refused, StorageUnavailable) as busy:
                raise Shortage(busy.text) from busy
            if mime is None:
                raise NotPosted(GONE)
            message = Received(post.event_id, data, mime, secret, seconds, webhook.url)
            del mime
            yield await trio.to_thread.run_sync(shaped_message, post.format, message, limiter=self._thread)
