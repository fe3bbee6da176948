"""How long the SMTP client waits for a server, and how far a session has come.

`Timeouts` are those of RFC 5321 4.5.3.2. A server that let a session run into one gets short time-outs (`SlowServers`),
for an hour at most: the later attempts of a message give every server the full time again, so a merely slow one gets
its mail in the end. The time for the answer to the final dot is never shortened.
"""

from dataclasses import dataclass, field, replace

from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.smtp.results import Stage

SHORT_TIMEOUT = 20.0  # seconds for each answer of a server that is remembered
SHORT_CONNECT_TIMEOUT = 10.0
SLOW_FOR = 3_600.0  # seconds
SLOW_SERVERS_KEPT = 10_000  # addresses
CONNECTION, HANDSHAKE = "connection", "handshake"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Each reply has its own time, from when it is waited for until it is whole (RFC 5321 4.5.3.2)."""

    greeting: float = 300
    ehlo: float = 300
    starttls: float = 300
    handshake: float = 60  # ours: a TLS handshake is two round trips, not a decision
    auth: float = 300
    reset: float = 300
    mail: float = 300
    rcpt: float = 300
    data: float = 120
    block: float = 180
    end_of_data: float = 600
    quit: float = 5  # nothing depends on the answer
    connect: float = 30  # ours: for a TCP connection
    whole: float = 3_600  # ours: opening or one transaction, against one that answers each of 50 RCPTs just in time

    def of(self, stage: Stage) -> float:
        seconds: float = getattr(self, stage)
        return seconds


@dataclass(slots=True)
class SlowServers:
    """Servers that took too long lately; `usual` are the time-outs of all others."""

    usual: Timeouts
    short: Timeouts = field(init=False)
    _slow: TtlCache[str, bool] = field(default_factory=lambda: TtlCache(SLOW_SERVERS_KEPT, SLOW_FOR))  # by address

    def __post_init__(self) -> None:
        waits = ("greeting", "ehlo", "starttls", "handshake", "auth", "reset", "mail", "rcpt", "data", "block")
        short = {wait: min(SHORT_TIMEOUT, getattr(self.usual, wait)) for wait in waits}
        self.short = replace(self.usual, **short, connect=SHORT_CONNECT_TIMEOUT)

    def __contains__(self, address: str) -> bool:
        return address in self._slow

    def timeouts(self, address: str) -> Timeouts:
        return self.short if address in self else self.usual

    def add(self, address: str) -> None:
        self._slow.put(address, True)

    def remove(self, address: str) -> None:
        self._slow.discard(address)


@dataclass(slots=True)
class Progress:
    """How far a session has come; written by the connection, read by the scheduler.

    Until the final dot is sent a session can be ended at any time: the server has no message. After it, only the
    server's answer tells whether it took the message, so ending the session would risk a duplicate.
    """

    moved_at: float  # Trio's clock: when a server last gave a whole reply, or took a block of the message
    handed_over: bool = False  # the final dot may have been sent
    host: str | None = None  # the server being tried
    address: str | None = None
    awaits: str = CONNECTION  # this, `HANDSHAKE`, or the stage whose answer is waited for
