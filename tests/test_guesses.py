"""In charge of guesses: more and more waiting for whoever guesses, none for an owner who is known, no lock-out."""

from dataclasses import dataclass

import pytest

from appliance import guesses as guesses_module
from appliance.errors import Code, Refused
from appliance.guesses import DAY, FIRST_WAIT, LONGEST_WAIT, MINUTE, PER_ACCOUNT, SECOND, Guesses
from appliance.outside import Outside

ATTACKER = "192.0.2.1"
OWNER = "198.51.100.7"


@dataclass
class Clock:
    """The time, which tests move."""

    now: int = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        """The time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time."""
    return Clock()


@pytest.fixture
def guesses(clock: Clock) -> Guesses:
    """Nobody has guessed yet."""
    return Guesses(Outside(now=clock))


def seconds_to_wait(refused: pytest.ExceptionInfo[Refused]) -> int:
    """What the refusal tells the client."""
    assert refused.value.code is Code.RATE_LIMITED
    assert refused.value.retry_after is not None
    assert str(refused.value.retry_after) in refused.value.text
    return refused.value.retry_after


# ---- by address


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
def test_who_has_one_address_of_a_network_has_them_all(guesses: Guesses, one: str, other: str, same: bool) -> None:
    """IPv6 counts by the /64, which every customer of a provider has; in our own networks each machine for itself."""
    for _ in range(10):
        guesses.failed(one)
    if same:
        with pytest.raises(Refused):
            guesses.check_address(other)
    else:
        guesses.check_address(other)


@pytest.mark.parametrize("loopback", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_not_counted_in_any_form(guesses: Guesses, loopback: str) -> None:
    """Every application on the machine would share that count."""
    for _ in range(100):
        guesses.failed(loopback)
    guesses.check_address(loopback)


def test_an_address_has_ten_failures_a_minute(guesses: Guesses, clock: Clock) -> None:
    """The eleventh has to wait until the first is a minute old, and then goes through."""
    for _ in range(10):
        guesses.check_address(ATTACKER)
        guesses.failed(ATTACKER)
        clock.now += SECOND
    with pytest.raises(Refused) as refused:
        guesses.check_address(ATTACKER)
    assert seconds_to_wait(refused) == 50
    clock.now += 50 * SECOND
    guesses.check_address(ATTACKER)


def test_an_address_has_fifty_failures_a_day(guesses: Guesses, clock: Clock) -> None:
    """However slowly it goes on, a day later it may again."""
    for _ in range(50):
        guesses.check_address(ATTACKER)
        guesses.failed(ATTACKER)
        clock.now += 10 * MINUTE
    with pytest.raises(Refused) as refused:
        guesses.check_address(ATTACKER)
    assert seconds_to_wait(refused) == (DAY - 500 * MINUTE) // SECOND
    clock.now += seconds_to_wait(refused) * SECOND
    guesses.check_address(ATTACKER)


def test_other_addresses_are_not_touched(guesses: Guesses) -> None:
    """One address's failures are its own."""
    for _ in range(100):
        guesses.failed(ATTACKER)
    guesses.check_address(OWNER)
    with pytest.raises(Refused):
        guesses.check_address(ATTACKER)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1"])
def test_loopback_is_not_counted(guesses: Guesses, address: str) -> None:
    """Behind a proxy nobody declared, everybody comes from there."""
    for _ in range(100):
        guesses.failed(address)
    guesses.check_address(address)


# ---- by account


def failed_logins(guesses: Guesses, count: int) -> None:
    """So many wrong passwords for the account, from one address."""
    for _ in range(count):
        guesses.failed(ATTACKER, "account")


def test_an_account_waits_after_ten_failures_and_longer_with_each(guesses: Guesses, clock: Clock) -> None:
    """A minute first, doubled by each further failure, an hour at most."""
    failed_logins(guesses, PER_ACCOUNT - 1)
    guesses.check_account("account", ATTACKER)
    waits = []
    for _ in range(9):
        failed_logins(guesses, 1)
        with pytest.raises(Refused) as refused:
            guesses.check_account("account", ATTACKER)
        waits.append(seconds_to_wait(refused))
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert LONGEST_WAIT == 3600 * SECOND
    clock.now += LONGEST_WAIT
    guesses.check_account("account", ATTACKER)


def test_slow_failures_are_nothing(guesses: Guesses, clock: Clock) -> None:
    """An owner who mistypes now and then never has to wait."""
    for _ in range(50):
        failed_logins(guesses, 1)
        clock.now += 2 * MINUTE
        guesses.check_account("account", OWNER)


def test_a_known_owner_never_waits(guesses: Guesses) -> None:
    """From an address that has logged in to the account before, no attacker can keep the owner out."""
    guesses.succeeded(OWNER, "account")
    failed_logins(guesses, 50)
    guesses.check_account("account", OWNER)
    with pytest.raises(Refused):
        guesses.check_account("account", ATTACKER)
    with pytest.raises(Refused):
        guesses.check_account("account", "203.0.113.9")


@pytest.mark.parametrize("address", [OWNER, "127.0.0.1"])
def test_a_known_address_has_ten_guesses_a_minute(guesses: Guesses, clock: Clock, address: str) -> None:
    """Behind a proxy nobody declared attackers come from the owner's address: they get no free guesses by that."""
    guesses.succeeded(address, "account")
    for _ in range(10):
        guesses.check_account("account", address)
        guesses.failed(address, "account")
        clock.now += SECOND
    with pytest.raises(Refused) as refused:
        guesses.check_account("account", address)
    assert seconds_to_wait(refused) == 50
    guesses.check_account("another", address)
    clock.now += 50 * SECOND
    guesses.check_account("account", address)


def test_a_login_forgives(guesses: Guesses) -> None:
    """After the owner has come in, failures are counted from the beginning."""
    failed_logins(guesses, 15)
    guesses.succeeded(OWNER, "account")
    guesses.check_account("account", ATTACKER)
    failed_logins(guesses, PER_ACCOUNT - 1)
    guesses.check_account("account", ATTACKER)


def test_a_quiet_day_forgives(guesses: Guesses, clock: Clock) -> None:
    """Long after an attack one mistyped password is one mistyped password, not an hour's wait."""
    failed_logins(guesses, 15)
    clock.now += DAY
    failed_logins(guesses, 1)
    guesses.check_account("account", OWNER)


def test_other_accounts_are_not_touched(guesses: Guesses) -> None:
    """One account's failures are its own."""
    failed_logins(guesses, 15)
    guesses.check_account("another", ATTACKER)


# ---- memory


def test_only_so_much_is_remembered(guesses: Guesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of addresses and accounts pushes out the longest quiet, and never the one at work."""
    monkeypatch.setattr(guesses_module, "REMEMBERED", 10)
    for number in range(1000):
        guesses.failed(ATTACKER, "account")
        guesses.failed(f"10.0.{number // 256}.{number % 256}", f"account {number}")
    assert len(guesses._addresses) == len(guesses._accounts) == 10
    with pytest.raises(Refused):
        guesses.check_address(ATTACKER)
    with pytest.raises(Refused):
        guesses.check_account("account", ATTACKER)
    assert max(len(failures) for failures in guesses._addresses.values()) <= 50


def test_the_first_wait_is_a_minute() -> None:
    """By the table of threats."""
    assert FIRST_WAIT == MINUTE


# ---- a clock that was set


def test_a_clock_set_back_locks_nobody_out(guesses: Guesses, clock: Clock) -> None:
    """Failures from the future are none: neither the address nor the account waits for two days."""
    for _ in range(PER_ACCOUNT + 5):
        guesses.failed(ATTACKER, "demo")
    guesses.succeeded(OWNER, "other")
    for _ in range(10):
        guesses.failed(OWNER, "other")
    clock.now -= 2 * DAY
    guesses.check_address(ATTACKER)
    guesses.check_account("demo", ATTACKER)
    guesses.check_account("other", OWNER)


def test_after_a_clock_was_set_back_guesses_count_as_ever(guesses: Guesses, clock: Clock) -> None:
    """Whoever goes on guessing waits as somebody who has just begun to."""
    for _ in range(50):
        guesses.failed(ATTACKER, "demo")
    clock.now -= 2 * DAY
    for _ in range(PER_ACCOUNT):
        guesses.check_account("demo", OWNER)
        guesses.failed(ATTACKER, "demo")
    with pytest.raises(Refused) as refused:
        guesses.check_account("demo", OWNER)
    assert seconds_to_wait(refused) == FIRST_WAIT // SECOND
    with pytest.raises(Refused) as refused:
        guesses.check_address(ATTACKER)
    assert seconds_to_wait(refused) == MINUTE // SECOND


def test_a_clock_set_back_a_little_forgets_nothing(guesses: Guesses, clock: Clock) -> None:
    """A correction by seconds helps nobody who guesses."""
    for _ in range(10):
        guesses.failed(ATTACKER)
    clock.now -= 5 * SECOND
    with pytest.raises(Refused):
        guesses.check_address(ATTACKER)
