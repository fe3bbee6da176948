"""Limits how fast one credential may call: a token bucket each, with a burst of twice the rate unless one is given."""

import math
from dataclasses import dataclass, field

from appliance.errors import Code, Refused
from appliance.outside import Outside
from appliance.times import SECOND

BUCKETS = 10_000  # kept at most; the longest unused go first, and those are full again anyway


@dataclass(slots=True)
class RequestRate:
    """Requests a second for each credential; 0 turns it off."""

    per_second: float
    outside: Outside
    burst: float | None = None  # at once; None: twice the rate
    refusal: str = "This credential may call {rate:g} times a second. Slow down and retry."
    _buckets: dict[str, tuple[float, int]] = field(default_factory=dict)  # tokens left, when that was true

    def take(self, credential: str) -> None:
        """Count one request, or refuse it and say when there is room again."""
        if self.per_second == 0:
            return
        now, burst = self.outside.now(), 2.0 * self.per_second if self.burst is None else self.burst
        tokens, then = self._buckets.pop(credential, (burst, now))
        tokens = min(burst, tokens + max(0, now - then) / SECOND * self.per_second)
        allowed = tokens >= 1
        self._buckets[credential] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        if not allowed:
            raise Refused(
                Code.RATE_LIMITED,
                self.refusal.format(rate=self.per_second),
                retry_after=math.ceil((1 - tokens) / self.per_second),
            )
