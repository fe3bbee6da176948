"""In charge of the warm-up of a new sending address: how much of it a provider may see, hour by hour. PURE.

Rules, for each pool and source address by itself:
- on day d, counted from 0, `first_hour * growth**d` recipients may go in an hour, rounded down;
- they are spread over the hour: what is not used gathers up to BURST of it, no more;
- only a day on which mail went makes the address warmer, and however far the clock leaps, it is one day later;
- a clock that was set back never lets more go, and keeps nothing back for longer than an hour;
- after `days` days it is over, and nothing is held back any more.

Recipients are counted, as providers do, and not messages. What did not reach a server is given back.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from appliance.config.settings import WarmupSettings
from appliance.times import DAY, HOUR

BURST = 10  # a tenth of an hour's recipients may go at once, but always one
MOST = 1_000_000_000  # recipients an hour: more than anybody sends


@lru_cache(maxsize=512)
def _recipients(first_hour: int, growth: float, day: int) -> int:
    return min(MOST, int(first_hour * Fraction(str(growth)) ** day))  # a float would lose one of 100 * 1.15


def hourly(settings: WarmupSettings, day: int) -> int | None:
    """How many recipients may go in an hour of this day; None when it is over."""
    return None if day >= settings.days else _recipients(settings.first_hour, settings.growth, day)


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the warm-up of one address has come at one pool."""

    pool: str
    source: str
    day: int
    day_at: int  # when that day began
    sent: int  # recipients on that day
    hour_at: int  # when the hour began that is counted
    used: int  # recipients in that hour
    rested_at: int  # when a burst may go again, if nothing goes until then

    def at(self, now: int) -> "Pace":
        """The same at another time: in another hour, on another day. Whoever asks in vain keeps it, too.

        Else the hour of a clock that was set back would begin anew with every question.
        """
        if self.day_at <= now < self.day_at + DAY and self.hour_at <= now < self.hour_at + HOUR:
            return self
        return self._on_day(now)._in_hour(now)

    def room(self, settings: WarmupSettings, now: int) -> int | None:
        """How many recipients may go at this moment; None: as many as there are."""
        here = self.at(now)
        most = hourly(settings, here.day)
        if most is None:
            return None
        missing = -(-here._rest(most, now) * most // HOUR)
        return max(0, min(_burst(most) - missing, most - here.used))

    def take(self, settings: WarmupSettings, now: int, count: int) -> "Pace":
        """So many go."""
        here = self.at(now)
        most = hourly(settings, here.day)
        rested_at = now if most is None else now + here._rest(most, now) + count * HOUR // most
        return replace(here, sent=here.sent + count, used=here.used + count, rested_at=rested_at)

    def give_back(self, settings: WarmupSettings, taken_at: int, count: int) -> "Pace":
        """So many of those taken at that time did not go after all."""
        most = hourly(settings, self.day)
        return replace(
            self,
            sent=max(0, self.sent - count) if taken_at >= self.day_at else self.sent,
            used=max(0, self.used - count) if taken_at >= self.hour_at else self.used,
            rested_at=self.rested_at - (0 if most is None else count * HOUR // most),
        )

    def next_at(self, settings: WarmupSettings, now: int) -> int:
        """When at least one may go; `now` if that is already so."""
        here = self.at(now)
        most = hourly(settings, here.day)
        if most is None:
            return now
        paced = now + here._rest(most, now) - (_burst(most) - 1) * HOUR // most
        return max(now, paced, here.hour_at + HOUR if here.used >= most else now)

    def told(self, settings: WarmupSettings, now: int) -> "Warming | None":
        """It in plain numbers, as it is now; None when it is over or has never begun."""
        here = self.at(now)
        most = hourly(settings, here.day)
        if most is None or not (here.day or here.sent):
            return None
        next_at = self.next_at(settings, now)
        return Warming(
            self.pool, self.source, here.day + 1, settings.days, most, here.used, next_at if next_at > now else None
        )

    def _on_day(self, now: int) -> "Pace":
        if now < self.day_at:  # the clock was ahead
            return replace(self, day_at=now)
        if now < self.day_at + DAY:
            return self
        begun = self.day_at + DAY if now < self.day_at + 2 * DAY else now
        return replace(self, day=self.day + (1 if self.sent else 0), day_at=begun, sent=0)

    def _in_hour(self, now: int) -> "Pace":
        if now < self.hour_at:
            return replace(self, hour_at=now, rested_at=min(self.rested_at, now + HOUR))
        passed = (now - self.hour_at) // HOUR
        return replace(self, hour_at=self.hour_at + passed * HOUR, used=0) if passed else self

    def _rest(self, most: int, now: int) -> int:
        """How long until a burst may go again: never longer than one takes to gather, whatever the clock did."""
        return min(max(0, self.rested_at - now), _burst(most) * HOUR // most)


@dataclass(frozen=True, slots=True)
class Warming:
    """A warm-up as people are told of it; days are counted from 1."""

    pool: str
    source: str
    day: int
    days: int
    per_hour: int
    used: int  # of this hour
    next_at: int | None  # when more may go; None: now


def begin(pool: str, source: str, now: int) -> Pace:
    """An address that this pool has not seen yet."""
    return Pace(pool, source, 0, now, 0, now, 0, now)


def all_told(settings: WarmupSettings, paces: Iterable[Pace], now: int) -> Iterator[Warming]:
    """Those that are under way, of the addresses that it is for."""
    for pace in paces:
        if is_for(settings, pace.source) and (told := pace.told(settings, now)) is not None:
            yield told


def is_for(settings: WarmupSettings, source: str) -> bool:
    """Whether an address is to be warmed up: all are, unless the settings name some."""
    return not settings.addresses or any(source == str(address) for address in settings.addresses)


def _burst(most: int) -> int:
    return max(1, most // BURST)
