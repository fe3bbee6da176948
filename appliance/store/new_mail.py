"""The state in memory that the store shares with delivery: new mail, and recipients in SMTP transactions.

- New mail goes to delivery in memory (`NewMail`), so that delivery need not search the store for it. Only
  `Messages.accept` publishes there, after its commit. The database stays the truth: the next poll finds
  messages that do not fit. A message is `in` it from before its commit until delivery takes it: a poll skips it.
- A cancelled recipient gets its credit back, so it must not be cancelled while a server takes the message: a cancel
  leaves recipients under delivery alone (`UnderDelivery`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from appliance.concurrency.wake import Wake
from appliance.model.mail import DueRecipient, NewMessage

# ---- recipients under delivery

CANCELLED_KEPT = 10_000  # messages; far more than are cancelled while an envelope is pending


class UnderDelivery:
    """The recipients in an SMTP transaction, and the messages that were or are being cancelled."""

    def __init__(self, kept: int = CANCELLED_KEPT) -> None:
        self._kept = kept
        self._recipients: set[str] = set()
        self._cancelling: Counter[str] = Counter()
        self._cancelled: dict[str, None] = {}

    # ---- for delivery

    def was_cancelled(self, message_id: str) -> bool:
        """Whether a message was cancelled lately, so that a copy of its state may be out of date."""
        return message_id in self._cancelled

    def is_being_cancelled(self, message_id: str) -> bool:
        """Whether that is being decided now: then no attempt at it may begin."""
        return message_id in self._cancelling

    def begin(self, recipients: Iterable[str]) -> None:
        self._recipients.update(recipients)

    def end(self, recipients: Iterable[str]) -> None:
        """The outcome for these is on disk, or there was no attempt: they can be cancelled again."""
        self._recipients.difference_update(recipients)

    def count(self) -> int:
        return len(self._recipients)

    # ---- for cancelling

    def __contains__(self, recipient: object) -> bool:
        return recipient in self._recipients

    @contextmanager
    def cancelling(self, message_id: str) -> Iterator[None]:
        """No attempt at a message begins meanwhile, and afterwards none without a check."""
        self._cancelled[message_id] = None
        if len(self._cancelled) > self._kept:
            del self._cancelled[next(iter(self._cancelled))]
        self._cancelling[message_id] += 1
        try:
            yield
        finally:
            self._cancelling[message_id] -= 1
            if not self._cancelling[message_id]:
                del self._cancelling[message_id]


# ---- new mail

NEW_MAIL_MESSAGES = 500  # that wait here at once
NEW_MAIL_BYTES = 8 * 1024 * 1024  # of them


class Acceptance(NamedTuple):
    """An accepted message: the credits charged per recipient, and whether some recipients bounced at once."""

    charged: int
    has_suppressed: bool = False


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
        self._coming: set[str] = set()  # messages that will be, or have been, offered and are not taken yet

    def __contains__(self, message_id: object) -> bool:
        """Whether a message comes this way: a poll of the store is to leave it alone."""
        return message_id in self._coming

    def expect(self, message_id: str) -> None:
        """A message is being committed: it will be offered, or given up."""
        self._coming.add(message_id)

    def give_up(self, message_id: str) -> None:
        self._coming.discard(message_id)

    def offer(self, message: NewMessage, acceptance: Acceptance) -> None:
        """Hand over a message that is on disk; a poll finds the others of one with suppressed recipients."""
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
    message_id, account_id, envelope_from = message.id, message.account_id, message.envelope_from
    rest = (0, None, None, envelope_from, message.subject, len(message.recipients), charged, message.sender)
    return [
        DueRecipient(recipient.id, message_id, account_id, recipient.address, recipient.domain, *rest)
        for recipient in message.recipients
    ]
