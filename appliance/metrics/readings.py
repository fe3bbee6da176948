"""Metrics read at the time of the request: the queue, the disk, the process."""

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from appliance import __version__
from appliance.errors import StorageUnavailable
from appliance.metrics.page import Reading
from appliance.store import FILE_NAME, Store
from appliance.store.queue_control import Depth
from appliance.store.sqlite.faults import DatabaseFault
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS, WARMUP_STATUSES

QUEUE_CACHED = 5.0  # seconds for which a reading of the queue is reused
STATM = Path("/proc/self/statm")
DESCRIPTORS = Path("/proc/self/fd")
CONNECTIONS = (
    "Open connections: with senders (http, smtp), servers that send feedback (inbound), mail servers (deliver)."
)
EXPIRIES = "Expiry of the certificate of a listener (http, smtp, inbound), as a Unix timestamp."
REACHABLE = "1 while the database is reachable, else 0."
NODES = "Nodes that share the database, as known to this node; 1 with the embedded database."
LEASE_HELD = "1 while this node may deliver mail, else 0."
WAITING = "Queued recipients: due now, or deferred."


@dataclass(slots=True)
class Readings:
    data_dir: Path
    store: Store
    _began: float = field(default_factory=time.time)
    _depth: Depth | None = None
    _free: int | None = None  # bytes of the file
    _reachable: bool = False
    _read_at: float = float("-inf")  # Trio's clock
    _reading: trio.Lock = field(default_factory=trio.Lock)

    async def now(self) -> list[Reading]:
        """All readings; the queue as it was at most a few seconds ago."""
        await self._read_queue()
        queue = [] if self._depth is None else _queue(self._depth)
        reachable = Reading("appliance_store_reachable", REACHABLE, {"": float(self._reachable)})
        engine = self.store.engine
        nodes = Reading("appliance_nodes", NODES, {"": float(engine.live_nodes())})
        lease = Reading("appliance_lease_held", LEASE_HELD, {"": float(engine.holds_lease())})
        store = [reachable, nodes, lease]
        return [*_process(self._began), *_disk(self.data_dir, self._free), *store, *queue, *_warmups()]

    async def _read_queue(self) -> None:
        """Read the queue again after a while; what cannot be read is left out, rather than told wrong."""
        async with self._reading:
            if trio.current_time() < self._read_at + QUEUE_CACHED:
                return
            self._depth, self._free, self._reachable = None, None, False
            with suppress(StorageUnavailable, DatabaseFault):
                await self.store.engine.version()
                self._reachable = True
                self._depth = await self.store.queue_control.depth()
                if self.store.space is not None:
                    usage = await self.store.space.usage()
                    self._free = usage.free_pages * usage.page_size
            self._read_at = trio.current_time()


def _queue(depth: Depth) -> list[Reading]:
    waiting = {"due": depth.due, "deferred": depth.deferred}
    held = dict.fromkeys(depth.held, 1.0)
    return [
        Reading("appliance_queue_recipients", WAITING, waiting, ("state",)),
        Reading(
            "appliance_queue_overdue_seconds", "Time since the oldest due delivery became due.", {"": depth.overdue}
        ),
        Reading("appliance_queue_held", "1 for each pool that this node holds; * means all mail.", held, ("pool",)),
    ]


def _warmups() -> list[Reading]:
    """The warm-ups of named pools."""
    found = [each for told in WARMUP_STATUSES.values() for each in told()]
    limits = {(each.pool, each.source): float(each.per_hour) for each in found}
    used = {(each.pool, each.source): float(each.used) for each in found}
    labels = ("pool", "address")
    return [
        Reading("appliance_warmup_recipients_per_hour", "Recipients allowed per hour during warm-up.", limits, labels),
        Reading("appliance_warmup_recipients_used", "Recipients sent to in the current hour of warm-up.", used, labels),
    ]


def _disk(data_dir: Path, free_in_database: int | None) -> list[Reading]:
    facts = os.statvfs(data_dir)
    sizes = {
        name: float(path.stat().st_size)
        for name, path in (("database", data_dir / FILE_NAME), ("log", data_dir / f"{FILE_NAME}-wal"))
        if path.exists()
    }
    free = {"": float(facts.f_bavail * facts.f_frsize)}
    unused = {} if free_in_database is None else {"": float(free_in_database)}
    return [
        Reading("appliance_database_free_bytes", "Free space inside the database file.", unused),
        Reading("appliance_database_bytes", "Size of the database file and of its write-ahead log.", sizes, ("file",)),
        Reading("appliance_disk_free_bytes", "Free space on the disk of the data directory.", free),
    ]


def _process(began: float) -> list[Reading]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    connections = {name: float(count()) for name, count in OPEN_CONNECTIONS.items()}
    expiries = {name: at for name, expires in CERTIFICATE_EXPIRIES.items() if (at := expires()) is not None}
    pages = int(STATM.read_text().split()[1]) if STATM.exists() else 0
    descriptors = float(len(os.listdir(DESCRIPTORS))) if DESCRIPTORS.exists() else 0.0
    return [
        Reading("appliance_build_info", "Running version.", {__version__: 1.0}, ("version",)),
        Reading("appliance_open_connections", CONNECTIONS, connections, ("with",)),
        Reading("appliance_certificate_expiry_timestamp_seconds", EXPIRIES, expiries, ("shown_by",)),
        Reading("process_resident_memory_bytes", "Memory in use.", {"": float(pages * os.sysconf("SC_PAGE_SIZE"))}),
        Reading("process_cpu_seconds_total", "CPU time used.", {"": usage.ru_utime + usage.ru_stime}, kind="counter"),
        Reading("process_open_fds", "Open files and sockets.", {"": descriptors}),
        Reading("process_start_time_seconds", "Start time, as a Unix timestamp.", {"": began}),
    ]
