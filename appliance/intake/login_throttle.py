"""Throttles password guessing: `POST /v1/auth/login`, password changes, and wrong credentials of every kind.

Invariant: a login counts as failed on arrival, before its password is hashed. A right password removes the count. So
however many logins arrive at once, no more passwords are checked than these rules allow.

A network is an IPv4 address or an IPv6 /64 (RFC 6177, RFC 8981); a site is an IPv4 /24 or an IPv6 /48. An account knows
a network if one of its stored sessions was used from it, or a login from it succeeded since the start of the process.

| failures counted by                 | limit                            | beyond the limit                            |
|-------------------------------------|----------------------------------|---------------------------------------------|
| account and network, known          | 10 a minute                      | 429 for the pair, at most a minute          |
| account and network, unknown        | 10 in 15 minutes                 | 429 for the pair: 1 min, doubling to 1 h    |
| network, all accounts (no loopback) | 10 a minute, 50 a day            | 429 for accounts that do not know it        |
| account, at most 3 per network      | 10 in 15 minutes (so 4 networks) | unknown networks log in one at a time,      |
|                                     |                                  | 1 s apart, doubling to 30 s                 |

Two-factor and recovery codes are compared only after a right password, and count by user as well:

| codes counted by                    | limit                            | beyond the limit                            |
|-------------------------------------|----------------------------------|---------------------------------------------|
| user, all unknown networks          | 10 an hour, 30 a day             | 429 for codes from unknown networks         |
| user and network, known             | 10 an hour, 30 a day             | 429 for codes from that network             |

Three of a million codes are valid at a time, so an attacker with any number of addresses guesses one with a chance of
1 in 10,000 a day. A right code removes only its own count.

One address therefore never locks out an owner at another address, and no number of addresses locks out an owner on a
known network. In the last row of the first table, a request waits up to 10 seconds for its turn. If the turn is later,
it gets 429 with the time of the turn, which is reserved for its site for 5 minutes. A site has one turn at a time.

While a network is over its limit, a wrong password from it gets the same 429, after the same time, for accounts that
know the network. Otherwise an attacker could find out which accounts log in from there. It counts for its account, and
does not extend the network's wait. A right password is accepted.

SMTP passwords, API keys, tokens and session cookies have 256 random bits. A right one always works, and a wrong one
counts for its network only; check and count are one step of the event loop. Failures from loopback do not count by
network: all applications on the machine, and an undeclared proxy, would share that count.
"""

import ipaddress
import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.database import FailureKind, LoginFailure
from appliance.net.address_policy import client_network, site_of
from appliance.telemetry.log import get_logger
from appliance.times import DAY, HOUR, MINUTE, SECOND

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
CodeKey = tuple[str, str | None]  # account, and the network if the account knows it

FAILURE_DELAY = 1.0  # seconds before a refusal

PER_NETWORK = ((10, MINUTE), (50, DAY))
PER_KNOWN_NETWORK = (10, MINUTE)
PER_ACCOUNT = 10  # failures in ACCOUNT_WINDOW, from one network or from all
ACCOUNT_WINDOW = 15 * MINUTE
FIRST_WAIT = MINUTE  # doubles with each further failure
LONGEST_WAIT = 60 * MINUTE
PER_USER_CODES = ((10, HOUR), (30, DAY))
SHARE = 3  # failures from one network that count for the whole account
LONGEST_SPACING = 30 * SECOND  # between two turns of an account under distributed guessing
HELD = 10 * SECOND  # longest wait for a turn within the request
TURN_KEPT = 5 * MINUTE  # time that a turn stays reserved
TURNS = 100  # reserved turns of one account
CLOCK_SLACK = MINUTE  # a clock set back by less changes nothing
THROTTLES_REMEMBERED = 10_000  # networks, pairs and accounts each; the least recent are dropped
CERTAIN_AFTER = SECOND  # a login that arrived less than a second ago may still succeed
REMEMBERED_OF_ACCOUNT = 100  # networks of one account
QUIET = 15 * MINUTE  # time without refused logins after which the log reports their end

log = get_logger("login")


class _Refusals(Struct):
    since: int
    last: int
    count: int = 0


@dataclass(slots=True)
class RefusedLogins:
    """Logs refused logins by network: one line at the first, and one with the count when they have ended."""

    env: Environment
    remembered: int
    _networks: dict[str, _Refusals] = field(default_factory=dict)

    def note(self, address: str) -> None:
        now, network = self.env.now(), client_network(address)
        if network not in self._networks:
            log.info("logins are refused", client=address)
            if len(self._networks) >= self.remembered:
                self._log_end(next(iter(self._networks)))
        refusals = _newest(self._networks, network, self._networks.get(network, _Refusals(now, now)), self.remembered)
        refusals.last, refusals.count = now, refusals.count + 1

    def log_ended(self) -> None:
        """Log networks without a refused login for QUIET. The caller repeats this now and then."""
        now = self.env.now()
        quiet = [network for network, refusals in self._networks.items() if not 0 <= now - refusals.last < QUIET]
        for network in quiet:
            self._log_end(network)

    def _log_end(self, network: str) -> None:
        ended = self._networks.pop(network)
        seconds = max(0, ended.last - ended.since) // SECOND
        log.info("no more logins are refused", network=network, refused=ended.count, seconds=seconds)


@dataclass(slots=True)
class _Pair:
    failures: deque[int] = field(default_factory=lambda: deque(maxlen=PER_ACCOUNT))
    wait: int = 0
    wait_until: int = 0

    def until(self, now: int, *, known: bool) -> int:
        if known:
            return _until_room(self.failures, now, *PER_KNOWN_NETWORK)
        return self.wait_until if self.wait_until <= now + LONGEST_WAIT else 0  # later: the clock was set back

    def count(self, now: int) -> None:
        self.failures.append(now)
        if not now - ACCOUNT_WINDOW <= self.wait_until <= now + LONGEST_WAIT:
            self.wait = 0  # no failures for a while, or the clock was set back
        if self.wait or len(_recent(self.failures, now, ACCOUNT_WINDOW)) >= PER_ACCOUNT:
            self.wait = min(2 * self.wait or FIRST_WAIT, LONGEST_WAIT)
            self.wait_until = now + self.wait


@dataclass(slots=True)
class _Account:
    known: dict[str, None] = field(default_factory=dict)
    failures: dict[str, deque[int]] = field(default_factory=dict)  # the last few of each network
    turns: dict[str, int] = field(default_factory=dict)  # by site
    last_turn: int = 0

    def spacing(self, now: int) -> int:
        """Time between logins from unknown networks; 0 unless several networks guess."""
        over = sum(len(_recent(times, now, ACCOUNT_WINDOW)) for times in self.failures.values()) - PER_ACCOUNT
        return 0 if over < 0 else min(SECOND << min(over, 10), LONGEST_SPACING)

    def turn(self, site: str, now: int) -> int:
        spacing = self.spacing(now)
        if not spacing:
            return 0
        ahead = TURNS * LONGEST_SPACING
        self.turns = {other: at for other, at in self.turns.items() if now - TURN_KEPT <= at <= now + ahead}
        if site not in self.turns:
            if self.last_turn > now + ahead:
                self.last_turn = 0  # the clock was set back
            if len(self.turns) >= TURNS:
                return now + ahead
            self.turns[site] = self.last_turn = max(now, self.last_turn + spacing)
        return self.turns[site]


class LoginAttempt(Struct):
    """A login that may be checked after `wait` seconds. It counts as failed unless it succeeds or is withdrawn."""

    wait: float
    _throttle: "LoginThrottle"
    _account: str
    _address: str
    _at: int
    _refusal: Refused | None  # for a wrong password while the network is over its limit

    @property
    def _network(self) -> str:
        return client_network(self._address)

    def failed(self) -> Refused | None:
        """The password or the code was wrong. Return the refusal to send, or None for the usual one."""
        self._throttle.refusals.note(self._address)
        return self._refusal

    def succeeded(self) -> None:
        """The password was right: forget the failure, and remember the network as known."""
        self.withdrawn()
        throttle = self._throttle
        throttle.pairs.pop((self._account, self._network), None)  # the owner only mistyped
        record = throttle._account(self._account)
        record.failures.pop(self._network, None)
        _newest(record.known, self._network, None, REMEMBERED_OF_ACCOUNT)

    def withdrawn(self) -> None:
        failure = LoginFailure(FailureKind.LOGIN, self._account, self._network, self._at)
        self._throttle.unshared.pop(failure, None)
        record = self._throttle.accounts.get(self._account)
        pair = self._throttle.pairs.get((self._account, self._network))
        shared = record.failures.get(self._network) if record is not None else None
        by_network = self._throttle.networks.get(self._network) if self._refusal is None else None
        for failures in (by_network, pair.failures if pair is not None else None, shared):
            if failures is not None and self._at in failures:
                failures.remove(self._at)


class CodeGuess(Struct):
    """A code that may be compared. It counts as wrong unless `was_right` is called."""

    _throttle: "LoginThrottle"
    _failure: LoginFailure

    def was_right(self) -> None:
        self._throttle.unshared.pop(self._failure, None)
        failures, at = self._throttle.codes.get(_code_key(self._failure)), self._failure.at
        if failures is not None and at in failures:
            failures.remove(at)


@dataclass(slots=True)
class LoginThrottle:
    """Recent failures, in memory. A restart forgets them, which an attacker cannot cause."""

    env: Environment
    remembered: int = THROTTLES_REMEMBERED
    networks: dict[str, deque[int]] = field(default_factory=dict)
    pairs: dict[tuple[str, str], _Pair] = field(default_factory=dict)
    accounts: dict[str, _Account] = field(default_factory=dict)
    codes: dict[CodeKey, deque[int]] = field(default_factory=dict)
    unshared: dict[LoginFailure, None] = field(default_factory=dict)  # failures that other nodes do not know yet
    refusals: RefusedLogins = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = RefusedLogins(self.env, self.remembered)

    def attempt(self, account: str, address: str, known: Iterable[str] = ()) -> LoginAttempt:
        """Count a login or refuse it, without any await. `known`: addresses of the account's stored sessions."""
        now, network = self.env.now(), client_network(address)
        is_known, pair = self._is_known(account, network, known), self.pairs.get((account, network), _Pair())
        until, network_until = pair.until(now, known=is_known), self._network_until(network, now)
        if not is_known:
            until = max(until, network_until)
        if until > now:
            self.refusals.note(address)
            raise _wait(until - now)
        record = self._account(account)
        turn = now if is_known else max(now, record.turn(site_of(address), now))
        if turn > now + HELD:
            self.refusals.note(address)
            raise _wait(turn - now)
        record.turns.pop(site_of(address), None)
        refusal = _wait(network_until - now) if network_until > now else None
        if refusal is None:
            self._count_network(network, now)
        self._count_login(account, network, now)
        self._share(LoginFailure(FailureKind.LOGIN, account, network, now))
        return LoginAttempt((turn - now) / SECOND, self, account, address, now, refusal)

    def code(self, account: str, address: str, known: Iterable[str] = ()) -> CodeGuess:
        """Count a two-factor code or refuse it, without any await. `known` as in `attempt`."""
        now, network = self.env.now(), client_network(address)
        is_known = self._is_known(account, network, known)
        failure = LoginFailure(FailureKind.KNOWN_CODE if is_known else FailureKind.CODE, account, network, now)
        counted = self.codes.get(_code_key(failure), ())
        until = max(_until_room(counted, now, *limit) for limit in PER_USER_CODES)
        if until > now:
            raise _wait(until - now, "Too many wrong two-factor codes.")
        self._count_code(failure)
        self._share(failure)
        return CodeGuess(self, failure)

    def take_unshared(self) -> list[LoginFailure]:
        certain = [failure for failure in self.unshared if failure.at < self.env.now() - CERTAIN_AFTER]
        for failure in certain:
            del self.unshared[failure]
        return certain

    def count_from_node(self, failure: LoginFailure) -> None:
        kind, account, network, at = failure
        if kind in (FailureKind.CODE, FailureKind.KNOWN_CODE):
            self._count_code(failure)
            return
        self._count_network(network, at)
        if kind is FailureKind.LOGIN:
            self._count_login(account, network, at)

    def wrong_secret(self, address: str) -> int | None:
        """Count a wrong API key, token or cookie. Return the seconds to wait if the network has failed too often."""
        now, network = self.env.now(), client_network(address)
        self.refusals.note(address)
        until = self._network_until(network, now)
        if until > now:
            return _seconds(until - now)
        self._count_network(network, now)
        self._share(LoginFailure(FailureKind.CREDENTIAL, "", network, now))
        return None

    def _share(self, failure: LoginFailure) -> None:
        _newest(self.unshared, failure, None, self.remembered)

    def _is_known(self, account: str, network: str, known: Iterable[str]) -> bool:
        record = self.accounts.get(account)
        seen = record is not None and network in record.known
        return seen or any(client_network(address) == network for address in known)

    def _account(self, account: str) -> _Account:
        return _newest(self.accounts, account, self.accounts.get(account, _Account()), self.remembered)

    def _count_login(self, account: str, network: str, at: int) -> None:
        record, pair = self._account(account), self.pairs.get((account, network), _Pair())
        _newest(self.pairs, (account, network), pair, self.remembered).count(at)
        failures = record.failures.get(network, deque(maxlen=SHARE))
        _newest(record.failures, network, failures, REMEMBERED_OF_ACCOUNT).append(at)

    def _count_code(self, failure: LoginFailure) -> None:
        most, _ = max(PER_USER_CODES)
        failures = self.codes.get(_code_key(failure), deque(maxlen=most))
        _newest(self.codes, _code_key(failure), failures, self.remembered).append(failure.at)

    def _network_until(self, network: str, now: int) -> int:
        failures = self.networks.get(network)
        return 0 if failures is None else max(_until_room(failures, now, *limit) for limit in PER_NETWORK)

    def _count_network(self, network: str, now: int) -> None:
        if not ipaddress.ip_network(network).is_loopback:
            most, _ = max(PER_NETWORK)
            failures = self.networks.get(network, deque(maxlen=most))
            _newest(self.networks, network, failures, self.remembered).append(now)


def _code_key(failure: LoginFailure) -> CodeKey:
    return failure.account, failure.network if failure.kind is FailureKind.KNOWN_CODE else None


def _recent(failures: Iterable[int], now: int, window: int) -> list[int]:
    """Failures within the window. A time in the future means that the clock was set back; it does not count."""
    return [at for at in failures if now - window < at <= now + CLOCK_SLACK]


def _until_room(failures: Iterable[int], now: int, most: int, window: int) -> int:
    recent = _recent(failures, now, window)
    return recent[-most] + window if len(recent) >= most else 0


def _newest(kept: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Move the value to the end, and drop the oldest beyond `most`."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
    return value


def _seconds(microseconds: int) -> int:
    return max(1, math.ceil(microseconds / SECOND))


def _wait(microseconds: int, why: str = "Too many failed logins.") -> Refused:
    seconds = _seconds(microseconds)
    return Refused(Code.RATE_LIMITED, f"{why} Retry in {seconds} seconds.", retry_after=seconds)
