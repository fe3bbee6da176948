"""The suggestions of the ramp, by the table of docs/ramp.md, and what `auto` makes of them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from appliance.config.load import parse
from appliance.model.ramp import (
    OTHER_PROVIDERS,
    Action,
    RampFigures,
    RampHour,
    RampPlan,
    Standing,
    Suggestion,
    Via,
    adjusted,
    compared,
    sources_in_use,
    suggestion,
)
from appliance.model.sources import configured_sources
from appliance.times import DAY, HOUR

NOW = 20_000 * DAY
GOOD = RampFigures("google", Via.DIRECT, delivered=1_000, busiest_hour=100)
RELAY = RampFigures("google", Via.RELAY, delivered=9_000, bounced=90, deferred=90, busiest_hour=900)
STANDING = Standing("google", 20, 0, GOOD, RELAY, busiest_hour=1_000)

CASES = {
    "changed just now": (replace(STANDING, changed_at=NOW - HOUR + 1, held="blocked"), Action.HOLD, 20),
    "held": (replace(STANDING, held="blocked"), Action.LOWER, 10),
    "complaints": (replace(STANDING, direct=replace(GOOD, complaints=4)), Action.LOWER, 10),
    "few complaints": (replace(STANDING, direct=replace(GOOD, complaints=2)), Action.HOLD, 20),
    "bounces": (replace(STANDING, direct=replace(GOOD, delivered=950, bounced=50)), Action.LOWER, 10),
    "failures count": (replace(STANDING, direct=replace(GOOD, delivered=950, failed=50)), Action.LOWER, 10),
    "some bounces": (replace(STANDING, direct=replace(GOOD, delivered=975, bounced=25)), Action.HOLD, 20),
    "as many bounces as the relay": (replace(STANDING, direct=replace(GOOD, bounced=10)), Action.RAISE, 35),
    "a relay without results": (
        replace(STANDING, relay=replace(RELAY, delivered=10, bounced=0), direct=replace(GOOD, bounced=25)),
        Action.RAISE,
        35,
    ),
    "deferrals": (replace(STANDING, direct=replace(GOOD, deferred=400)), Action.LOWER, 10),
    "only deferrals": (replace(STANDING, direct=replace(GOOD, delivered=0, deferred=50)), Action.LOWER, 10),
    "some deferrals": (replace(STANDING, direct=replace(GOOD, deferred=100)), Action.HOLD, 20),
    "complete": (replace(STANDING, percent=100), Action.HOLD, 100),
    "complete, and bad": (replace(STANDING, percent=100, held="blocked"), Action.LOWER, 75),
    "the lowest step": (replace(STANDING, percent=3, held="blocked"), Action.LOWER, 0),
    "changed today": (replace(STANDING, changed_at=NOW - DAY + 1), Action.HOLD, 20),
    "nothing goes direct": (Standing("", 0, 0, RampFigures("", Via.DIRECT), RELAY), Action.RAISE, 5),
    "nothing goes direct, after a hold": (replace(STANDING, percent=0, held="blocked"), Action.RAISE, 5),
    "few results": (replace(STANDING, direct=replace(GOOD, delivered=49)), Action.HOLD, 20),
    "warm-up": (replace(STANDING, hourly_limit=349), Action.HOLD, 20),
    "warm-up with room": (replace(STANDING, hourly_limit=350), Action.RAISE, 35),
    "good": (STANDING, Action.RAISE, 35),
    "between two steps": (replace(STANDING, percent=25), Action.RAISE, 35),
    "a clock that was set back": (replace(STANDING, changed_at=NOW + DAY), Action.RAISE, 35),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_rule_that_applies_decides(name: str) -> None:
    standing, action, percent = CASES[name]
    made = suggestion(standing, NOW)
    assert (made.action, made.percent) == (action, percent), made.reason


def hour(provider: str, route: Via, ago: int, **counts: int) -> RampHour:
    return RampHour(NOW // HOUR - ago, RampFigures(provider, route, **counts, busiest_hour=counts.get("delivered", 0)))


def test_only_hours_after_the_last_change_count() -> None:
    """A lowered percentage is not lowered again for the results that it was lowered for."""
    bad = [hour("google", Via.DIRECT, ago, bounced=100) for ago in (5, 6, 7)]
    plan = RampPlan(20)
    assert compared(plan, bad, {}, {}, NOW).suggestions[0].action is Action.LOWER
    changed = plan.having("", 10, NOW - 5 * HOUR)
    assert compared(changed, bad, {}, {}, NOW).suggestions[0].action is Action.HOLD


def test_a_provider_with_its_own_percentage_is_judged_alone() -> None:
    rows = [hour("google", Via.DIRECT, 2, bounced=100), hour(OTHER_PROVIDERS, Via.DIRECT, 2, delivered=100)]
    plan = RampPlan(20, {"google": 5})
    made = {each.provider: (each.action, each.percent) for each in compared(plan, rows, {}, {}, NOW).suggestions}
    assert made == {"": (Action.RAISE, 35), "google": (Action.LOWER, 0)}


@pytest.mark.parametrize(("limit", "expected"), [(69, Action.HOLD), (70, Action.RAISE)])
def test_the_tightest_warm_up_limits_all(limit: int, expected: Action) -> None:
    """The next step of 35 % of yahoo's 200 recipients an hour; google has more mail and more room."""
    rows = [hour("yahoo", via, 2, delivered=100) for via in Via] + [hour("google", Via.RELAY, 2, delivered=900)]
    limits = {"yahoo": limit, "google": 1_000}
    assert compared(RampPlan(20), rows, {}, limits, NOW).suggestions[0].action is expected


def test_auto_gives_a_provider_its_own_percentage_until_it_has_caught_up() -> None:
    plan = RampPlan(20, auto=True)
    lowered = adjusted(plan, [Suggestion("google", Action.LOWER, 10, "bad")], NOW)
    assert (lowered.percent, lowered.providers, lowered.changed_at) == (20, {"google": 10}, {"google": NOW})
    assert lowered.reason == "google: 20 % to 10 %, because bad"
    raised = adjusted(lowered, [Suggestion("google", Action.RAISE, 20, "good")], NOW + DAY)
    assert (raised.percent, raised.providers) == (20, {})


def test_auto_changes_all_others_together() -> None:
    plan = RampPlan(20, {"google": 5}, auto=True)
    made = adjusted(
        plan, [Suggestion("", Action.RAISE, 35, "good"), Suggestion("yahoo", Action.RAISE, 35, "good")], NOW
    )
    assert (made.percent, made.providers) == (35, {"google": 5})
    assert adjusted(plan, [Suggestion("", Action.HOLD, 20, "wait")], NOW) == plan


RELAYED = """
[server]
hostname = "mail.example.com"
[delivery]
mode = "relay"
relay_host = "smtp.example.org"
[delivery.sources.news]
ipv4 = "192.0.2.1"
[delivery.streams.digest]
sources = ["news"]
"""


def test_sources_are_in_use_once_a_share_goes_direct() -> None:
    """All mail goes by the relay without a ramp: sources that are out then delay none of it."""
    path = Path("/srv/config.toml")
    config, direct = parse(RELAYED, path), parse(RELAYED.replace('"relay"', '"direct"'), path)
    assert sources_in_use(config, None) is None
    assert sources_in_use(config, RampPlan(5)) == sources_in_use(direct, None) == configured_sources(config)
