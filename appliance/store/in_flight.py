"""Keeps cancelling and delivering the same recipient apart, in memory. No I/O.

A cancelled recipient gets its credit back. Cancelled while its server is taking the message, it would be shown as
failed, and free of charge, though it was delivered: so a cancel leaves recipients under delivery alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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
        """Whether a message was cancelled lately, so that what is known of it may be out of date."""
        return message_id in self._cancelled

    def is_being_cancelled(self, message_id: str) -> bool:
        """Whether that is being decided now: then no attempt at it may begin."""
        return message_id in self._cancelling

    def begin(self, recipients: Iterable[str]) -> None:
        """These recipients cannot be cancelled from now on."""
        self._recipients.update(recipients)

    def end(self, recipients: Iterable[str]) -> None:
        """The outcome for these is on disk, or there was no attempt: they can be cancelled again."""
        self._recipients.difference_update(recipients)

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
