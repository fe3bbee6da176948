"""Counters and histograms of the running program; `prometheus.py` renders them as a page.

They are cheap enough for every message: a counter changes one dict entry, a histogram searches a short tuple and adds
twice. They have no lock, because only one thread changes each; a SharedCounter, for rare events, has one.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable

from appliance.model.warmup import WarmupStatus

# Seconds, from a fast commit to a slow mail server.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# Seconds, up to the two days after which a recipient fails.
DELIVERY_BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0, 172800.0)
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64)


class Counter:
    """Counts events by label value, or by a tuple of values for several labels."""

    def __init__(self, name: str, labels: tuple[str, ...], about: str) -> None:
        self.name, self.labels, self.about = name, labels, about
        self.values: dict[Hashable, int] = {} if labels else {"": 0}

    def add(self, key: Hashable, amount: int = 1) -> None:
        self.values[key] = self.values.get(key, 0) + amount


class SharedCounter(Counter):
    _changing = threading.Lock()

    def add(self, key: Hashable, amount: int = 1) -> None:
        with self._changing:
            super().add(key, amount)


class Histogram:
    """Counts durations or sizes up to each bound, and sums them."""

    def __init__(self, name: str, bounds: tuple[float, ...], about: str) -> None:
        self.name, self.bounds, self.about = name, bounds, about
        self.counts = [0] * (len(bounds) + 1)  # the last one: above all bounds
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


MESSAGES_ACCEPTED = Counter("appliance_messages_accepted_total", ("source",), "Messages accepted: api, smtp or test.")
RECIPIENTS_ACCEPTED = Counter(
    "appliance_recipients_accepted_total", ("source",), "Recipients of accepted messages: api, smtp or test."
)
RECIPIENT_NUMBERS = Counter(
    "appliance_recipients_total",
    ("number",),
    "Recipients by the numbers of the dashboard: sent, delivered, bounced, failed, suppressed, cancelled, late_bounced "
    "and complained, without test mail. One node counts for all, up to two minutes later.",
)
REFUSALS = Counter(
    "appliance_refusals_total",
    ("way", "code"),
    "Refused requests and messages, by channel (http, smtp or inbound) and error code.",
)
DELIVERY_ATTEMPTS = Counter(
    "appliance_deliveries_total",
    ("pool", "result", "reply"),
    "Delivery attempts per recipient, by provider pool, result and class of the server's reply.",
)
SOURCE_RESULTS = Counter(
    "appliance_source_results_total",
    ("source", "result"),
    "Delivery attempts per recipient from each source address: delivered, deferred, or blocked (mail from there is "
    "refused).",
)
BOUNCES = Counter(
    "appliance_bounces_total",
    ("result", "class"),
    "Recipients that bounced, failed or, after delivery, late_bounced, by bounce class.",
)
REQUESTS_NOT_LOGGED = Counter(
    "appliance_requests_not_logged_total",
    ("reason",),
    "Requests missing in the request log: sampled (refused in masses), busy (too many at once) or storage.",
)
SCHEDULED_POSTPONED = Counter(
    "appliance_scheduled_postponed_total",
    (),
    "Scheduled messages that could not be processed when due, and are tried again an hour later; the log says why.",
)
UNSUBSCRIBES = Counter(
    "appliance_unsubscribes_total",
    ("result",),
    "One-click unsubscribe requests: recorded, repeated (already unsubscribed) or refused (forged link).",
)
WEBHOOK_POSTS = Counter("appliance_webhook_posts_total", ("result",), "Webhook posts: success or failed.")
FEEDBACK_RECIPIENTS = Counter(
    "appliance_feedback_recipients_total",
    ("result",),
    "Recipient addresses of incoming mail: taken (feedback) or received (receiving addresses), or refused as expired, "
    "forged, unknown, limited or other.",
)
RECEIVED = Counter("appliance_received_total", ("dmarc",), "Received messages stored, by the result of DMARC.")
FEEDBACK = Counter(
    "appliance_feedback_total",
    ("address", "result"),
    "Feedback messages read, by address (bounce, unsubscribe, fbl, postmaster or abuse) and result: late_bounced, "
    "complained, unsubscribed, delayed, repeated, …",
)
REPORTS_READ = Counter(
    "appliance_reports_total",
    ("kind", "result"),
    "Domain reports read, dmarc or tls: recorded, repeated, or the reason for ignoring them.",
)
CLEARED = Counter(
    "appliance_cleared_total",
    ("kind",),
    "Rows deleted by retention: audit (beyond 100,000 per account), requests (pages of the request log), bodies, parts "
    "(of large bodies), messages, events, complaints, feedback inbox, received (messages), books (ledger entries), "
    "expired (keys, sessions, reports, webhook logs); "
    "or pages freed.",
)
LOG_DROPPED = Counter(
    "appliance_log_lines_dropped_total", (), "Log lines dropped because the reader of stderr fell behind."
)
STORE_RECONNECTS = SharedCounter("appliance_store_reconnects_total", (), "PostgreSQL connections lost and reopened.")
STORE_RERUNS = SharedCounter("appliance_store_reruns_total", (), "PostgreSQL transactions retried after a conflict.")
STORE_UNKNOWN_COMMITS = SharedCounter(
    "appliance_store_unknown_commits_total",
    (),
    "PostgreSQL commits with unknown outcome: the connection was lost during the commit.",
)
ACCEPT_SECONDS = Histogram(
    "appliance_accept_seconds", LATENCY_BOUNDS, "Time from reading a request to its message being on disk."
)
ATTEMPT_SECONDS = Histogram("appliance_attempt_seconds", LATENCY_BOUNDS, "Duration of one attempt at a mail server.")
DELIVERY_SECONDS = Histogram(
    "appliance_delivery_seconds", DELIVERY_BOUNDS, "Time from acceptance to delivery, per recipient."
)
WEBHOOK_SECONDS = Histogram("appliance_webhook_post_seconds", LATENCY_BOUNDS, "Duration of one webhook post.")
COMMIT_SECONDS = Histogram(
    "appliance_store_commit_seconds", LATENCY_BOUNDS, "Duration of one database commit, including its sync."
)
COMMIT_BATCH = Histogram("appliance_store_batch_size", BATCH_BOUNDS, "Writes per commit.")
LOOP_LAG = Histogram(
    "appliance_event_loop_lag_seconds", LATENCY_BOUNDS, "Delay of the event loop in waking a sleeping task."
)

COUNTERS = tuple(metric for metric in list(globals().values()) if isinstance(metric, Counter))
HISTOGRAMS = tuple(metric for metric in list(globals().values()) if isinstance(metric, Histogram))

# Open connections per service; each service registers its count when it starts.
OPEN_CONNECTIONS: dict[str, Callable[[], int]] = {}

# Current warm-ups of sending addresses; registered by delivery.
SOURCES_IN_USE: dict[str, bool] = {}  # whether sessions of this node can bind to a source
WARMUP_STATUSES: dict[str, Callable[[], Iterable[WarmupStatus]]] = {}
# Expiry of a listener's certificate: seconds since 1970, or None if unknown.
CERTIFICATE_EXPIRIES: dict[str, Callable[[], float | None]] = {}
