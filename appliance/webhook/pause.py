"""In charge of holding posts back while all mail is paused: a restored installation must not tell old news."""

from dataclasses import dataclass

import trio

from appliance.store import Store
from appliance.telemetry.log import get_logger

LOOK_EVERY = 1.0  # seconds between two looks, however often somebody asks

log = get_logger("webhook")


@dataclass(slots=True)
class Pause:
    """Whether all mail is paused, as it was seen last."""

    store: Store
    on: bool = False
    _look_at: float = float("-inf")  # Trio's clock

    def holds(self) -> bool:
        """Whether nothing may be posted now."""
        now = trio.current_time()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            was, self.on = self.on, self.store.pools.paused() is not None
            if self.on and not was:
                log.warning("no events are posted while all mail is paused: `appliance resume` lets them go")
            elif was and not self.on:
                log.info("events are posted again")
        return self.on
