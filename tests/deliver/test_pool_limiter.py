"""How much one pool may take: slots, rate, slowing down and coming back, and when to stop."""

from appliance.deliver.pool_limiter import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    OF_ONE_ACCOUNT,
    OF_ONE_DOMAIN,
    REPEATED,
    REPEATS_KEPT,
    SENDER_FAULTS,
    VERDICTS_KEPT_FOR,
    JudgedSender,
    PoolLimiter,
)
from appliance.deliver.providers import PoolLimits
from appliance.model.queue import SlowedAccount
from appliance.times import SECOND

NOW = 1_750_000_000 * SECOND
DAY = 86_400 * SECOND

ACCOUNT = "acc_1"
ONLY = JudgedSender(ACCOUNT, "a.test", only=True)  # of an installation with one account


def slow_down(
    limiter: PoolLimiter, now: int, reason: str, sender: JudgedSender = ONLY, *, about_us: bool = False
) -> None:
    limiter.slow_down(now, reason, sender, about_us=about_us)


def refuse(
    limiter: PoolLimiter, reason: str, sender: JudgedSender = ONLY, *, about_us: bool = False, times: int = 1
) -> None:
    for _ in range(times):
        limiter.refused_as_sender(NOW, reason, reason[:9], sender, about_us=about_us)


def holds(limiter: PoolLimiter) -> bool:
    return limiter.hold_reason is not None


def entered(limiter: PoolLimiter, now: int = NOW) -> int:
    count = 0
    while limiter.is_open(now) and count < 1_000:
        limiter.enter(ACCOUNT, now)
        count += 1
    return count


def test_slots_are_counted() -> None:
    """As many pass as there are slots, and one more for each that leaves."""
    limiter = PoolLimiter("pool", PoolLimits(concurrency=3))
    assert entered(limiter) == 3
    limiter.leave(ACCOUNT)
    limiter.unrecorded -= 1
    assert entered(limiter) == 1


def test_a_rate_is_kept() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=1_000, per_minute=60))
    assert entered(limiter) == 60
    assert entered(limiter, NOW + SECOND // 2) == 0
    assert entered(limiter, NOW + SECOND) == 1
    assert entered(limiter, NOW + 11 * SECOND) == 10


def test_nodes_share_the_limits() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=10, per_minute=2), nodes=lambda: 4)
    assert limiter.slots == 2
    limiter.enter("a", NOW)
    while limiter.has_token(NOW):
        limiter.enter("a", NOW)
    assert not limiter.is_open(NOW)
    assert limiter.has_token(NOW + 121 * SECOND)
    for _ in range(limiter.in_use):
        limiter.leave_unused("a")
    assert limiter.is_at_rest(NOW + 300 * SECOND)
    assert PoolLimiter("pool", PoolLimits(concurrency=2), nodes=lambda: 4).slots == 1
    assert PoolLimiter("google", PoolLimits(concurrency=10), shared=True, nodes=lambda: 4).slots == 10


def test_a_transaction_that_does_not_take_place_returns_its_token() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=10, per_minute=1))
    for moves_on in (True, False):
        limiter.enter("a", NOW)
        assert not limiter.has_token(NOW)
        if moves_on:
            limiter.leave_unused("a")
        else:
            limiter.leave("a")
            limiter.undo()
        assert limiter.has_token(NOW)
        assert (limiter.in_use, limiter.unrecorded) == (0, 0)
    limiter.enter("a", NOW)
    limiter.leave("a")
    assert not limiter.has_token(NOW)


def test_verdicts_are_forgotten_after_a_week() -> None:
    repeated, limiter = PoolLimiter("pool", PoolLimits()), PoolLimiter("pool", PoolLimits())
    repeated.repeats(NOW, ACCOUNT, (451, None), 1)
    refuse(limiter, "550 5.7.1 no", MINE, times=SENDER_FAULTS - 1)
    for forgetful in (repeated, limiter):
        assert not forgetful.is_at_rest(NOW + VERDICTS_KEPT_FOR - 1)
        assert forgetful.is_at_rest(NOW + VERDICTS_KEPT_FOR)
    limiter.refused_as_sender(NOW + VERDICTS_KEPT_FOR, "550 5.7.1 no", "550 5.7.1", YOURS, about_us=False)
    assert limiter.hold_reason is None
    assert limiter.lets_pass(MINE.account, NOW + VERDICTS_KEPT_FOR)


def test_a_wish_for_less_halves_and_pauses() -> None:
    """Half the slots after a pause; what is said during the pause counts once; the next pause is twice as long."""
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8))
    slow_down(limiter, NOW, "421 slow down")
    slow_down(limiter, NOW + 1, "421 slow down, I said")
    assert not limiter.is_open(NOW + FIRST_PAUSE - 1)
    assert limiter.throttle.slots == 4
    again = NOW + FIRST_PAUSE
    assert limiter.is_open(again)
    slow_down(limiter, again, "421 again")
    assert limiter.throttle.slots == 2
    assert not limiter.is_open(again + 2 * FIRST_PAUSE - 1)
    assert limiter.is_open(again + 2 * FIRST_PAUSE)


def test_pauses_have_an_end() -> None:
    limiter, now = PoolLimiter("pool", PoolLimits(concurrency=8)), NOW
    for _ in range(20):
        slow_down(limiter, now, "421")
        assert limiter.throttle.slowed_until - now <= LONGEST_PAUSE
        now = limiter.throttle.slowed_until
    assert limiter.throttle.slots == 1
    assert limiter.is_open(now)


def test_deliveries_bring_the_slots_back() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=4))
    slow_down(limiter, NOW, "421")
    slow_down(limiter, NOW + FIRST_PAUSE, "421")
    assert limiter.throttle.slots == 1
    limiter.delivered(ACCOUNT)
    assert limiter.throttle.slots == 2
    for _ in range(10):
        limiter.delivered(ACCOUNT)
    assert limiter.throttle.slots == 4
    assert limiter.throttle.slowed_by is None
    later = NOW + DAY
    slow_down(limiter, later, "421")
    assert limiter.throttle.slowed_until == later + FIRST_PAUSE


def test_a_clock_set_back_does_not_stop_the_pool() -> None:
    """A pause that would end in two days is a clock that was set back by two days."""
    limiter = PoolLimiter("pool", PoolLimits(concurrency=4, per_minute=60))
    limiter.enter(ACCOUNT, NOW)
    limiter.leave(ACCOUNT)
    limiter.unrecorded -= 1
    slow_down(limiter, NOW, "421")
    assert limiter.is_open(NOW - 2 * DAY)
    slow_down(limiter, NOW - 2 * DAY, "421")
    assert not limiter.is_open(NOW - 2 * DAY)
    assert limiter.is_open(NOW - 2 * DAY + LONGEST_PAUSE)


def test_refusals_in_a_row_are_a_reason_to_hold() -> None:
    limiter = PoolLimiter("pool", PoolLimits())
    for _ in range(SENDER_FAULTS - 1):
        refuse(limiter, "550 5.7.1 no")
    limiter.delivered(ACCOUNT)
    for _ in range(SENDER_FAULTS - 1):
        refuse(limiter, "550 5.7.1 no")
    assert limiter.is_open(NOW)
    refuse(limiter, "550 5.7.1 never")
    assert limiter.hold_reason == "10 refusals in a row of mail from this server, the last with 550 5.7.1"
    assert not limiter.is_open(NOW)
    limiter.reopen()
    assert limiter.is_open(NOW)


def test_a_pool_at_rest_has_nothing_to_remember() -> None:
    limiter = PoolLimiter("pool", PoolLimits())
    assert limiter.is_at_rest(NOW)
    limiter.enter(ACCOUNT, NOW)
    assert not limiter.is_at_rest(NOW)
    limiter.leave(ACCOUNT)
    limiter.unrecorded -= 1
    assert limiter.is_at_rest(NOW)
    refuse(limiter, "550 5.7.1 no")
    assert not limiter.is_at_rest(NOW)
    limiter.delivered(ACCOUNT)
    slow_down(limiter, NOW, "421")
    assert not limiter.is_at_rest(NOW + FIRST_PAUSE)
    assert limiter.is_at_rest(NOW + DAY)
    rated = PoolLimiter("pool", PoolLimits(per_minute=60))
    rated.enter(ACCOUNT, NOW)
    rated.leave(ACCOUNT)
    rated.unrecorded -= 1
    assert not rated.is_at_rest(NOW)
    assert rated.is_at_rest(NOW + 60 * SECOND)


def test_results_that_wait_for_the_disk_stop_the_pool() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=2))
    for _ in range(2):
        assert limiter.is_open(NOW)
        limiter.enter(ACCOUNT, NOW)
    limiter.leave(ACCOUNT)
    limiter.leave(ACCOUNT)
    assert not limiter.is_open(NOW)
    assert not limiter.is_at_rest(NOW)
    limiter.unrecorded -= 1
    assert limiter.is_open(NOW)
    limiter.unrecorded -= 1
    assert limiter.is_at_rest(NOW)


# ---- as far as the evidence reaches

MINE, YOURS = (
    JudgedSender("acc_1", "a.test"),
    JudgedSender("acc_2", "b.test"),
)  # of an installation with several accounts


def test_a_wish_about_one_accounts_mail_slows_that_account() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8))
    slow_down(limiter, NOW, "421 4.7.26 unauthenticated", MINE)
    assert limiter.is_open(NOW)
    assert not limiter.lets_pass("acc_1", NOW)
    assert limiter.lets_pass("acc_2", NOW)
    assert limiter.throttle.slots == 8
    slowed = SlowedAccount("acc_1", NOW + FIRST_PAUSE, "421 4.7.26 unauthenticated", slots=4)
    assert limiter.slowed_accounts(NOW) == [slowed]
    later = NOW + FIRST_PAUSE
    assert limiter.lets_pass("acc_1", later)
    assert limiter.slowed_accounts(later) == []
    for _ in range(4):
        limiter.enter("acc_1", later)
    assert not limiter.lets_pass("acc_1", later)  # half the slots are its share
    assert limiter.slowed_accounts(later) == [slowed]
    assert limiter.lets_pass("acc_2", later)


def test_a_wish_about_two_accounts_mail_slows_the_pool() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8))
    slow_down(limiter, NOW, "421", MINE)
    slow_down(limiter, NOW, "421", YOURS)
    assert not limiter.is_open(NOW)
    assert limiter.throttle.slots == 4


def test_a_wish_before_mail_slows_the_pool() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8))
    slow_down(limiter, NOW, "421 too many connections", MINE, about_us=True)
    assert not limiter.is_open(NOW)


def test_an_account_is_forgiven_with_its_deliveries() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=2))
    slow_down(limiter, NOW, "421", MINE)
    assert not limiter.is_at_rest(NOW)
    limiter.delivered("acc_2")
    assert not limiter.lets_pass("acc_1", NOW)
    limiter.delivered("acc_1")
    limiter.delivered("acc_1")
    assert limiter.lets_pass("acc_1", NOW)
    assert limiter.is_at_rest(NOW)


def test_refusals_of_one_account_among_several_hold_nothing() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8), shared=True)
    refuse(limiter, "550 5.7.1 no", MINE, times=SENDER_FAULTS - 1)
    assert limiter.lets_pass("acc_1", NOW)
    refuse(limiter, "550 5.7.1 no", MINE, times=100)
    assert limiter.hold_reason is None
    assert limiter.is_open(NOW)
    assert limiter.lets_pass("acc_2", NOW)
    assert not limiter.lets_pass("acc_1", NOW + LONGEST_PAUSE - 1)
    after = NOW + LONGEST_PAUSE
    assert limiter.lets_pass("acc_1", after)
    limiter.enter("acc_1", after)
    assert not limiter.lets_pass("acc_1", after)


def test_refusals_of_several_accounts_hold_the_pool() -> None:
    limiter = PoolLimiter("pool", PoolLimits(), shared=True)
    refuse(limiter, "550 5.7.1 no", MINE, times=100)
    refuse(limiter, "550 5.7.1 no", YOURS, times=OF_ONE_ACCOUNT - 1)
    assert limiter.hold_reason is None
    refuse(limiter, "550 5.7.1 no", YOURS)
    assert limiter.hold_reason == "10 refusals in a row of mail from this server, the last with 550 5.7.1"


def test_refusals_before_mail_hold_the_pool() -> None:
    """A server that refuses our address in its greeting speaks of us, not of the mail it would have got."""
    limiter = PoolLimiter("pool", PoolLimits(), shared=True)
    refuse(limiter, "554 5.7.1 blocked", MINE, about_us=True, times=SENDER_FAULTS)
    assert limiter.hold_reason is not None


def test_one_domain_of_a_provider_is_not_the_provider() -> None:
    limiter = PoolLimiter("pool", PoolLimits(), shared=True)
    refuse(limiter, "550 5.7.1 no", times=OF_ONE_DOMAIN - 1)
    assert not holds(limiter)
    refuse(limiter, "550 5.7.1 no")
    assert holds(limiter)
    limiter.reopen()
    assert not holds(limiter)
    refuse(limiter, "550 5.7.1 no", times=SENDER_FAULTS - 1)
    refuse(limiter, "550 5.7.1 no", JudgedSender(ACCOUNT, "b.test", only=True))
    assert holds(limiter)


def test_slots_to_begin_with() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8), start=2)
    assert entered(limiter) == 2
    for _ in range(50):
        limiter.delivered(ACCOUNT)
    assert limiter.throttle.slots == 8


# ---- verdicts without a reason, and what an operator lifts


def test_a_verdict_is_repeated_by_two_recipients_of_one_account() -> None:
    """The same recipient twice, another verdict and another account's recipient do not count; a delivery ends it."""
    limiter, verdict = PoolLimiter("pool", PoolLimits()), (451, "4.7.1")
    assert not limiter.repeats(NOW, ACCOUNT, verdict, 1)
    assert not limiter.repeats(NOW, ACCOUNT, verdict, 1)
    assert not limiter.repeats(NOW, ACCOUNT, (450, None), 2)
    assert not limiter.repeats(NOW, "acc_2", verdict, 2)
    limiter.delivered("acc_2")
    assert limiter.repeats(NOW, ACCOUNT, verdict, 2)
    assert limiter.repeats(NOW, ACCOUNT, verdict, 3)
    limiter.delivered(ACCOUNT)
    assert not limiter.repeats(NOW, ACCOUNT, verdict, 4)


def test_the_memory_of_repeated_verdicts_is_bounded() -> None:
    """A server chooses codes and statuses, and an account its recipients."""
    limiter = PoolLimiter("pool", PoolLimits())
    for number in range(1_000):
        limiter.repeats(NOW, ACCOUNT, (451, f"4.7.{number}"), number)
        limiter.repeats(NOW, ACCOUNT, (450, None), number)
    (verdicts,) = limiter._repeats.values()
    assert len(verdicts) <= REPEATS_KEPT
    assert all(len(recipients) <= REPEATED for recipients in verdicts.values())


def test_an_operator_lifts_everything() -> None:
    limiter = PoolLimiter("pool", PoolLimits(concurrency=8))
    for pause in range(4):
        slow_down(limiter, NOW + pause * DAY, "slower")
    slow_down(limiter, NOW + 4 * DAY, "slower", JudgedSender("acc_2", "a.test"))
    refuse(limiter, "no", about_us=True, times=SENDER_FAULTS)
    limiter.lift()
    assert limiter.is_open(NOW + 3 * DAY)
    assert (limiter.slots, limiter.hold_reason, limiter.slowed_accounts(NOW + 4 * DAY)) == (8, None, [])
    slow_down(limiter, NOW + 5 * DAY, "slower")
    assert limiter.throttle.slowed_until == NOW + 5 * DAY + FIRST_PAUSE
    few = PoolLimiter("mx.example.net", PoolLimits(concurrency=8), start=2)
    few.lift()
    assert few.slots == 2
