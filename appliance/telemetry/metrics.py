"""In charge of what is counted while the program works: cheap enough for the way of every message.

A count is one entry of a dict, a measurement one search in a short tuple and two additions: well under a microsecond.
Nothing here is locked: each of these is changed by one thread only. `metrics/` turns them into a page for Prometheus.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from appliance.model.warmup import Warming

# Seconds, from a fast commit to a server that lets one wait.
LATENCIES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# Seconds, from the moment to the two days after which mail is given up.
DELIVERY_TIMES: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0, 172800.0)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)


class Counts:
    """How often something happened, by its labels: a value for one label, a tuple of them for several."""

    __slots__ = ("about", "labels", "name", "values")

    def __init__(self, name: str, labels: tuple[str, ...], about: str) -> None:
        self.name, self.labels, self.about = name, labels, about
        self.values: dict[Hashable, int] = {}

    def add(self, key: Hashable, amount: int = 1) -> None:
        """Count it."""
        values = self.values
        values[key] = values.get(key, 0) + amount


class Spread:
    """How long something takes, or how large it is: how often up to each bound, and the sum."""

    __slots__ = ("about", "bounds", "counts", "name", "total")

    def __init__(self, name: str, bounds: tuple[float, ...], about: str) -> None:
        self.name, self.bounds, self.about = name, bounds, about
        self.counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self.total = 0.0

    def add(self, value: float) -> None:
        """Measure it once."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


ACCEPTED = Counts("appliance_messages_accepted_total", ("source",), "Messages accepted: api, smtp or test.")
RECIPIENTS = Counts("appliance_recipients_accepted_total", ("source",), "Their recipients.")
REFUSED = Counts(
    "appliance_refusals_total", ("way", "code"), "Requests and messages refused, by way in and error code."
)
DELIVERIES = Counts(
    "appliance_deliveries_total",
    ("pool", "result", "reply"),
    "Attempts at a recipient, by provider pool, what became of it, and the class of the server's reply.",
)
WEBHOOK_POSTS = Counts("appliance_webhook_posts_total", ("result",), "Posts to customers' servers: success or failed.")
CLEARED = Counts(
    "appliance_cleared_total",
    ("kind",),
    "Deleted by retention: bodies, messages, events, books, expired (keys, sessions, webhook logs); or pages freed.",
)
LOG_DROPPED = Counts("appliance_log_lines_dropped_total", (), "Log lines dropped because their reader does not read.")
LOG_DROPPED.add("", 0)

ACCEPT_SECONDS = Spread("appliance_accept_seconds", LATENCIES, "From a request that was read to its message on disk.")
ATTEMPT_SECONDS = Spread("appliance_attempt_seconds", LATENCIES, "One attempt at a mail server, from its beginning.")
DELIVERY_SECONDS = Spread("appliance_delivery_seconds", DELIVERY_TIMES, "From acceptance to delivery of a recipient.")
WEBHOOK_SECONDS = Spread("appliance_webhook_post_seconds", LATENCIES, "One post to a customer's server.")
COMMIT_SECONDS = Spread("appliance_store_commit_seconds", LATENCIES, "One commit of the store, with its sync.")
BATCH_SIZE = Spread("appliance_store_batch_size", BATCHES, "Writes that shared one commit.")
LOOP_LAG = Spread("appliance_event_loop_lag_seconds", LATENCIES, "How late the event loop came back to a sleeper.")

COUNTS = (ACCEPTED, RECIPIENTS, REFUSED, DELIVERIES, WEBHOOK_POSTS, CLEARED, LOG_DROPPED)
SPREADS = (ACCEPT_SECONDS, ATTEMPT_SECONDS, DELIVERY_SECONDS, WEBHOOK_SECONDS, COMMIT_SECONDS, BATCH_SIZE, LOOP_LAG)

# Connections that are open right now, by whom they are with; each part puts its own count here when it starts.
OPEN: dict[str, Callable[[], int]] = {}

# Warm-ups of sending addresses that are under way; delivery puts its own here when it starts.
WARMUPS: dict[str, Callable[[], Iterable[Warming]]] = {}
# When the certificate that is shown expires, by the listener that shows it: seconds since 1970, if they can be told.
EXPIRIES: dict[str, Callable[[], float | None]] = {}
