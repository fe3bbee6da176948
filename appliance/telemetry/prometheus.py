"""The Prometheus listener: one page of metrics over plain HTTP, without authentication, for a trusted network.

The page has the counters and histograms of `metrics.py`, and readings taken at the time of the request: the queue, the
disk, the process. It uses the text format of Prometheus, version 0.0.4.
"""

import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio
from msgspec import Struct, field

from appliance import __version__
from appliance.config.values import Endpoint
from appliance.errors import StorageUnavailable
from appliance.net.connection_server import ConnectionTable, accept_connections
from appliance.net.http import ShortConnection, answer_one, response
from appliance.store import FILE_NAME, DatabaseFault, Store
from appliance.store.queue_control import Depth
from appliance.telemetry import metrics
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import COUNTERS, HISTOGRAMS, LOOP_LAG, Counter, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS_CONNECTIONS = 100  # at once
SCRAPE_TIMEOUT = 5.0  # seconds for a request and its response
LAG_EVERY = 0.1  # seconds between two measurements of the event loop's lag
QUEUE_CACHED = 5.0  # seconds for which a reading of the queue is reused
STATM, DESCRIPTORS = Path("/proc/self/statm"), Path("/proc/self/fd")
CONNECTIONS = (
    "Open connections: with senders (http, smtp), servers that send feedback (inbound), mail servers (deliver)."
)
EXPIRIES = "Expiry of the certificate of a listener (http, smtp, inbound), as a Unix timestamp."
NODES = "Nodes that share the database, as known to this node; 1 with the embedded database."
_SCHEDULED = "Messages that are scheduled for later, of all nodes."
_IN_USE = "1 while sessions of this node can bind to the source address, else 0."
_OVERDUE = "Time since the oldest due delivery became due."
_HELD = "1 for each pool that this node holds; * means all mail."

log = get_logger("metrics")

_response = partial(response, kind=CONTENT_TYPE)


# ---- the text format
class Reading(Struct, frozen=True):
    """A metric read at the time of the request: one value, or one per label value."""

    name: str
    about: str
    values: Mapping[Any, float] = field(default_factory=dict)  # by label value, or by a tuple of several
    labels: tuple[str, ...] = ()  # empty: one value, under the key ""
    kind: str = "gauge"


def page(counters: Iterable[Counter], histograms: Iterable[Histogram], readings: Iterable[Reading]) -> str:
    lines: list[str] = []
    for counter in counters:
        lines += _reading(Reading(counter.name, counter.about, counter.values.copy(), counter.labels, "counter"))
    for histogram in histograms:
        lines += _histogram(histogram)
    for reading in readings:
        lines += _reading(reading)
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP {name} {_escaped(about)}\n# TYPE {name} {kind}"


def _histogram(histogram: Histogram) -> Iterator[str]:
    name = histogram.name
    yield _head(name, "histogram", histogram.about)
    counts, total, running = list(histogram.counts), histogram.total, 0
    for bound, count in zip(histogram.bounds, counts, strict=False):
        running += count
        yield f'{name}_bucket{{le="{bound:g}"}} {running}'
    yield f'{name}_bucket{{le="+Inf"}} {sum(counts)}'
    yield f"{name}_sum {total:.9g}"
    yield f"{name}_count {sum(counts)}"


def _reading(reading: Reading) -> Iterator[str]:
    yield _head(reading.name, reading.kind, reading.about)
    for key, value in reading.values.items():
        yield f"{reading.name}{_labelled(reading.labels, key)} {value:.16g}"


def _labelled(labels: tuple[str, ...], key: object) -> str:
    if not labels:
        return ""
    values = key if isinstance(key, tuple) else (key,)
    quoted = [_escaped(str(value)).replace('"', '\\"') for value in values]
    return "{" + ",".join(f'{label}="{value}"' for label, value in zip(labels, quoted, strict=True)) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


# ---- readings
class Readings(Struct):
    data_dir: Path
    store: Store
    _started_at: float = field(default_factory=time.time)
    _depth: tuple[Depth, int] | None = None  # with the number of scheduled messages
    _free: int | None = None  # bytes inside the database file
    _reachable: bool = False
    _read_at: float = float("-inf")  # Trio's clock
    _reading: trio.Lock = field(default_factory=trio.Lock)

    async def now(self) -> list[Reading]:
        await self._read_queue()
        engine = self.store.engine
        return [
            *_process(self._started_at),
            *_disk(self.data_dir, self._free),
            _one("appliance_store_reachable", "1 while the database is reachable, else 0.", self._reachable),
            _one("appliance_nodes", NODES, engine.live_nodes()),
            _one("appliance_lease_held", "1 while this node may deliver mail, else 0.", engine.holds_lease()),
            *([] if self._depth is None else _queue(*self._depth)),
            *_warmups(),
            Reading("appliance_source_in_use", _IN_USE, metrics.SOURCES_IN_USE, ("source",)),
        ]

    async def _read_queue(self) -> None:
        """Read the queue unless the last reading is recent. A reading that fails is left out of the page."""
        async with self._reading:
            if trio.current_time() < self._read_at + QUEUE_CACHED:
                return
            self._depth, self._free, self._reachable = None, None, False
            with suppress(StorageUnavailable, DatabaseFault):
                await self.store.engine.version()
                self._reachable = True
                self._depth = await self.store.queue_control.depth(), await self.store.scheduled.count()
                if self.store.space is not None:
                    usage = await self.store.space.usage()
                    self._free = usage.free_pages * usage.page_size
            self._read_at = trio.current_time()


def _one(name: str, about: str, value: float, kind: str = "gauge") -> Reading:
    return Reading(name, about, {"": float(value)}, kind=kind)


def _queue(depth: Depth, scheduled: int) -> list[Reading]:
    recipients = {"due": depth.due, "deferred": depth.deferred}
    return [
        Reading("appliance_queue_recipients", "Queued recipients: due now, or deferred.", recipients, ("state",)),
        _one("appliance_queue_overdue_seconds", _OVERDUE, depth.overdue),
        _one("appliance_scheduled_messages", _SCHEDULED, scheduled),
        Reading("appliance_queue_held", _HELD, dict.fromkeys(depth.held, 1.0), ("pool",)),
    ]


def _warmups() -> list[Reading]:
    statuses = [status for read in metrics.WARMUP_STATUSES.values() for status in read()]
    limits = {(status.pool, status.source): float(status.per_hour) for status in statuses}
    used = {(status.pool, status.source): float(status.used) for status in statuses}
    labels = ("pool", "address")
    return [
        Reading("appliance_warmup_recipients_per_hour", "Recipients allowed per hour during warm-up.", limits, labels),
        Reading("appliance_warmup_recipients_used", "Recipients sent to in the current hour of warm-up.", used, labels),
    ]


def _disk(data_dir: Path, free_in_database: int | None) -> list[Reading]:
    disk = os.statvfs(data_dir)
    sizes = {
        name: float(path.stat().st_size)
        for name, path in (("database", data_dir / FILE_NAME), ("log", data_dir / f"{FILE_NAME}-wal"))
        if path.exists()
    }
    free = disk.f_bavail * disk.f_frsize
    unused = {} if free_in_database is None else {"": float(free_in_database)}
    return [
        Reading("appliance_database_free_bytes", "Free space inside the database file.", unused),
        Reading("appliance_database_bytes", "Size of the database file and of its write-ahead log.", sizes, ("file",)),
        _one("appliance_disk_free_bytes", "Free space on the disk of the data directory.", free),
    ]


def _process(started_at: float) -> list[Reading]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    connections = {name: float(count()) for name, count in metrics.OPEN_CONNECTIONS.items()}
    expiries = {name: at for name, expires in metrics.CERTIFICATE_EXPIRIES.items() if (at := expires()) is not None}
    pages = int(STATM.read_text().split()[1]) if STATM.exists() else 0
    descriptors = len(os.listdir(DESCRIPTORS)) if DESCRIPTORS.exists() else 0
    return [
        Reading("appliance_build_info", "Running version.", {__version__: 1.0}, ("version",)),
        Reading("appliance_open_connections", CONNECTIONS, connections, ("with",)),
        Reading("appliance_certificate_expiry_timestamp_seconds", EXPIRIES, expiries, ("shown_by",)),
        _one("process_resident_memory_bytes", "Memory in use.", pages * os.sysconf("SC_PAGE_SIZE")),
        _one("process_cpu_seconds_total", "CPU time used.", usage.ru_utime + usage.ru_stime, "counter"),
        _one("process_open_fds", "Open files and sockets.", descriptors),
        _one("process_start_time_seconds", "Start time, as a Unix timestamp.", started_at),
    ]


# ---- the listener
async def serve(
    binds: tuple[Endpoint, ...],
    readings: Readings,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; return at once without an address to listen on."""
    listeners = [listener for bind in binds for listener in await trio.open_tcp_listeners(bind.port, host=bind.host)]
    task_status.started([str(Endpoint(*listener.socket.getsockname()[:2])) for listener in listeners])
    if not listeners:
        return
    table: ConnectionTable[ShortConnection] = ConnectionTable(METRICS_CONNECTIONS, METRICS_CONNECTIONS)

    async def make_page() -> str:
        return page(COUNTERS, HISTOGRAMS, await readings.now())

    async def serve_one(stream: trio.SocketStream) -> None:
        await answer_one(stream, table, SCRAPE_TIMEOUT, partial(answer, make_page=make_page), log)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_loop)
        for listener in listeners:
            nursery.start_soon(accept_connections, listener, serve_one, nursery)


async def _watch_loop() -> None:
    """Measure how late the event loop wakes this task: every request and delivery has the same delay."""
    while True:
        due = trio.current_time() + LAG_EVERY
        await trio.sleep_until(due)
        LOOP_LAG.add(max(0.0, trio.current_time() - due))


async def answer(head: bytes, make_page: Callable[[], Awaitable[str]]) -> bytes:
    """Return the response to a request head; the connection closes after it."""
    if b"\r\n\r\n" not in head:
        return _response("400 Bad Request", "Not a valid HTTP request.\n")
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/metrics":
        return _response("404 Not Found", "The page is /metrics.\n")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "Use GET or HEAD.\n", "Allow: GET, HEAD\r\n")
    return _response("200 OK", await make_page(), whole=method == b"GET")
