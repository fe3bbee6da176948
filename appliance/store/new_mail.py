"""In charge of the hand-over from the front door to delivery: new mail goes in memory, not by a search of the store.

The store stays the truth. What is offered here is on disk already, and whatever finds no room is found there by the
next look; so nothing depends on this but time.
"""

from typing import NamedTuple

from appliance.concurrency.wake import Wake
from appliance.model.mail import DueRecipient, NewMessage

MESSAGES = 500  # that wait here at once
BYTES = 8 * 1024 * 1024  # of them


class Fresh(NamedTuple):
    """A message that has just been accepted, with what each of its recipients was charged."""

    message: NewMessage
    charged: int


class Inbox:
    """New mail for delivery, and a bell: somebody may also just ring it, so that the store is looked at."""

    def __init__(self) -> None:
        self._wake = Wake()
        self._fresh: list[Fresh] = []
        self._bytes = 0
        self._rung = False
        self._coming: set[str] = set()  # messages that will be, or have been, offered and are not taken yet

    def __contains__(self, message_id: object) -> bool:
        """Whether a message comes this way, so that whoever meets it in the store leaves it alone."""
        return message_id in self._coming

    def expect(self, message_id: str) -> None:
        """A message is being put on disk: it will be offered, or given up."""
        self._coming.add(message_id)

    def give_up(self, message_id: str) -> None:
        """It will not be offered after all."""
        self._coming.discard(message_id)

    def offer(self, message: NewMessage, charged: int | None) -> None:
        """Hand over a message that is on disk; `charged` is None when not all of its recipients are to be tried."""
        size = len(message.mime)
        if charged is None or len(self._fresh) >= MESSAGES or self._bytes + size > BYTES:
            self._rung = True
            self._coming.discard(message.id)
        else:
            self._fresh.append(Fresh(message, charged))
            self._bytes += size
        self._wake.set()

    def ring(self) -> None:
        """There may be something in the store."""
        self._rung = True
        self._wake.set()

    def take(self) -> list[Fresh]:
        """What has been offered since the last time."""
        fresh, self._fresh, self._bytes = self._fresh, [], 0
        self._coming.difference_update([each.message.id for each in fresh])
        return fresh

    def was_rung(self) -> bool:
        """Whether somebody rang since the last time."""
        rung, self._rung = self._rung, False
        return rung

    def stir(self) -> None:
        """Let the waiter go on, without a look at the store."""
        self._wake.set()

    async def wait(self, seconds: float) -> None:
        """Return after `seconds`, or as soon as there is something to do."""
        await self._wake.wait(seconds)


def due_recipients(fresh: Fresh) -> list[DueRecipient]:
    """The recipients of a new message, as the store would give them out."""
    message = fresh.message
    count = len(message.recipients)
    return [
        DueRecipient(
            recipient.id,
            message.id,
            message.account_id,
            recipient.address,
            recipient.domain,
            0,
            None,
            None,
            message.envelope_from,
            message.subject,
            count,
            fresh.charged,
            message.sender,
        )
        for recipient in message.recipients
    ]
