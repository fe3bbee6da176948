"""In charge of what this process is handing to servers at this moment: a cancel leaves it alone. PURE.

A cancelled recipient gets its credit back. If one could be cancelled while its server is taking the message, mail would
arrive that is told as failed, and for nothing; whoever cancelled all mail at once would never pay.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

RECALLED = 10_000  # messages; far more than are cancelled while a parcel is in hand unasked


class OnTheWay:
    """The recipients whose servers are being asked, and the messages that somebody has cancelled or is cancelling."""

    def __init__(self) -> None:
        self._recipients: set[str] = set()
        self._cancelling: Counter[str] = Counter()
        self._recalled: dict[str, None] = {}

    # ---- for delivery

    def was_recalled(self, message_id: str) -> bool:
        """Whether what is known of a message may be out of date, because it was cancelled lately."""
        return message_id in self._recalled

    def is_being_cancelled(self, message_id: str) -> bool:
        """Whether that is being decided just now: then nothing of it may set out."""
        return message_id in self._cancelling

    def set_out(self, recipients: Iterable[str]) -> None:
        """These are being delivered from now on."""
        self._recipients.update(recipients)

    def arrived(self, recipients: Iterable[str]) -> None:
        """What came of these is on disk."""
        self._recipients.difference_update(recipients)

    # ---- for who cancels

    def __contains__(self, recipient: object) -> bool:
        return recipient in self._recipients

    @contextmanager
    def cancelling(self, message_id: str) -> Iterator[None]:
        """Let nothing of a message set out meanwhile, and nothing unasked afterwards."""
        self._recalled[message_id] = None
        if len(self._recalled) > RECALLED:
            del self._recalled[next(iter(self._recalled))]
        self._cancelling[message_id] += 1
        try:
            yield
        finally:
            self._cancelling[message_id] -= 1
            if not self._cancelling[message_id]:
                del self._cancelling[message_id]
