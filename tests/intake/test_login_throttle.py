"""The throttle of password guessing: counted on arrival, slower for who guesses, open for the owner."""

from dataclasses import dataclass

import pytest

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.intake.login_throttle import (
    FIRST_WAIT,
    LONGEST_WAIT,
    PER_ACCOUNT,
    QUIET,
    TURN_KEPT,
    TURNS,
    LoginThrottle,
)
from appliance.net.address_policy import client_network, site_of
from appliance.times import DAY, HOUR, MINUTE, SECOND

ATTACKER = "192.0.2.1"
OWNER = "198.51.100.7"
ELSEWHERE = "203.0.113.9"


@dataclass
class Clock:
    now: int = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guesses(clock: Clock) -> LoginThrottle:
    return LoginThrottle(Environment(now=clock))


def seconds_to_wait(refused: pytest.ExceptionInfo[Refused]) -> int:
    assert refused.value.code is Code.RATE_LIMITED
    assert refused.value.retry_after is not None
    assert str(refused.value.retry_after) in refused.value.text
    return refused.value.retry_after


def wait_of(guesses: LoginThrottle, account: str, address: str, known: tuple[str, ...] = ()) -> int:
    with pytest.raises(Refused) as refused:
        guesses.attempt(account, address, known)
    return seconds_to_wait(refused)


def passes(guesses: LoginThrottle, account: str, address: str, known: tuple[str, ...] = ()) -> None:
    attempt = guesses.attempt(account, address, known)
    assert attempt.wait == 0
    attempt.withdrawn()


def checked(guesses: LoginThrottle, account: str, addresses: list[str]) -> int:
    """How many of these logins, all of which arrive before any of them has been answered, are checked."""
    count = 0
    for address in addresses:
        try:
            guesses.attempt(account, address)
        except Refused:
            continue
        count += 1
    return count


def address(number: int) -> str:
    return f"100.{64 + number // 256}.{number % 256}.1"


# ---- what one client is


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2a01:4f8:1:2::1", "2a01:4f8:1:2:ffff:ffff:ffff:ffff", True),
        ("2a01:4f8:1:2::1", "2a01:4f8:1:3::1", False),
        ("::ffff:203.0.114.5", "203.0.114.5", True),
        ("fd00::1", "fd00::2", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_a_network_is_an_ipv4_address_or_an_ipv6_64(guesses: LoginThrottle, one: str, other: str, same: bool) -> None:
    """A client with one address of a public /64 has them all; in private networks each machine counts for itself."""
    assert (client_network(one) == client_network(other)) is same
    for _ in range(10):
        guesses.wrong_secret(one)
    assert (guesses.wrong_secret(other) is not None) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.200", True),
        ("192.0.2.1", "192.0.3.1", False),
        ("2a01:4f8:1:2::1", "2a01:4f8:1:3::1", True),
        ("2a01:4f8:1::1", "2a01:4f8:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.2", True),
    ],
)
def test_a_site_is_an_ipv4_24_or_an_ipv6_48(one: str, other: str, same: bool) -> None:
    assert (site_of(one) == site_of(other)) is same


# ---- counted on arrival


def test_of_300_logins_at_once_10_are_checked(guesses: LoginThrottle) -> None:
    """A login counts as failed before its password is hashed, so those that arrive together find each other's count."""
    assert checked(guesses, "account", [ATTACKER] * 300) == PER_ACCOUNT


def test_of_300_logins_at_once_from_30_networks_few_are_checked(guesses: LoginThrottle) -> None:
    """The count of the whole account holds for logins in flight as well: the rest would have its turn later."""
    assert checked(guesses, "account", [address(number % 30) for number in range(300)]) <= PER_ACCOUNT + 4
    assert checked(guesses, "other", [f"127.0.0.{number % 30 + 1}" for number in range(300)]) <= PER_ACCOUNT + 4


def test_a_right_password_gives_its_count_back(guesses: LoginThrottle) -> None:
    for _ in range(100):
        guesses.attempt("account", OWNER).succeeded()
    assert guesses.wrong_secret(OWNER) is None
    assert len(guesses.networks[OWNER]) == 1


def test_a_success_gives_back_no_more_than_its_own(guesses: LoginThrottle) -> None:
    for number in range(9):
        guesses.attempt(f"victim {number}", ATTACKER)
    guesses.attempt("own", ATTACKER).succeeded()
    guesses.attempt("another victim", ATTACKER)
    assert wait_of(guesses, "the last victim", ATTACKER) == 60


def test_a_login_that_was_not_checked_costs_nothing(guesses: LoginThrottle) -> None:
    for _ in range(100):
        guesses.attempt("account", OWNER).withdrawn()
    passes(guesses, "account", OWNER)


# ---- by network


def test_a_network_has_ten_failures_a_minute(guesses: LoginThrottle, clock: Clock) -> None:
    for number in range(10):
        guesses.attempt(f"account {number}", ATTACKER)
        clock.now += SECOND
    assert wait_of(guesses, "account", ATTACKER) == 50
    assert guesses.wrong_secret(ATTACKER) == 50
    clock.now += 50 * SECOND
    passes(guesses, "account", ATTACKER)


def test_a_network_has_fifty_failures_a_day(guesses: LoginThrottle, clock: Clock) -> None:
    for _ in range(50):
        assert guesses.wrong_secret(ATTACKER) is None
        clock.now += 10 * MINUTE
    wait = wait_of(guesses, "account", ATTACKER)
    assert wait == (DAY - 500 * MINUTE) // SECOND
    clock.now += wait * SECOND
    passes(guesses, "account", ATTACKER)


def test_other_networks_are_not_touched(guesses: LoginThrottle) -> None:
    for _ in range(100):
        guesses.wrong_secret(ATTACKER)
    passes(guesses, "account", OWNER)
    assert guesses.wrong_secret(ATTACKER) is not None


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_not_counted_by_network(guesses: LoginThrottle, loopback: str) -> None:
    for _ in range(100):
        assert guesses.wrong_secret(loopback) is None
    passes(guesses, "account", loopback)


def test_a_known_network_logs_in_whatever_else_failed_there(guesses: LoginThrottle) -> None:
    for _ in range(100):
        guesses.wrong_secret(OWNER)
    passes(guesses, "account", OWNER, known=(OWNER,))
    wait_of(guesses, "another account", OWNER)


# ---- by account and network


def test_a_network_waits_after_ten_failures_and_longer_with_each(guesses: LoginThrottle, clock: Clock) -> None:
    waits = []
    for _ in range(PER_ACCOUNT - 1):
        guesses.attempt("account", "127.0.0.1")
    for _ in range(9):
        guesses.attempt("account", "127.0.0.1")
        waits.append(wait_of(guesses, "account", "127.0.0.1"))
        clock.now += waits[-1] * SECOND
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert (FIRST_WAIT, LONGEST_WAIT) == (60 * SECOND, 3600 * SECOND)
    passes(guesses, "account", "127.0.0.1")


def test_slow_failures_are_nothing(guesses: LoginThrottle, clock: Clock) -> None:
    for _ in range(50):
        guesses.attempt("account", "127.0.0.1")
        clock.now += 2 * MINUTE
        passes(guesses, "account", "127.0.0.1")


def test_one_address_that_guesses_all_day_keeps_no_other_out(guesses: LoginThrottle, clock: Clock) -> None:
    """An owner logs in at once from an address that was never seen, however long one attacker has been at it."""
    for _ in range(24 * 60):
        checked(guesses, "account", [ATTACKER] * 5)
        passes(guesses, "account", OWNER)
        passes(guesses, "account", "192.0.2.2")  # and even from the attacker's neighbour
        clock.now += MINUTE


def test_a_quiet_day_forgives(guesses: LoginThrottle, clock: Clock) -> None:
    checked(guesses, "account", ["127.0.0.1"] * 15)
    clock.now += DAY
    guesses.attempt("account", "127.0.0.1")
    passes(guesses, "account", "127.0.0.1")


def test_other_accounts_are_not_touched(guesses: LoginThrottle) -> None:
    checked(guesses, "account", ["127.0.0.1"] * 15)
    passes(guesses, "another", "127.0.0.1")


def test_a_wrong_password_from_a_known_network_over_its_limit_is_refused_alike(
    guesses: LoginThrottle, clock: Clock
) -> None:
    """By the time that an unknown account is told there, which it does not change; below the limit it is just wrong."""
    assert guesses.attempt("account", OWNER, (OWNER,)).failed() is None
    for number in range(9):
        guesses.attempt(f"unknown {number}", OWNER)
    clock.now += SECOND
    for _ in range(3):
        refusal = guesses.attempt("account", OWNER, (OWNER,)).failed()
        assert refusal is not None
        assert refusal.code is Code.RATE_LIMITED
        assert refusal.retry_after == wait_of(guesses, "unknown", OWNER) == 59
    guesses.attempt("account", OWNER, (OWNER,)).succeeded()
    clock.now += MINUTE
    assert guesses.attempt("account", OWNER, (OWNER,)).failed() is None


@pytest.mark.parametrize("network", [OWNER, "127.0.0.1", "2a01:4f8:1:2::1"])
def test_a_known_network_has_ten_guesses_a_minute(guesses: LoginThrottle, clock: Clock, network: str) -> None:
    """Behind an undeclared proxy attackers come from the owner's address: they get no free guesses by that."""
    for _ in range(10):
        guesses.attempt("account", network, (network,))
        clock.now += SECOND
    assert wait_of(guesses, "account", network, (network,)) == 50
    passes(guesses, "another", network, known=(network,))
    clock.now += 50 * SECOND
    passes(guesses, "account", network, known=(network,))


def test_a_login_makes_its_network_known(guesses: LoginThrottle) -> None:
    guesses.attempt("account", "2a01:4f8:1:2::1").succeeded()
    checked(guesses, "account", [address(number) for number in range(200)])
    passes(guesses, "account", "2a01:4f8:1:2::ffff")
    wait_of(guesses, "account", ELSEWHERE)


def test_a_login_forgives_its_own_network(guesses: LoginThrottle) -> None:
    first = guesses.attempt("account", "127.0.0.1")
    checked(guesses, "account", ["127.0.0.1"] * 15)
    first.succeeded()
    passes(guesses, "account", "127.0.0.1")


# ---- by account, from many networks


def test_three_networks_slow_down_no_other(guesses: LoginThrottle) -> None:
    checked(guesses, "account", [address(number) for number in range(3)] * 50)
    passes(guesses, "account", OWNER)


def test_under_distributed_guessing_logins_come_one_after_the_other(guesses: LoginThrottle, clock: Clock) -> None:
    """The first ten pass; then each has a turn, a second after the one before, doubling; a late one is told when."""
    for number in range(PER_ACCOUNT):
        assert guesses.attempt("account", address(number)).wait == 0
    waits = []
    for number in range(PER_ACCOUNT, PER_ACCOUNT + 4):
        try:
            waits.append(guesses.attempt("account", address(number)).wait)
        except Refused as refused:
            waits.append(refused.retry_after or 0)
    assert waits == [0, 2, 6, 14]
    clock.now += 14 * SECOND
    assert guesses.attempt("account", address(PER_ACCOUNT + 3)).wait == 0


def test_a_turn_is_kept_for_who_was_told_to_come_back(guesses: LoginThrottle, clock: Clock) -> None:
    checked(guesses, "account", [address(number) for number in range(50)])
    wait = wait_of(guesses, "account", OWNER)
    assert wait <= 50 * 30
    for _ in range(wait):
        clock.now += SECOND
        checked(guesses, "account", [address(number) for number in range(60)])
    assert guesses.attempt("account", OWNER).wait == 0


def test_a_turn_not_taken_is_lost(guesses: LoginThrottle, clock: Clock) -> None:
    checked(guesses, "account", [address(number) for number in range(200)])
    assert len(guesses.accounts["account"].turns) == TURNS
    clock.now += 100 * 30 * SECOND + TURN_KEPT + SECOND
    passes(guesses, "account", OWNER)


def test_one_site_has_one_turn(guesses: LoginThrottle) -> None:
    """An attacker with a whole /48 does not take all turns: a client from elsewhere has the next but one."""
    for number in range(1000):
        checked(guesses, "account", [f"2a01:4f8:1:{number:x}::1"])
    assert len(guesses.accounts["account"].turns) == 1
    assert wait_of(guesses, "account", OWNER) <= 2 * 30


# ---- codes of a second factor


def codes_compared(guesses: LoginThrottle, account: str, addresses: list[str], known: tuple[str, ...] = ()) -> int:
    count = 0
    for each in addresses:
        try:
            guesses.code(account, each, known)
        except Refused:
            continue
        count += 1
    return count


def test_codes_count_by_user_from_however_many_networks(guesses: LoginThrottle, clock: Clock) -> None:
    """Ten an hour and thirty a day in all, so that no number of addresses guesses faster; another user has its own."""
    networks = [address(number) for number in range(300)]
    assert codes_compared(guesses, "ann", networks) == 10
    with pytest.raises(Refused) as refused:
        guesses.code("ann", ATTACKER)
    assert seconds_to_wait(refused) == HOUR // SECOND
    assert "codes" in refused.value.text
    assert codes_compared(guesses, "bob", networks) == 10
    compared = 10
    for _ in range(23):
        clock.now += HOUR
        compared += codes_compared(guesses, "ann", networks)
    assert compared == 30
    clock.now += DAY
    assert codes_compared(guesses, "ann", networks) == 10


def test_codes_of_strangers_keep_out_no_owner_from_a_known_network(guesses: LoginThrottle) -> None:
    codes_compared(guesses, "ann", [address(number) for number in range(50)])
    assert codes_compared(guesses, "ann", [OWNER] * 50, known=(OWNER,)) == 10
    assert codes_compared(guesses, "ann", [ELSEWHERE] * 50, known=(OWNER, ELSEWHERE)) == 10


def test_a_right_code_gives_back_its_own_count_only(guesses: LoginThrottle) -> None:
    for _ in range(50):
        guesses.code("ann", OWNER).was_right()
    assert codes_compared(guesses, "ann", [ATTACKER] * 9) == 9
    guesses.code("ann", OWNER).was_right()
    assert codes_compared(guesses, "ann", [ATTACKER] * 9) == 1


def test_codes_count_on_all_nodes(guesses: LoginThrottle, clock: Clock) -> None:
    """What one node tells counts on another as there, and neither as a login nor for the network."""
    other = LoginThrottle(guesses.env)
    codes_compared(guesses, "ann", [address(number) for number in range(20)])
    for _ in range(20):
        clock.now += 1
        codes_compared(guesses, "ann", [OWNER], known=(OWNER,))
    guesses.code("bob", OWNER).was_right()
    clock.now += 2 * SECOND
    shared = guesses.take_unshared()
    assert len(shared) == 20
    for failure in shared:
        other.count_from_node(failure)
    assert codes_compared(other, "ann", [address(500)]) == 0
    assert codes_compared(other, "ann", [OWNER], known=(OWNER,)) == 0
    assert codes_compared(other, "bob", [OWNER]) == 1
    assert (other.networks, other.pairs, other.accounts) == ({}, {}, {})


# ---- memory


def test_only_so_much_is_remembered(guesses: LoginThrottle) -> None:
    guesses.remembered = 10
    for number in range(1000):
        checked(guesses, "account", [ATTACKER])
        guesses.wrong_secret(ATTACKER)
        checked(guesses, f"account {number}", [address(number)])
        checked(guesses, "account", [address(number)])
        codes_compared(guesses, f"account {number}", [address(number)])
    assert len(guesses.codes) == 10
    assert len(guesses.networks) == len(guesses.accounts) == len(guesses.pairs) == 10
    record = guesses.accounts["account"]
    assert len(record.failures) <= 100
    assert len(record.turns) <= TURNS
    wait_of(guesses, "account", ATTACKER)
    assert max(len(failures) for failures in guesses.networks.values()) <= 50


# ---- a clock that was set


def test_a_clock_set_back_locks_no_user_out(guesses: LoginThrottle, clock: Clock) -> None:
    """Failures from the future are none: neither network nor pair nor account waits for two days."""
    checked(guesses, "demo", [ATTACKER] * 15)
    checked(guesses, "many", [address(number) for number in range(50)])
    for _ in range(10):
        guesses.attempt("other", OWNER, (OWNER,))
    clock.now -= 2 * DAY
    passes(guesses, "demo", ATTACKER)
    passes(guesses, "many", ELSEWHERE)
    passes(guesses, "other", OWNER, known=(OWNER,))


def test_after_a_clock_was_set_back_guesses_count_as_ever(guesses: LoginThrottle, clock: Clock) -> None:
    checked(guesses, "demo", [ATTACKER] * 50)
    checked(guesses, "many", [address(number) for number in range(50)])
    clock.now -= 2 * DAY
    assert checked(guesses, "demo", [ATTACKER] * 50) == PER_ACCOUNT
    assert wait_of(guesses, "demo", ATTACKER) == FIRST_WAIT // SECOND
    assert checked(guesses, "many", [address(number) for number in range(50)]) <= PER_ACCOUNT + 4


def test_a_clock_set_back_a_little_forgets_nothing(guesses: LoginThrottle, clock: Clock) -> None:
    for _ in range(10):
        guesses.wrong_secret(ATTACKER)
    clock.now -= 5 * SECOND
    assert guesses.wrong_secret(ATTACKER) is not None


def test_refused_logins_are_logged_when_they_begin_and_when_they_have_ended(
    guesses: LoginThrottle, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each for a network, however many and of whatever kind they were; the last one tells how many."""
    caplog.set_level("INFO", "appliance")

    def told() -> list[tuple[str, dict[str, object]]]:
        guesses.refusals.log_ended()
        found = [(record.message, getattr(record, "fields", {})) for record in caplog.records]
        caplog.clear()
        return found

    guesses.attempt("ada", OWNER).succeeded()
    guesses.attempt("ada", OWNER).withdrawn()
    assert told() == []
    guesses.wrong_secret(ATTACKER)
    assert told() == [("logins are refused", {"client": ATTACKER})]
    for _ in range(5):
        clock.now += MINUTE
        guesses.wrong_secret(ATTACKER)
        guesses.attempt("ada", ATTACKER).failed()
    for _ in range(5):
        guesses.attempt("ada", ATTACKER).failed()
    wait_of(guesses, "ada", ATTACKER)
    assert told() == []
    guesses.wrong_secret(ELSEWHERE)
    assert told() == [("logins are refused", {"client": ELSEWHERE})]
    clock.now += QUIET - 1
    assert told() == []
    clock.now += 1
    ended = {"network": ATTACKER, "refused": 17, "seconds": 300}
    assert told()[0] == ("no more logins are refused", ended)
    guesses.wrong_secret(ATTACKER)
    assert told() == [("logins are refused", {"client": ATTACKER})]


def test_the_log_of_refused_logins_is_bounded(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "appliance")
    guesses = LoginThrottle(Environment(now=clock), remembered=2)
    for number in (1, 2, 1, 3):
        guesses.wrong_secret(f"192.0.2.{number}")
    words = [(record.message.partition(" ")[0], getattr(record, "fields", {})) for record in caplog.records]
    ended = [fields["network"] for word, fields in words if word == "no"]
    assert ([word for word, _ in words].count("logins"), ended) == (3, ["192.0.2.2"])
