"""Throttles password guessing. For `POST /v1/auth/login`, a password change, and every wrong credential of any kind.

Invariant: a login counts as failed when it arrives, before its password is hashed, and the count is given back when the
password was right. However many logins arrive at once, no more are checked than the rules below allow.

A network is an IPv4 address or an IPv6 /64 (RFC 6177, RFC 8981); a site is an IPv4 /24 or an IPv6 /48. A network is
known to an account when one of the account's stored sessions was used from it, or a login from it has succeeded since
the start.

| failures counted by                 | limit                            | over it                                     |
|-------------------------------------|----------------------------------|---------------------------------------------|
| account and network, network known  | 10 a minute                      | 429 for that pair, a minute at most         |
| account and network, not known      | 10 in 15 minutes                 | 429 for that pair: 1 min, doubling to 1 h   |
| network, all accounts (no loopback) | 10 a minute, 50 a day            | 429 for that network where it is not known  |
| account, at most 3 of each network  | 10 in 15 minutes (so 4 networks) | networks not known log in one after the     |
|                                     |                                  | other, 1 s apart, doubling to 30 s          |

A code of a second factor, or a recovery code, is compared only after the right password, and counts by its user, too:

| codes counted by                    | limit                            | over it                                     |
|-------------------------------------|----------------------------------|---------------------------------------------|
| user, all networks not known        | 10 an hour, 30 a day             | 429 for codes from networks not known       |
| user and network, network known     | 10 an hour, 30 a day             | 429 for codes from that network             |

A code of six digits, of which three are good at a time, is so guessed with a chance of 1 in 10,000 a day, whatever
number of addresses guesses. Only a right code gives its own count back.

So one address never keeps an owner out who comes from another one, and no number of addresses keeps out an owner who
comes from a known network. In the last row a login waits for its turn up to 10 seconds; when its turn is later it gets
429 with the time of its turn, which is then kept for its site for 5 minutes. A site has one turn at a time.

While a network is over its limit, a wrong password from it is answered by the same 429, after the same time, where the
network is known: otherwise the addresses that log in from there could be told from all others. It counts for its
account, and does not make the network wait longer. A right one is let in.

Secrets of our own (SMTP passwords, API keys, tokens, session cookies) have 256 random bits: a right one works at once,
whatever was counted, and a wrong one counts for its network only. They are checked and counted in one step of the event
loop, so nothing can come between the two. Failures from loopback are not counted by network alone: every application on
the machine, and an undeclared proxy, would share that count.
"""

import ipaddress
import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.net.address_policy import client_network, site_of
from appliance.telemetry.log import get_logger
from appliance.times import DAY, HOUR, MINUTE, SECOND

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

FAILURE_DELAY = 1.0  # seconds before any "no"

PER_NETWORK = ((10, MINUTE), (50, DAY))
PER_KNOWN_NETWORK = (10, MINUTE)
PER_ACCOUNT = 10  # failures in ACCOUNT_WINDOW, by one network or by all
ACCOUNT_WINDOW = 15 * MINUTE
FIRST_WAIT = MINUTE  # doubles with each further failure
LONGEST_WAIT = 60 * MINUTE
PER_USER_CODES = ((10, HOUR), (30, DAY))
# Begin the account in what nodes tell each other of wrong codes. No address begins with a space: logins strip theirs.
CODE, CODE_FROM_KNOWN = " code ", " code from known "
SHARE = 3  # failures of one network that count for the whole account
LONGEST_SPACING = 30 * SECOND  # between two turns of an account under distributed guessing
HELD = 10 * SECOND  # a turn this soon is waited for within the request
TURN_KEPT = 5 * MINUTE  # for which a turn may be taken up late
TURNS = 100  # given ahead, for one account
CLOCK_SLACK = MINUTE  # by which a clock may be set back without anything being forgotten
THROTTLES_REMEMBERED = 10_000  # networks, pairs and accounts, each; the longest quiet go first
CERTAIN_AFTER = SECOND  # of a failed login; until then the password may still turn out to be right
REMEMBERED_OF_ACCOUNT = 100  # networks of one account
QUIET = 15 * MINUTE  # without a refused login of a network, after which they have ended for the log

log = get_logger("login")


@dataclass(slots=True)
class _Refusals:
    """The refused logins of one network, since they began."""

    since: int
    last: int
    count: int = 0


@dataclass(slots=True)
class RefusedLogins:
    """Logs refused logins by network: one line when they begin and one when they have ended, with how many."""

    env: Environment
    remembered: int
    _networks: dict[str, _Refusals] = field(default_factory=dict)

    def note(self, address: str) -> None:
        now, network = self.env.now(), client_network(address)
        if network not in self._networks:
            log.info("logins are refused", client=address)
            if len(self._networks) >= self.remembered:
                self._tell_end(next(iter(self._networks)))
        found = _newest(self._networks, network, self._networks.get(network, _Refusals(now, now)), self.remembered)
        found.last, found.count = now, found.count + 1

    def tell_ended(self) -> None:
        """Log the end of those that have been quiet; to be called now and then."""
        now = self.env.now()
        for network in [each for each, of in self._networks.items() if not 0 <= now - of.last < QUIET]:
            self._tell_end(network)

    def _tell_end(self, network: str) -> None:
        ended = self._networks.pop(network)
        seconds = max(0, ended.last - ended.since) // SECOND
        log.info("no more logins are refused", network=network, refused=ended.count, seconds=seconds)


@dataclass(slots=True)
class _Pair:
    """One network's failures at one account."""

    failures: deque[int] = field(default_factory=lambda: deque(maxlen=PER_ACCOUNT))
    wait: int = 0
    wait_until: int = 0

    def until(self, now: int, *, known: bool) -> int:
        """When the next login may be checked; a time that has passed for at once."""
        if known:
            return _until_room(self.failures, now, *PER_KNOWN_NETWORK)
        return self.wait_until if self.wait_until <= now + LONGEST_WAIT else 0  # later: the clock was set back

    def count(self, now: int) -> None:
        self.failures.append(now)
        if not now - ACCOUNT_WINDOW <= self.wait_until <= now + LONGEST_WAIT:
            self.wait = 0  # it has been quiet for a while, or the clock was set back
        if self.wait or len(_recent(self.failures, now, ACCOUNT_WINDOW)) >= PER_ACCOUNT:
            self.wait = min(2 * self.wait or FIRST_WAIT, LONGEST_WAIT)
            self.wait_until = now + self.wait


@dataclass(slots=True)
class _Account:
    """What is counted over all networks, the networks a login has succeeded from, and the turns given."""

    known: dict[str, None] = field(default_factory=dict)
    failures: dict[str, deque[int]] = field(default_factory=dict)  # the last few of each network
    turns: dict[str, int] = field(default_factory=dict)  # by site
    last_turn: int = 0

    def spacing(self, now: int) -> int:
        """How far apart logins from unknown networks are; 0 unless several networks guess."""
        over = sum(len(_recent(each, now, ACCOUNT_WINDOW)) for each in self.failures.values()) - PER_ACCOUNT
        return 0 if over < 0 else min(SECOND << min(over, 10), LONGEST_SPACING)

    def turn(self, site: str, now: int) -> int:
        """When a login from this site may be checked; kept for it, until it is taken."""
        spacing = self.spacing(now)
        if not spacing:
            return 0
        ahead = TURNS * LONGEST_SPACING
        self.turns = {each: at for each, at in self.turns.items() if now - TURN_KEPT <= at <= now + ahead}
        if site not in self.turns:
            if self.last_turn > now + ahead:
                self.last_turn = 0  # the clock was set back
            if len(self.turns) >= TURNS:
                return now + ahead
            self.turns[site] = self.last_turn = max(now, self.last_turn + spacing)
        return self.turns[site]


@dataclass(slots=True)
class LoginAttempt:
    """A login that may be checked after `wait` seconds, and counts as failed unless it is given back."""

    wait: float
    _throttle: "LoginThrottle"
    _account: str
    _address: str
    _at: int
    _refusal: Refused | None  # that its network, over its limit, gets where it is not known

    @property
    def _network(self) -> str:
        return client_network(self._address)

    def failed(self) -> Refused | None:
        """The password, or the code, was wrong; it was counted on arrival. What to refuse it by, if not as wrong."""
        self._throttle.refusals.note(self._address)
        return self._refusal

    def succeeded(self) -> None:
        """The password was right: nothing failed, and the account's owner is known to come from here."""
        self.withdrawn()
        throttle = self._throttle
        throttle.pairs.pop((self._account, self._network), None)  # the owner has mistyped, nothing worse
        record = throttle.accounts.get(self._account, _Account())
        record.failures.pop(self._network, None)
        _newest(throttle.accounts, self._account, record, throttle.remembered)
        _newest(record.known, self._network, None, REMEMBERED_OF_ACCOUNT)

    def withdrawn(self) -> None:
        """The password was not checked after all."""
        self._throttle.untold.pop((self._account, self._network, self._at), None)
        record = self._throttle.accounts.get(self._account)
        pair = self._throttle.pairs.get((self._account, self._network))
        shared = record.failures.get(self._network) if record is not None else None
        by_network = self._throttle.networks.get(self._network) if self._refusal is None else None
        for failures in (by_network, pair.failures if pair is not None else None, shared):
            if failures is not None and self._at in failures:
                failures.remove(self._at)


@dataclass(slots=True)
class CodeGuess:
    """A code that may be compared, and counts as wrong unless it is given back."""

    _throttle: "LoginThrottle"
    _told: tuple[str, str, int]
    _counted_by: tuple[str, str]

    def was_right(self) -> None:
        self._throttle.untold.pop(self._told, None)
        failures, (_, _, at) = self._throttle.codes.get(self._counted_by), self._told
        if failures is not None and at in failures:
            failures.remove(at)


@dataclass(slots=True)
class LoginThrottle:
    """The recent failures, in memory: forgetting them at a restart costs an attacker a restart of ours."""

    env: Environment
    remembered: int = THROTTLES_REMEMBERED
    networks: dict[str, deque[int]] = field(default_factory=dict)
    pairs: dict[tuple[str, str], _Pair] = field(default_factory=dict)
    accounts: dict[str, _Account] = field(default_factory=dict)
    codes: dict[tuple[str, str], deque[int]] = field(default_factory=dict)  # wrong ones: user, known network or ""
    untold: dict[tuple[str, str, int], None] = field(default_factory=dict)  # failures that other nodes have to hear of
    refusals: RefusedLogins = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = RefusedLogins(self.env, self.remembered)

    def attempt(self, account: str, address: str, known: Iterable[str] = ()) -> LoginAttempt:
        """Count a login, or refuse it, without any await; `known`: addresses of the account's stored sessions."""
        now, network = self.env.now(), client_network(address)
        record, pair = self.accounts.get(account, _Account()), self.pairs.get((account, network), _Pair())
        is_known = self._is_known(account, network, known)
        until, network_until = pair.until(now, known=is_known), self._network_until(network, now)
        if not is_known:
            until = max(until, network_until)
        if until > now:
            self.refusals.note(address)
            raise _wait(until - now)
        record = _newest(self.accounts, account, record, self.remembered)
        turn = now if is_known else max(now, record.turn(site_of(address), now))
        if turn > now + HELD:
            self.refusals.note(address)
            raise _wait(turn - now)
        record.turns.pop(site_of(address), None)
        refusal = _wait(network_until - now) if network_until > now else None
        if refusal is None:
            self._count_network(network, now)
        _newest(self.pairs, (account, network), pair, self.remembered).count(now)
        shared = record.failures.get(network, deque(maxlen=SHARE))
        _newest(record.failures, network, shared, REMEMBERED_OF_ACCOUNT).append(now)
        _newest(self.untold, (account, network, now), None, self.remembered)
        return LoginAttempt((turn - now) / SECOND, self, account, address, now, refusal)

    def code(self, account: str, address: str, known: Iterable[str] = ()) -> CodeGuess:
        """Count a code of a user's second factor, or refuse it, without any await; `known` as in `attempt`."""
        now, network = self.env.now(), client_network(address)
        is_known = self._is_known(account, network, known)
        counted_by = (account, network if is_known else "")
        until = max(_until_room(self.codes.get(counted_by, ()), now, *limit) for limit in PER_USER_CODES)
        if until > now:
            raise _wait(until - now, "Too many wrong codes of this second factor.")
        self._count_code(counted_by, now)
        told = (f"{CODE_FROM_KNOWN if is_known else CODE}{account}", network, now)
        _newest(self.untold, told, None, self.remembered)
        return CodeGuess(self, told, counted_by)

    def to_tell(self) -> list[tuple[str, str, int]]:
        """The failures that are certain by now, once: account, network and when."""
        told = [failure for failure in self.untold if failure[2] < self.env.now() - CERTAIN_AFTER]
        for failure in told:
            del self.untold[failure]
        return told

    def heard(self, account: str, network: str, at: int) -> None:
        """Count a failure on another node; without an account it was a wrong secret of our own kind."""
        if account.startswith(CODE_FROM_KNOWN):
            self._count_code((account.removeprefix(CODE_FROM_KNOWN), network), at)
            return
        if account.startswith(CODE):
            self._count_code((account.removeprefix(CODE), ""), at)
            return
        self._count_network(network, at)
        if account:
            record = _newest(self.accounts, account, self.accounts.get(account, _Account()), self.remembered)
            pair = self.pairs.get((account, network), _Pair())
            _newest(self.pairs, (account, network), pair, self.remembered).count(at)
            shared = record.failures.get(network, deque(maxlen=SHARE))
            _newest(record.failures, network, shared, REMEMBERED_OF_ACCOUNT).append(at)

    def wrong_secret(self, address: str) -> int | None:
        """Count a wrong secret of our own kind; how many seconds to wait, for a network that has failed too often."""
        now, network = self.env.now(), client_network(address)
        self.refusals.note(address)
        until = self._network_until(network, now)
        if until > now:
            return _seconds(until - now)
        self._count_network(network, now)
        _newest(self.untold, ("", network, now), None, self.remembered)
        return None

    def _is_known(self, account: str, network: str, known: Iterable[str]) -> bool:
        record = self.accounts.get(account)
        seen = record is not None and network in record.known
        return seen or any(client_network(each) == network for each in known)

    def _count_code(self, counted_by: tuple[str, str], at: int) -> None:
        most, _ = max(PER_USER_CODES)
        failures = self.codes.get(counted_by, deque(maxlen=most))
        _newest(self.codes, counted_by, failures, self.remembered).append(at)

    def _network_until(self, network: str, now: int) -> int:
        failures = self.networks.get(network)
        return 0 if failures is None else max(_until_room(failures, now, *limit) for limit in PER_NETWORK)

    def _count_network(self, network: str, now: int) -> None:
        if not ipaddress.ip_network(network).is_loopback:
            most, _ = max(PER_NETWORK)
            failures = self.networks.get(network, deque(maxlen=most))
            _newest(self.networks, network, failures, self.remembered).append(now)


def _recent(failures: Iterable[int], now: int, window: int) -> list[int]:
    """Those within the window; what lies in the future does so by a clock that was set back, and does not count."""
    return [at for at in failures if now - window < at <= now + CLOCK_SLACK]


def _until_room(failures: Iterable[int], now: int, most: int, window: int) -> int:
    """When there is room for one more failure within the window."""
    recent = _recent(failures, now, window)
    return recent[-most] + window if len(recent) >= most else 0


def _newest(kept: dict[Key, Value], key: Key, value: Value, most: int) -> Value:
    """Put it at the end of what is kept, and drop the oldest when there are too many."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]
    return value


def _seconds(microseconds: int) -> int:
    return max(1, math.ceil(microseconds / SECOND))


def _wait(microseconds: int, why: str = "Too many failed attempts.") -> Refused:
    seconds = _seconds(microseconds)
    return Refused(Code.RATE_LIMITED, f"{why} Wait {seconds} seconds, then try again.", retry_after=seconds)
