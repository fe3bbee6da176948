"""How far the delivery of one message has come, for whoever may have to end it before its server answers.

Until the final dot is sent a delivery can be ended at any time: the server has no message. After it only the server's
answer tells whether it took the message, so ending it would risk a duplicate.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Kept by the connection, read by the scheduler."""

    moved_at: float  # Trio's clock: when a server last gave a whole reply, or took a block of the message
    handed_over: bool = False  # the final dot may have been sent
    host: str | None = None  # the server being tried
    address: str | None = None

    def begin(self, host: str, address: str, now: float) -> None:
        """Another server is tried, which is not to blame for the time the last one took."""
        self.host, self.address, self.moved_at = host, address, now
