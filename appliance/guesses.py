"""In charge of making guesses slow: failures are counted by address and by account, and answered later and later.

Nobody is ever locked out. Our own keys and passwords have 256 bits, so a right one always works at once; only logins
with a password people chose can be told to wait, and from an address that has logged in to that account before only
for as long as that address guesses itself, a minute at most. Failures from loopback are not counted by address
otherwise: every application on the machine, and a proxy nobody declared, would share that count. An IPv6 address counts
as its /64: whoever has one address there has them all (RFC 6177, RFC 8981).
"""

import ipaddress
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from appliance.errors import Code, Refused
from appliance.networks import client_network
from appliance.outside import Outside

Value = TypeVar("Value")

FAILURE_DELAY = 1.0  # seconds before any "no"

SECOND = 1_000_000  # microseconds
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
PER_ADDRESS = ((10, MINUTE), (50, DAY))
PER_ACCOUNT = 10  # failures in ACCOUNT_WINDOW before the account's logins have to wait
ACCOUNT_WINDOW = 15 * MINUTE
FIRST_WAIT = MINUTE  # doubles with each further failure
LONGEST_WAIT = 60 * MINUTE
CLOCK_SLACK = MINUTE  # by which a clock may be set back without anything being forgotten
REMEMBERED = 10_000  # addresses and accounts, each; the longest quiet go first


@dataclass(slots=True)
class _Account:
    failures: deque[int] = field(default_factory=deque)
    wait: int = 0
    wait_until: int = 0
    # Addresses its owner has logged in from, with what failed from there lately: behind a proxy nobody declared
    # whoever guesses has the owner's address.
    known: dict[str, deque[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Guesses:
    """The recent failures, in memory: forgetting them at a restart costs an attacker a restart of ours."""

    outside: Outside
    _addresses: dict[str, deque[int]] = field(default_factory=dict)
    _accounts: dict[str, _Account] = field(default_factory=dict)

    def check_address(self, address: str) -> None:
        """Refuse an address that has failed too often lately."""
        failures = self._addresses.get(client_network(address)) if self._addresses else None
        if failures is None:
            return
        now = self.outside.now()
        for most, window in PER_ADDRESS:
            recent = _recent(failures, now, window)
            if len(recent) >= most:
                raise _wait(recent[-most] + window - now)

    def check_account(self, account: str, address: str) -> None:
        """Refuse a login that has to wait; where its owner is known to come from, only guesses from there count."""
        record, now = self._accounts.get(account), self.outside.now()
        if record is None:
            return
        own = record.known.get(client_network(address))
        if own is None:
            until, longest = record.wait_until, LONGEST_WAIT
        else:
            most, longest = PER_ADDRESS[0]
            until = _until(own, most, longest)
        if now < until <= now + longest:  # a longer wait is none: the clock was set back
            raise _wait(until - now)

    def failed(self, address: str, account: str | None = None) -> None:
        """Count a failure."""
        now, origin = self.outside.now(), client_network(address)
        if not ipaddress.ip_network(origin).is_loopback:
            failures = _newest(self._addresses, origin, deque(maxlen=50))
            failures.append(now)
        if account is not None:
            record = _newest(self._accounts, account, _Account())
            if (own := record.known.get(origin)) is not None:
                own.append(now)
            self._account_failed(record, now)

    def succeeded(self, address: str, account: str) -> None:
        """The owner has come in from here: forget the account's failures, and let this address in at once later."""
        record = _newest(self._accounts, account, _Account())
        record.failures.clear()
        record.wait = record.wait_until = 0
        if len(record.known) < 100:
            record.known.setdefault(client_network(address), deque(maxlen=PER_ADDRESS[0][0]))

    @staticmethod
    def _account_failed(record: _Account, now: int) -> None:
        record.failures.append(now)
        record.failures = _recent(record.failures, now, ACCOUNT_WINDOW)
        if not now - ACCOUNT_WINDOW <= record.wait_until <= now + LONGEST_WAIT:
            record.wait = 0  # it has been quiet for a while, or the clock was set back
        if len(record.failures) >= PER_ACCOUNT or record.wait:
            record.wait = min(2 * record.wait or FIRST_WAIT, LONGEST_WAIT)
            record.wait_until = now + record.wait


def _recent(failures: deque[int], now: int, window: int) -> deque[int]:
    """Those within the window; what lies in the future does so by a clock that was set back, and does not count."""
    return deque(at for at in failures if now - window < at <= now + CLOCK_SLACK)


def _until(failures: deque[int], most: int, window: int) -> int:
    """When there is room for one more failure, if the last `most` are known."""
    return failures[0] + window if len(failures) == most else 0


def _newest(kept: dict[str, Value], name: str, fresh: Value) -> Value:
    """The entry of that name, moved to the end, the oldest dropped when there are too many."""
    value = kept.pop(name, fresh)
    kept[name] = value
    if len(kept) > REMEMBERED:
        del kept[next(iter(kept))]
    return value


def _wait(microseconds: int) -> Refused:
    seconds = max(1, math.ceil(microseconds / SECOND))
    return Refused(
        Code.RATE_LIMITED, f"Too many failed attempts. Wait {seconds} seconds, then try again.", retry_after=seconds
    )
