"""Warm-up of a new source address: how many recipients per hour each provider pool gets from it. No I/O.

Rules, per pool and source address:
- On day d, counted from 0, `first_hour * growth**d` recipients per hour are allowed, rounded down.
- They are spread over the hour; unused ones accumulate up to one part in BURST_PART.
- Only a day with mail counts; however far the clock jumps ahead, it is one day later.
- A clock that is set back never allows more, and delays nothing for longer than an hour.
- Mail with low priority leaves a tenth of the hour's recipients, and one of the burst, to other mail.
- After `days` days the warm-up is over.

Recipients are counted, as providers do, not messages. Those that did not reach a server are returned.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from appliance.config.settings import WarmupSettings
from appliance.times import DAY, HOUR

BURST_PART = 10  # a tenth of an hour's recipients at once, at least one
LEFT_PART = 10  # a tenth of an hour's recipients that mail with low priority leaves to other mail
MAX_HOURLY = 1_000_000_000  # recipients: no limit in practice


@lru_cache(maxsize=512)
def _recipients(first_hour: int, growth: float, day: int) -> int:
    return min(MAX_HOURLY, int(first_hour * Fraction(str(growth)) ** day))  # a float would lose one of 100 * 1.15


def hourly_limit(settings: WarmupSettings, day: int) -> int | None:
    """Return the recipients allowed per hour of this day; None after the warm-up."""
    return None if day >= settings.days else _recipients(settings.first_hour, settings.growth, day)


class WarmupPace(Struct, frozen=True):
    pool: str
    source: str
    day: int
    day_at: int  # start of that day
    sent: int  # recipients on that day
    hour_at: int  # start of the current hour
    used: int  # recipients in that hour
    rested_at: int  # when a full burst is available again

    def at(self, now: int) -> "WarmupPace":
        """Return the progress at another time. Store it even if nothing is sent, so that an hour does not restart with
        every call after the clock was set back.
        """
        if self.day_at <= now < self.day_at + DAY and self.hour_at <= now < self.hour_at + HOUR:
            return self
        here = self
        if now < here.day_at:  # the clock was ahead
            here = replace(here, day_at=now)
        elif now >= here.day_at + DAY:
            day_at = here.day_at + DAY if now < here.day_at + 2 * DAY else now
            here = replace(here, day=here.day + (1 if here.sent else 0), day_at=day_at, sent=0)
        if now < here.hour_at:
            return replace(here, hour_at=now, rested_at=min(here.rested_at, now + HOUR))
        passed = (now - here.hour_at) // HOUR
        return replace(here, hour_at=here.hour_at + passed * HOUR, used=0) if passed else here

    def room(self, settings: WarmupSettings, now: int, low: int = 0) -> int | None:
        """Return the recipients allowed now; None: unlimited. `low`: 1 for mail with low priority."""
        here = self.at(now)
        most = hourly_limit(settings, here.day)
        if most is None:
            return None
        missing = -(-here._rest(most, now) * most // HOUR)
        burst, left = _burst(most), low * (most // LEFT_PART)
        return max(0, min(burst - min(low, burst - 1) - missing, most - left - here.used))

    def take(self, settings: WarmupSettings, now: int, count: int) -> "WarmupPace":
        here = self.at(now)
        most = hourly_limit(settings, here.day)
        rested_at = now if most is None else now + here._rest(most, now) + count * HOUR // most
        return replace(here, sent=here.sent + count, used=here.used + count, rested_at=rested_at)

    def give_back(self, settings: WarmupSettings, taken_at: int, count: int) -> "WarmupPace":
        most = hourly_limit(settings, self.day)
        return replace(
            self,
            sent=max(0, self.sent - count) if taken_at >= self.day_at else self.sent,
            used=max(0, self.used - count) if taken_at >= self.hour_at else self.used,
            rested_at=self.rested_at - (0 if most is None else count * HOUR // most),
        )

    def next_at(self, settings: WarmupSettings, now: int) -> int:
        here = self.at(now)
        most = hourly_limit(settings, here.day)
        if most is None:
            return now
        paced = now + here._rest(most, now) - (_burst(most) - 1) * HOUR // most
        return max(now, paced, here.hour_at + HOUR if here.used >= most else now)

    def status(self, settings: WarmupSettings, now: int) -> "WarmupStatus | None":
        """Return the numbers to show; None before and after the warm-up."""
        here = self.at(now)
        most = hourly_limit(settings, here.day)
        if most is None or not (here.day or here.sent):
            return None
        at = self.next_at(settings, now)
        next_at = at if at > now else None
        return WarmupStatus(self.pool, self.source, here.day + 1, settings.days, most, here.used, next_at)

    def _rest(self, most: int, now: int) -> int:
        """Return the time until a full burst is available, at most that of one burst."""
        return min(max(0, self.rested_at - now), _burst(most) * HOUR // most)


class WarmupStatus(Struct, frozen=True):
    pool: str
    source: str
    day: int
    days: int
    per_hour: int
    used: int  # of this hour
    next_at: int | None  # None: now


def begin(pool: str, source: str, now: int) -> WarmupPace:
    return WarmupPace(pool, source, 0, now, 0, now, 0, now)


def statuses(settings: WarmupSettings, paces: Iterable[WarmupPace], now: int) -> Iterator[WarmupStatus]:
    for pace in paces:
        if applies_to(settings, pace.source) and (status := pace.status(settings, now)) is not None:
            yield status


def applies_to(settings: WarmupSettings, source: str) -> bool:
    """Return whether warm-up applies to an address: to all, unless the settings list some."""
    return not settings.addresses or any(source == str(address) for address in settings.addresses)


def _burst(most: int) -> int:
    return max(1, most // BURST_PART)
