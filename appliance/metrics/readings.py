"""Metrics read at the time of the request: the queue, the disk, the process."""

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from appliance import __version__
from appliance.errors import Refused
from appliance.metrics.page import Reading
from appliance.store import FILE_NAME, Store
from appliance.store.queue_control import Depth
from appliance.store.sqlite.faults import DatabaseFault
from appliance.telemetry.metrics import CERTIFICATE_EXPIRIES, OPEN_CONNECTIONS, WARMUP_STATUSES

QUEUE_CACHED = 5.0  # seconds for which a reading of the queue is reused
STATM = Path("/proc/self/statm")
DESCRIPTORS = Path("/proc/self/fd")
CONNECTIONS = "With senders (http, smtp), servers that send feedback (inbound) and mail servers (deliver)."
EXPIRIES = "When the certificate that is shown (http, smtp, inbound) expires, since 1970."
REACHABLE = "1 while the database answers, else 0."
NODES = "Nodes that share the database, as this one knows; 1 for an embedded one."
LEASE_HELD = "1 while this node may hand over mail, else 0."
WAITING = "Recipients that wait: due now, or deferred to later."


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
            with suppress(Refused, DatabaseFault):
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
        Reading("appliance_queue_overdue_seconds", "How long the first of those due has waited.", {"": depth.overdue}),
        Reading("appliance_queue_held", "1 for each pool whose mail this node holds; * is all mail.", held, ("pool",)),
    ]


def _warmups() -> list[Reading]:
    """The warm-ups of named pools."""
    found = [each for told in WARMUP_STATUSES.values() for each in told()]
    limits = {(each.pool, each.source): float(each.per_hour) for each in found}
    used = {(each.pool, each.source): float(each.used) for each in found}
    labels = ("pool", "address")
    return [
        Reading("appliance_warmup_recipients_per_hour", "How many may go while an address is new.", limits, labels),
        Reading("appliance_warmup_recipients_used", "How many of them have gone in this hour.", used, labels),
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
        Reading("appliance_database_free_bytes", "Of the database, free for new mail.", unused),
        Reading("appliance_database_bytes", "Size of the database, and of its write-ahead log.", sizes, ("file",)),
        Reading("appliance_disk_free_bytes", "Space left where the database lies.", free),
    ]


def _process(began: float) -> list[Reading]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    connections = {name: float(count()) for name, count in OPEN_CONNECTIONS.items()}
    expiries = {name: at for name, expires in CERTIFICATE_EXPIRIES.items() if (at := expires()) is not None}
    pages = int(STATM.read_text().split()[1]) if STATM.exists() else 0
    descriptors = float(len(os.listdir(DESCRIPTORS))) if DESCRIPTORS.exists() else 0.0
    return [
        Reading("appliance_build_info", "The version that runs.", {__version__: 1.0}, ("version",)),
        Reading("appliance_open_connections", CONNECTIONS, connections, ("with",)),
        Reading("appliance_certificate_expiry_timestamp_seconds", EXPIRIES, expiries, ("shown_by",)),
        Reading("process_resident_memory_bytes", "Memory in use.", {"": float(pages * os.sysconf("SC_PAGE_SIZE"))}),
        Reading("process_cpu_seconds_total", "CPU time used.", {"": usage.ru_utime + usage.ru_stime}, kind="counter"),
        Reading("process_open_fds", "Files and sockets open.", {"": descriptors}),
        Reading("process_start_time_seconds", "When it was started, since 1970.", {"": began}),
    ]
