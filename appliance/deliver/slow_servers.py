"""Remembers mail servers that let a session run into a time-out: until one behaves, it gets short time-outs.

Kept by address, for an hour at most: the later attempts of a message give every server the full time of RFC 5321 again,
so that one that is merely slow gets its mail in the end. The time for the answer to the final dot is never shortened.
"""

from dataclasses import dataclass, field, replace

from appliance.concurrency.ttl_cache import TtlCache
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
    _slow: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(KEPT, REMEMBERED))  # by address

    def __post_init__(self) -> None:
        """Cut every wait before the final dot."""
        waits = ("greeting", "ehlo", "starttls", "handshake", "auth", "reset", "mail", "rcpt", "data", "block")
        self.short = replace(self.usual, **{wait: min(SHORT, getattr(self.usual, wait)) for wait in waits})

    def __contains__(self, address: str) -> bool:
        return address in self._slow

    def timeouts(self, address: str) -> Timeouts:
        """How long to wait for answers from there."""
        return self.short if address in self else self.usual

    def connect_timeout(self, address: str) -> float:
        """How long to wait for a connection."""
        return SHORT_CONNECT if address in self else CONNECT

    def add(self, address: str) -> None:
        """It took too long."""
        self._slow.put(address, True)

    def remove(self, address: str) -> None:
        """It has answered in time."""
        self._slow.discard(address)
