"""The warm-up of a sending address by itself: how much may go when, on a clock that is moved by hand."""

from ipaddress import ip_address

import pytest

from appliance.config.settings import WarmupSettings
from appliance.model.warmup import BURST_PART, WarmupPace, begin, hourly_limit, statuses
from appliance.times import DAY, HOUR, MINUTE

ON = WarmupSettings(enabled=True)
START = 1_750_000_000_000_000


def sent(pace: WarmupPace, now: int, settings: WarmupSettings = ON) -> tuple[WarmupPace, int]:
    pace = pace.at(now)
    count = pace.room(settings, now)
    assert count is not None
    return (pace.take(settings, now, count) if count else pace), count


def eager(pace: WarmupPace, start: int, hours: int, settings: WarmupSettings = ON) -> tuple[WarmupPace, list[int]]:
    gone = [0] * hours
    for minute in range(60 * hours):
        pace, count = sent(pace, start + minute * MINUTE, settings)
        gone[minute // 60] += count
    return pace, gone


# ---- the plan


@pytest.mark.parametrize(
    ("day", "recipients"),
    [(0, 20), (1, 28), (2, 39), (3, 54), (4, 76), (6, 150), (9, 413), (13, 1587), (20, 16_733), (29, 345_734)],
)
def test_each_day_has_its_recipients_an_hour(day: int, recipients: int) -> None:
    assert hourly_limit(ON, day) == recipients


def test_after_the_last_day_there_is_no_limit() -> None:
    assert hourly_limit(ON, 30) is None
    over = WarmupPace("google", "192.0.2.1", 29, START, 1, START, 20, START)
    assert over.room(ON, START + DAY) is None
    assert over.next_at(ON, START + DAY) == START + DAY
    assert over.take(ON, START + DAY, 1_000_000).room(ON, START + DAY) is None


def test_growth_is_exact_and_bounded() -> None:
    assert hourly_limit(WarmupSettings(first_hour=100, growth=1.15), 1) == 115
    assert hourly_limit(WarmupSettings(first_hour=1_000_000, growth=3.0, days=365), 364) == 1_000_000_000


# ---- an hour


def test_an_hour_is_spread() -> None:
    pace, gone = begin("google", "192.0.2.1", START), []
    for minute in range(60):
        pace, count = sent(pace, START + minute * MINUTE)
        gone.append(count)
    assert gone[0] == 2
    assert gone[1:55] == [0, 0, 1] * 18
    assert gone[55:] == [0] * 5
    pace, count = sent(pace, START + HOUR)
    assert count == 2  # a new hour, and a burst has gathered since the 54th minute


def test_what_is_not_used_is_lost() -> None:
    pace = begin("google", "192.0.2.1", START).take(ON, START, 1)
    assert pace.room(ON, START + 5 * HOUR + MINUTE) == 20 // BURST_PART


def test_it_says_when_the_next_may_go() -> None:
    """Not a microsecond early or late: within an hour by the pace, and when the hour is used up at its end."""
    pace = begin("google", "192.0.2.1", START).take(ON, START, 2)
    at = pace.next_at(ON, START)
    assert at == START + 3 * MINUTE
    assert (pace.room(ON, at - 1), pace.room(ON, at)) == (0, 1)
    used, gone = eager(begin("google", "192.0.2.1", START), START, 1)
    assert gone == [20]
    assert used.next_at(ON, START + 59 * MINUTE) == START + HOUR
    assert (used.room(ON, START + HOUR - 1), used.room(ON, START + HOUR)) == (0, 2)


def test_what_did_not_go_is_given_back() -> None:
    pace = begin("google", "192.0.2.1", START).take(ON, START, 2)
    assert pace.give_back(ON, START, 1).room(ON, START) == 1
    assert pace.give_back(ON, START, 2) == begin("google", "192.0.2.1", START)
    later = pace.take(ON, START + HOUR, 2)
    assert later.give_back(ON, START, 2).used == 2


# ---- days


def test_a_sender_with_endless_mail_gets_what_each_day_allows() -> None:
    _, gone = eager(begin("google", "192.0.2.1", START), START, 4 * 24)
    days = [set(gone[24 * day : 24 * day + 24]) for day in range(4)]
    assert days == [{20}, {28}, {39}, {54}]


def test_days_without_mail_make_an_address_no_warmer() -> None:
    pace = begin("google", "192.0.2.1", START).take(ON, START, 1)
    late = pace.take(ON, START + 7 * DAY, 1)
    assert (late.day, late.day_at) == (1, START + 7 * DAY)
    nothing = pace.give_back(ON, START, 1).take(ON, START + DAY, 1)
    assert nothing.day == 0


# ---- clocks


@pytest.mark.parametrize("leap", [HOUR, DAY, 29 * DAY, 365 * DAY])
def test_a_clock_that_leaps_ahead_makes_no_burst(leap: int) -> None:
    pace, _ = eager(begin("google", "192.0.2.1", START), START, 1)
    after, count = sent(pace, START + HOUR + leap)
    assert after.day <= 1
    assert count <= 28 // BURST_PART
    _, gone = eager(after, START + HOUR + leap + MINUTE, 1)
    assert count + gone[0] <= 28 + 28 // BURST_PART


@pytest.mark.parametrize("leap", [MINUTE, HOUR, DAY, 365 * DAY])
def test_a_clock_that_is_set_back_neither_makes_a_burst_nor_stops_mail(leap: int) -> None:
    pace, _ = eager(begin("google", "192.0.2.1", START), START, 1)
    back = START + HOUR - leap
    assert pace.room(ON, back) == 0
    assert pace.next_at(ON, back) <= back + HOUR
    _, gone = eager(pace, back, 3)
    assert max(gone) <= 20
    assert min(gone[1:]) >= 20 - 20 // BURST_PART


def test_a_clock_that_was_years_ahead_costs_one_day() -> None:
    pace = begin("google", "192.0.2.1", START).take(ON, START, 1)
    ahead = pace.take(ON, START + 365 * DAY, 1)
    home = ahead.take(ON, START + HOUR, 1)
    assert (home.day, home.day_at) == (1, START + HOUR)
    assert home.take(ON, START + HOUR + DAY, 1).day == 2


# ---- what is told


def test_a_warm_up_is_told_in_plain_numbers() -> None:
    pace = begin("google", "192.0.2.1", START).take(ON, START, 2)
    (told,) = statuses(ON, [pace], START)
    assert (told.pool, told.source, told.day, told.days, told.per_hour, told.used) == (
        "google",
        "192.0.2.1",
        1,
        30,
        20,
        2,
    )
    assert told.next_at == START + 3 * MINUTE
    (later,) = statuses(ON, [pace], START + DAY)
    assert (later.day, later.per_hour, later.used, later.next_at) == (2, 28, 0, None)


def test_only_what_is_under_way_is_told() -> None:
    fresh = begin("google", "192.0.2.1", START)
    warm = WarmupPace("google", "192.0.2.1", 30, START, 1, START, 1, START)
    assert list(statuses(ON, [fresh, warm], START)) == []
    others = WarmupSettings(enabled=True, addresses=(ip_address("2001:db8::1"),))
    assert list(statuses(others, [fresh.take(ON, START, 1)], START)) == []
    assert len(list(statuses(others, [begin("google", "2001:db8::1", START).take(ON, START, 1)], START))) == 1


@pytest.mark.parametrize("per_hour", [1, 12, 20, 100, 5_000])
def test_a_newsletter_leaves_something_for_a_login_code(per_hour: int) -> None:
    """It takes all that it may, and other mail always finds room, except where a burst is one recipient."""
    settings = WarmupSettings(enabled=True, first_hour=per_hour)
    pace, refused = begin("a", "192.0.2.1", 0), 0
    for now in range(0, 23 * HOUR, MINUTE):
        if room := pace.room(settings, now, low=1):
            pace = pace.take(settings, now, room)
        refused += not pace.room(settings, now)
        assert pace.at(now).used <= per_hour - per_hour // 10
    assert pace.sent >= 23 * per_hour * 0.85 - 1
    assert (refused == 0) == (per_hour >= 20)
