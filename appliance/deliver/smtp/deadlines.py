"""How long the SMTP client waits for a server, and the enforcement of it.

`Timeouts` are those of RFC 5321 4.5.3.2. A server that let a session run into one gets short time-outs (`SlowServers`),
for an hour at most: the later attempts of a message give every server the full time again, so a merely slow one gets
its mail in the end. The time for the answer to the final dot is never shortened.

`DeadlineWatch` enforces the deadline of every running transaction, once a second: a timer per transaction, set, moved
and removed, would cost a tenth of what the transaction does, and a server may as well have 301 seconds as 300.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.smtp.results import Stage

CONNECT_TIMEOUT = 30.0  # seconds for a TCP connection
SHORT_TIMEOUT = 20.0  # seconds for each answer of a server that is remembered
SHORT_CONNECT_TIMEOUT = 10.0
SLOW_FOR = 3_600.0  # seconds
SLOW_SERVERS_KEPT = 10_000  # addresses
WATCH_EVERY = 1.0  # seconds
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
    whole: float = (
        3_600  # ours: opening or one transaction, against a server that answers each of 50 RCPTs just in time
    )

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
        self.short = replace(self.usual, **{wait: min(SHORT_TIMEOUT, getattr(self.usual, wait)) for wait in waits})

    def __contains__(self, address: str) -> bool:
        return address in self._slow

    def timeouts(self, address: str) -> Timeouts:
        return self.short if address in self else self.usual

    def connect_timeout(self, address: str) -> float:
        return SHORT_CONNECT_TIMEOUT if address in self else CONNECT_TIMEOUT

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

    def begin(self, host: str, address: str, now: float) -> None:
        """Another server is tried, which is not responsible for the time the last one took."""
        self.host, self.address, self.moved_at = host, address, now
        self.awaits = CONNECTION


class Watched(Protocol):
    """A transaction that waits for a server."""

    deadline: float  # Trio's clock

    async def cut_off(self) -> None:
        """End it."""
        ...


class DeadlineWatch:
    """The transactions that wait at the moment; `run` ends those whose deadline is over."""

    def __init__(self) -> None:
        self._waiting: set[Watched] = set()
        self._none_waits = trio.lowlevel.ParkingLot()

    def begin(self, watched: Watched) -> None:
        self._waiting.add(watched)
        self._none_waits.unpark_all()

    def end(self, watched: Watched) -> None:
        self._waiting.discard(watched)

    async def run(self) -> None:
        """Cut off what is late, until cancelled."""
        while True:
            if not self._waiting:
                await self._none_waits.park()
            await trio.sleep(WATCH_EVERY)
            now = trio.current_time()
            for late in [each for each in self._waiting if now >= each.deadline]:
                if late in self._waiting:  # it may have had its answer while another was cut off
                    await late.cut_off()
