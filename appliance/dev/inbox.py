"""The messages of `appliance dev`: finds them, waits for them, and deletes the oldest. Memory and time are bounded."""

from contextlib import suppress

import trio
from msgspec import Struct, field

from appliance.errors import Code, Refused
from appliance.model.dashboard import ListedMessage, MailFilter, MailPage
from appliance.model.mail import MessageStatus, NewMessage
from appliance.store import Store
from appliance.system.memory import return_freed

MESSAGES_KEPT = 10_000  # messages; then the oldest go
MESSAGE_BYTES_KEPT = 512 * 1024 * 1024
DELETED_TOGETHER = 100  # messages
TRIM_EVERY = 1.0  # seconds
CANCEL_ROUNDS = 10  # more mail may arrive meanwhile
WAITERS = 100  # requests that wait at once
PAGE = 100  # messages read together


class _Waiter(Struct, eq=False):
    """A request that waits. `recipient` is an address or a domain, `subject` a part in lower case."""

    recipient: str
    subject: str
    woken: trio.Event = field(default_factory=trio.Event)

    def may_want(self, new: NewMessage) -> bool:
        """Whether to search again: a cheap test, because every waiting request tests every message."""
        to = self.recipient.removeprefix("@")
        is_addressed = not to or any(to in (recipient.key.lower(), recipient.domain) for recipient in new.recipients)
        return is_addressed and self.subject in new.subject.casefold()


class Inbox(Struct):
    """The account's messages, and the requests that wait for one."""

    store: Store
    account_id: str
    _waiters: set[_Waiter] = field(default_factory=set)
    _has_new: bool = False
    _stopping: bool = False

    def accepted(self, new: NewMessage) -> None:
        self._has_new = True
        for waiter in self._waiters:
            if waiter.may_want(new):
                waiter.woken.set()

    def stop(self) -> None:
        """Answer all waiting requests."""
        self._stopping = True
        for waiter in self._waiters:
            waiter.woken.set()

    async def trim(self) -> None:
        """Delete the oldest messages while there are too many."""
        while True:
            await trio.sleep(TRIM_EVERY)
            has_new, self._has_new = self._has_new, False
            if has_new:
                await self._delete(MESSAGES_KEPT)
                return_freed()

    async def clear(self) -> None:
        """Delete all messages; those that are queued are cancelled first."""
        for _ in range(CANCEL_ROUNDS):
            queued = await self.find(MailFilter(status=MessageStatus.QUEUED), "", MESSAGES_KEPT)
            if not queued.messages:
                break
            for message in queued.messages:
                with suppress(Refused):  # it has its result by now
                    await self.store.queue_control.cancel(message.id, "the inbox was emptied", self.account_id)
        await self._delete(0)

    async def _delete(self, kept: int) -> None:
        while await self.store.deletion.surplus(self.account_id, kept, MESSAGE_BYTES_KEPT, DELETED_TOGETHER):
            pass

    async def find(self, filters: MailFilter, subject: str, most: int, before: str | None = None) -> MailPage:
        """The newest messages that match, with this part of their subject in any case."""
        found: list[ListedMessage] = []
        while True:
            page = await self.store.mail_log.page(self.account_id, filters, before, PAGE, off_loop=True)
            found += [message for message in page.messages if subject in message.subject.casefold()]
            before = page.next
            if before is None or len(found) >= most:
                return MailPage(tuple(found[:most]), before if len(found) <= most else found[most - 1].id)

    async def wait(self, filters: MailFilter, subject: str, most: int, seconds: float) -> MailPage:
        """The same, but wait until there is one."""
        if len(self._waiters) >= WAITERS:
            text = f"{WAITERS} requests are waiting for messages. Retry when one has ended."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=1)
        waiter, page = _Waiter(filters.recipient or "", subject), MailPage((), None)
        self._waiters.add(waiter)
        try:
            with trio.move_on_after(seconds):
                while not (page := await self.find(filters, subject, most)).messages and not self._stopping:
                    await waiter.woken.wait()
                    waiter.woken = trio.Event()
        finally:
            self._waiters.discard(waiter)
        return page
