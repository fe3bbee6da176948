"""In charge of judging the warm-up of sending addresses: nothing is wrong with it, but who waits should know. PURE."""

from collections.abc import Sequence

from appliance.doctor.finding import Finding, ok
from appliance.model.warmup import WarmupStatus
from appliance.report.explain import clock

LINES = 20  # there may be a pool for every domain that got mail


def judge_warmups(warmups: Sequence[WarmupStatus], now: int) -> list[Finding]:
    """A line for each pool and address, the first ones; the others are counted."""
    found = [ok("warmup", f"{each.pool} from {each.source}", _standing(each, now)) for each in warmups[:LINES]]
    if len(warmups) > LINES:
        found.append(ok("warmup", "other pools", f"{len(warmups) - LINES} more are being warmed up"))
    return found


def _standing(warmup: WarmupStatus, now: int) -> str:
    waits = "" if warmup.next_at is None else f"; next at {clock(warmup.next_at, now)}"
    return f"day {warmup.day} of {warmup.days}: {warmup.per_hour} an hour, {warmup.used} used{waits}"
