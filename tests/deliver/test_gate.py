"""How much one pool may take: slots, rate, slowing down and coming back, and when to stop."""

from appliance.deliver.gate import FIRST_PAUSE, LONGEST_PAUSE, SECOND, SENDER_FAULTS, Gate, Sender
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
