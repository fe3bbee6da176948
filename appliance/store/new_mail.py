"""Hands new mail to delivery in memory, after its commit. The database stays the truth: a poll finds all other mail."""

from collections import deque
from typing import NamedTuple

import trio

from appliance.concurrency.wake import Wake
from appliance.model.mail import DueRecipient, NewMessage

NEW_MAIL_MESSAGES = 500  # waiting at once
NEW_MAIL_BYTES = 8 * 1024 * 1024  # of them
NEW_MAIL_RECENT = 5.0  # seconds after a message in which the next one is likely
LOAD_MESSAGES = 100  # in a second: a load, not single messages


class Acceptance(NamedTuple):
    charged: int  # credits per recipient
    has_suppressed: bool = False  # these recipients bounced at once


class Fresh(NamedTuple):
    message: NewMessage
    charged: int


class NewMail:
    """New mail for one reader, which may also be asked to poll the store."""

    def __init__(self) -> None:
        self._wakeup = Wake()
        self._fresh: list[Fresh] = []
        self._bytes = 0
        self._poll_requested = False
        self._coming: set[str] = set()  # messages announced or offered, and not taken yet
        self._came = deque[float](maxlen=LOAD_MESSAGES)  # by Trio's clock; the last ones with high priority

    def __contains__(self, message_id: object) -> bool:
        """Whether a message is handed over in memory, so that a poll must skip it."""
        return message_id in self._coming

    def is_sparse(self) -> bool:
        """Whether messages with high priority arrive singly: then backlogs yield to them."""
        now = trio.current_time()
        is_load = len(self._came) == LOAD_MESSAGES and self._came[0] > now - 1.0
        return bool(self._came) and self._came[-1] > now - NEW_MAIL_RECENT and not is_load

    def expect(self, message_id: str, low: int = 0) -> None:
        """Announce a message that is being committed: `offer` or `give_up` follows."""
        self._coming.add(message_id)
        if not low:
            self._came.append(trio.current_time())

    def give_up(self, message_id: str) -> None:
        self._coming.discard(message_id)

    def offer(self, message: NewMessage, acceptance: Acceptance) -> None:
        """Hand over a stored message; if some recipients are suppressed, a poll finds the others."""
        size = len(message.mime)
        if acceptance.has_suppressed or len(self._fresh) >= NEW_MAIL_MESSAGES or self._bytes + size > NEW_MAIL_BYTES:
            self._poll_requested = True
            self._coming.discard(message.id)
        else:
            self._fresh.append(Fresh(message, acceptance.charged))
            self._bytes += size
        self._wakeup.set()

    def request_poll(self) -> None:
        self._poll_requested = True
        self._wakeup.set()

    def take(self) -> list[Fresh]:
        fresh, self._fresh, self._bytes = self._fresh, [], 0
        self._coming.difference_update([item.message.id for item in fresh])
        return fresh

    def poll_requested(self) -> bool:
        requested, self._poll_requested = self._poll_requested, False
        return requested

    def wake(self) -> None:
        self._wakeup.set()

    async def wait(self, seconds: float) -> None:
        await self._wakeup.wait(seconds)


def due_recipients(fresh: Fresh) -> list[DueRecipient]:
    message, charged = fresh
    rest = 0, None, None, message.envelope_from, message.subject, len(message.recipients), charged, message.sender
    more = len((message.metadata or "").encode()), None, message.low
    return [
        DueRecipient(
            recipient.id,
            message.id,
            message.account_id,
            recipient.address,
            recipient.domain,
            *rest,
            *more,
            recipient.bucket,
            stream=message.stream,
        )
        for recipient in message.recipients
    ]
