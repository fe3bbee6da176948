"""Remembers mail servers that let a session run into a time-out: until one behaves, it gets short time-outs.

Kept by address, for an hour at most: the later attempts of a message give every server the full time of RFC 5321 again,
so that one that is merely slow gets its mail in the end. The time for the answer to the final dot is never shortened.
"""

from dataclasses import dataclass, field, replace

import trio

from appliance.deliver.smtp.timeouts import Timeouts

CONNECT = 30.0  # seconds for a TCP connection
SHORT = 20.0  # seconds for each answer of a server that is remembered
SHORT_CONNECT = 10.0
REMEMBERED = 3_600.0  # seconds
KEPT = 10_000  # addresses


@dataclass(slots=True)
class SlowServers:
    """Those that took too long lately; `usual` are the time-outs of all others."""

    usual: Timeouts
    short: Timeouts = field(init=False)
    _until: dict[str, float] = field(default_factory=dict)  # by address; Trio's clock; the oldest first

    def __post_init__(self) -> None:
        """Cut every wait before the final dot."""
        waits = ("greeting", "ehlo", "starttls", "handshake", "auth", "reset", "mail", "rcpt", "data", "block")
        self.short = replace(self.usual, **{wait: min(SHORT, getattr(self.usual, wait)) for wait in waits})

    def __contains__(self, address: str) -> bool:
        until = self._until.get(address)
        return until is not None and trio.current_time() < until

    def timeouts(self, address: str) -> Timeouts:
        """How long to wait for answers from there."""
        return self.short if address in self else self.usual

    def connect_timeout(self, address: str) -> float:
        """How long to wait for a connection."""
        return SHORT_CONNECT if address in self else CONNECT

    def add(self, address: str) -> None:
        """It took too long."""
        self._until.pop(address, None)
        self._until[address] = trio.current_time() + REMEMBERED
        if len(self._until) > KEPT:
            del self._until[next(iter(self._until))]

    def remove(self, address: str) -> None:
        """It has answered in time."""
        if self._until:
            self._until.pop(address, None)
