"""How much one pool may take: slots, rate, slowing down and coming back, and when to stop."""

from appliance.times import SECOND

from appliance.deliver.pool_limiter import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    OF_ONE_ACCOUNT,
    OF_ONE_DOMAIN,
    SENDER_FAULTS,
    Gate,
    Sender,
)
from appliance.deliver.providers import Limits

NOW = 1_750_000_000 * SECOND
DAY = 86_400 * SECOND


ACCOUNT = "acc_1"
ONLY = Sender(ACCOUNT, "a.test", only=True)  # of an installation with one account


def slow_down(gate: Gate, now: int, reason: str, sender: Sender = ONLY, *, about_us: bool = False) -> None:
    """A server asks for less."""
    gate.slow_down(now, reason, sender, about_us=about_us)


def refuse(gate: Gate, reason: str, sender: Sender = ONLY, *, about_us: bool = False, times: int = 1) -> None:
    """A server refuses mail, so many times."""
    for _ in range(times):
        gate.refused_as_sender(NOW, reason, sender, about_us=about_us)


def holds(gate: Gate) -> bool:
    """Whether the pool should be held."""
    return gate.hold_reason is not None


def entered(gate: Gate, now: int = NOW) -> int:
    """How many transactions begin before the gate shuts."""
    count = 0
    while gate.is_open(now) and count < 1_000:
        gate.enter(ACCOUNT, now)
        count += 1
    return count


def test_slots_are_counted() -> None:
    """As many pass as there are slots, and one more for each that leaves."""
    gate = Gate("pool", Limits(concurrency=3))
    assert entered(gate) == 3
    gate.leave(ACCOUNT)
    gate.recorded()
    assert entered(gate) == 1


def test_a_rate_is_kept() -> None:
    """The first minute's worth at once, then one each second at 60 a minute."""
    gate = Gate("pool", Limits(concurrency=1_000, per_minute=60))
    assert entered(gate) == 60
    assert entered(gate, NOW + SECOND // 2) == 0
    assert entered(gate, NOW + SECOND) == 1
    assert entered(gate, NOW + 11 * SECOND) == 10


def test_a_wish_for_less_halves_and_pauses() -> None:
    """Half the slots after a pause; what is said during the pause counts once; the next pause is twice as long."""
    gate = Gate("pool", Limits(concurrency=8))
    slow_down(gate, NOW, "421 slow down")
    slow_down(gate, NOW + 1, "421 slow down, I said")
    assert not gate.is_open(NOW + FIRST_PAUSE - 1)
    assert gate.throttle.slots == 4
    again = NOW + FIRST_PAUSE
    assert gate.is_open(again)
    slow_down(gate, again, "421 again")
    assert gate.throttle.slots == 2
    assert not gate.is_open(again + 2 * FIRST_PAUSE - 1)
    assert gate.is_open(again + 2 * FIRST_PAUSE)


def test_pauses_have_an_end() -> None:
    """However often a server asks, there is one slot, and no pause is longer than the longest."""
    gate, now = Gate("pool", Limits(concurrency=8)), NOW
    for _ in range(20):
        slow_down(gate, now, "421")
        assert gate.throttle.slowed_until - now <= LONGEST_PAUSE
        now = gate.throttle.slowed_until
    assert gate.throttle.slots == 1
    assert gate.is_open(now)


def test_deliveries_bring_the_slots_back() -> None:
    """One slot more for each round of deliveries, up to the limit; then the next pause is a short one again."""
    gate = Gate("pool", Limits(concurrency=4))
    slow_down(gate, NOW, "421")
    slow_down(gate, NOW + FIRST_PAUSE, "421")
    assert gate.throttle.slots == 1
    gate.delivered(ACCOUNT)
    assert gate.throttle.slots == 2
    for _ in range(10):
        gate.delivered(ACCOUNT)
    assert gate.throttle.slots == 4
    assert gate.throttle.slowed_by is None
    later = NOW + DAY
    slow_down(gate, later, "421")
    assert gate.throttle.slowed_until == later + FIRST_PAUSE


def test_a_clock_set_back_does_not_shut_the_gate() -> None:
    """A pause that would end in two days is a clock that was set back by two days."""
    gate = Gate("pool", Limits(concurrency=4, per_minute=60))
    gate.enter(ACCOUNT, NOW)
    gate.leave(ACCOUNT)
    gate.recorded()
    slow_down(gate, NOW, "421")
    assert gate.is_open(NOW - 2 * DAY)
    slow_down(gate, NOW - 2 * DAY, "421")
    assert not gate.is_open(NOW - 2 * DAY)
    assert gate.is_open(NOW - 2 * DAY + LONGEST_PAUSE)


def test_refusals_in_a_row_are_a_reason_to_hold() -> None:
    """Ten without a delivery between them shut the gate until somebody reopens it; nine and a delivery do not."""
    gate = Gate("pool", Limits())
    for _ in range(SENDER_FAULTS - 1):
        refuse(gate, "550 5.7.1 no")
    gate.delivered(ACCOUNT)
    for _ in range(SENDER_FAULTS - 1):
        refuse(gate, "550 5.7.1 no")
    assert gate.is_open(NOW)
    refuse(gate, "550 5.7.1 never")
    assert gate.hold_reason == "10 refusals of us as a sender in a row, the last: 550 5.7.1 never"
    assert not gate.is_open(NOW)
    gate.reopen()
    assert gate.is_open(NOW)


def test_a_gate_at_rest_has_nothing_to_remember() -> None:
    """Not while it is in use, slowed, rated or under suspicion; and a slowed one is forgiven after a while."""
    gate = Gate("pool", Limits())
    assert gate.is_at_rest(NOW)
    gate.enter(ACCOUNT, NOW)
    assert not gate.is_at_rest(NOW)
    gate.leave(ACCOUNT)
    gate.recorded()
    assert gate.is_at_rest(NOW)
    refuse(gate, "550 5.7.1 no")
    assert not gate.is_at_rest(NOW)
    gate.delivered(ACCOUNT)
    slow_down(gate, NOW, "421")
    assert not gate.is_at_rest(NOW + FIRST_PAUSE)
    assert gate.is_at_rest(NOW + DAY)
    rated = Gate("pool", Limits(per_minute=60))
    rated.enter(ACCOUNT, NOW)
    rated.leave(ACCOUNT)
    rated.recorded()
    assert not rated.is_at_rest(NOW)
    assert rated.is_at_rest(NOW + 60 * SECOND)


def test_results_that_wait_for_the_disk_shut_the_gate() -> None:
    """As many as there are slots may wait; with each that is recorded one more may begin."""
    gate = Gate("pool", Limits(concurrency=2))
    for _ in range(2):
        assert gate.is_open(NOW)
        gate.enter(ACCOUNT, NOW)
    gate.leave(ACCOUNT)
    gate.leave(ACCOUNT)
    assert not gate.is_open(NOW)
    assert not gate.is_at_rest(NOW)
    gate.recorded()
    assert gate.is_open(NOW)
    gate.recorded()
    assert gate.is_at_rest(NOW)


# ---- as far as the evidence reaches

MINE, YOURS = Sender("acc_1", "a.test"), Sender("acc_2", "b.test")  # of an installation with several accounts


def test_a_wish_about_one_accounts_mail_slows_that_account() -> None:
    """A 421 within a transaction shuts the gate for the account whose mail it was, and nobody else."""
    gate = Gate("pool", Limits(concurrency=8))
    slow_down(gate, NOW, "421 4.7.26 unauthenticated", MINE)
    assert gate.is_open(NOW)
    assert not gate.lets_pass("acc_1", NOW)
    assert gate.lets_pass("acc_2", NOW)
    assert gate.throttle.slots == 8
    assert gate.slowed_accounts(NOW) == {"acc_1": (NOW + FIRST_PAUSE, "421 4.7.26 unauthenticated")}
    later = NOW + FIRST_PAUSE
    assert gate.lets_pass("acc_1", later)
    for _ in range(4):
        gate.enter("acc_1", later)
    assert not gate.lets_pass("acc_1", later)  # half the slots are its share
    assert gate.lets_pass("acc_2", later)


def test_a_wish_about_two_accounts_mail_slows_the_pool() -> None:
    """A second account that hears the same while the first waits makes it a wish about all mail."""
    gate = Gate("pool", Limits(concurrency=8))
    slow_down(gate, NOW, "421", MINE)
    slow_down(gate, NOW, "421", YOURS)
    assert not gate.is_open(NOW)
    assert gate.throttle.slots == 4


def test_a_wish_before_mail_slows_the_pool() -> None:
    """What a server says before it knows whose mail comes is about this machine."""
    gate = Gate("pool", Limits(concurrency=8))
    slow_down(gate, NOW, "421 too many connections", MINE, about_us=True)
    assert not gate.is_open(NOW)


def test_an_account_is_forgiven_with_its_deliveries() -> None:
    """What is delivered for an account brings its slots back, and then nothing is remembered of it."""
    gate = Gate("pool", Limits(concurrency=2))
    slow_down(gate, NOW, "421", MINE)
    assert not gate.is_at_rest(NOW)
    gate.delivered("acc_2")
    assert not gate.lets_pass("acc_1", NOW)
    gate.delivered("acc_1")
    gate.delivered("acc_1")
    assert gate.lets_pass("acc_1", NOW)
    assert gate.is_at_rest(NOW)


def test_refusals_of_one_account_among_several_hold_nothing() -> None:
    """However many there are, only that account waits, a quarter of an hour for each further message."""
    gate = Gate("pool", Limits(concurrency=8), shared=True)
    refuse(gate, "550 5.7.1 no", MINE, times=SENDER_FAULTS - 1)
    assert gate.lets_pass("acc_1", NOW)
    refuse(gate, "550 5.7.1 no", MINE, times=100)
    assert gate.hold_reason is None
    assert gate.is_open(NOW)
    assert gate.lets_pass("acc_2", NOW)
    assert not gate.lets_pass("acc_1", NOW + LONGEST_PAUSE - 1)
    after = NOW + LONGEST_PAUSE
    assert gate.lets_pass("acc_1", after)
    gate.enter("acc_1", after)
    assert not gate.lets_pass("acc_1", after)


def test_refusals_of_several_accounts_hold_the_pool() -> None:
    """Five from each of two are enough; one from a second account beside a hundred of the first are not."""
    gate = Gate("pool", Limits(), shared=True)
    refuse(gate, "550 5.7.1 no", MINE, times=100)
    refuse(gate, "550 5.7.1 no", YOURS, times=OF_ONE_ACCOUNT - 1)
    assert gate.hold_reason is None
    refuse(gate, "550 5.7.1 no", YOURS)
    assert gate.hold_reason == "10 refusals of us as a sender in a row, the last: 550 5.7.1 no"


def test_refusals_before_mail_hold_the_pool() -> None:
    """A server that refuses our address in its greeting speaks of us, whoever's mail it would have been."""
    gate = Gate("pool", Limits(), shared=True)
    refuse(gate, "554 5.7.1 blocked", MINE, about_us=True, times=SENDER_FAULTS)
    assert gate.hold_reason is not None


def test_one_domain_of_a_provider_is_not_the_provider() -> None:
    """For the only account, ten refusals hold a provider's pool if two domains are among them, else thirty do."""
    gate = Gate("pool", Limits(), shared=True)
    refuse(gate, "550 5.7.1 no", times=OF_ONE_DOMAIN - 1)
    assert not holds(gate)
    refuse(gate, "550 5.7.1 no")
    assert holds(gate)
    gate.reopen()
    assert not holds(gate)
    refuse(gate, "550 5.7.1 no", times=SENDER_FAULTS - 1)
    refuse(gate, "550 5.7.1 no", Sender(ACCOUNT, "b.test", only=True))
    assert holds(gate)


def test_slots_to_begin_with() -> None:
    """A gate may begin with few slots, and has all of them after some deliveries."""
    gate = Gate("pool", Limits(concurrency=8), start=2)
    assert entered(gate) == 2
    for _ in range(50):
        gate.delivered(ACCOUNT)
    assert gate.throttle.slots == 8
