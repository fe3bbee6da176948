"""In charge of the life of the process: what runs, in which order it starts and ends, and what ends it."""

import ctypes
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from appliance.acme import service as acme
from appliance.concurrency.wake import Wake
from appliance.config.load import Config, load
from appliance.config.reload import LiveSettings
from appliance.config.settings import ConfigError
from appliance.deliver import build, sandbox
from appliance.errors import Refused
from appliance.intake import services
from appliance.intake.accept import Deliveries
from appliance.keys.keyfile import KEY_FILE as KEY
from appliance.keys.keyfile import load_or_create
from appliance.metrics import server as metrics
from appliance.metrics.readings import Readings
from appliance.outside import Outside
from appliance.retention import Janitor
from appliance.shutdown import CONNECTIONS_PART, DELIVERY_PART, Shutdown
from appliance.store import FILE_NAME as DATABASE
from appliance.store import StorageFault, Store, open_store
from appliance.store.integrity import has_secrets
from appliance.store.new_mail import Inbox
from appliance.submission import server as submission
from appliance.system import memory
from appliance.system.instance_lock import only_server
from appliance.system.sd_notify import ServiceManager, service_manager
from appliance.telemetry.log import get_logger, set_level
from appliance.telemetry.message_log import MESSAGE_LOG
from appliance.web import build as site
from appliance.web import server
from appliance.web.edge import Edge
from appliance.webhook import build as office

LAST_ANSWERS = 0.05  # seconds to tell senders 503 once the storage failed; what is delivered then cannot be recorded

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # mallopt(3)
SINGLE_BLOCK = 256 * 1024  # bytes from which memory is taken from the system, and given back to it, block by block

BOOKS_EVERY = 10.0  # seconds between two entries of what was counted and used
SLICE_PAUSE = 0.05  # seconds between slices of that work, so that senders come first

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

SERVING = "serving"  # what `systemctl status` shows

OnReady = Callable[[Store, list[str]], Awaitable[None]]  # what to do once every listener is open

log = get_logger("supervisor")


class StorageFailed(Exception):
    """The process ended because nobody could say any more what is on disk; a restart reads what is there."""


async def run(config: Config, outside: Outside, *, on_ready: OnReady | None = None) -> None:
    """Run everything until SIGTERM or SIGINT; returns when all of it has ended in order."""
    _give_memory_back()
    shutdown = Shutdown(config.server.shutdown_timeout)
    with only_server(config.server.data_dir):
        try:
            await _run(config, outside, on_ready, shutdown)
        finally:
            shutdown.done()


async def _run(config: Config, outside: Outside, on_ready: OnReady | None, shutdown: Shutdown) -> None:
    failures: list[StorageFault] = []
    try:
        await _run_on_store(config, outside, on_ready, failures, shutdown)
    except (Exception, BaseExceptionGroup):
        if not failures:
            raise
        # Else whatever went wrong on the way out went wrong because of it.
    if failures:
        raise StorageFailed(str(failures[0])) from failures[0]
    log.info("stopped")


async def _run_on_store(
    config: Config, outside: Outside, on_ready: OnReady | None, failures: list[StorageFault], shutdown: Shutdown
) -> None:
    key = _key(config.server.data_dir)
    stopping = trio.Event()
    manager = service_manager(os.environ)
    manager.status("opening the database")
    for number in SIGNALS:
        # What is found here is put back when all is over: a signal that comes then must not spoil a clean end.
        signal.signal(number, signal.SIG_IGN)
    # Signals before anything listens: one that comes early must not kill a half-started process.
    with trio.open_signal_receiver(*SIGNALS) as signals, trio.CancelScope() as life:

        def storage_failed(error: StorageFault) -> None:
            failures.append(error)
            shutdown.begin()
            life.deadline = trio.current_time() + LAST_ANSWERS

        async with open_store(config.server.data_dir, outside, on_failure=storage_failed) as store:
            MESSAGE_LOG.keep = config.log.messages
            try:
                await _run_all(config, outside, store, key, manager, stopping, signals, on_ready, shutdown)
            finally:
                MESSAGE_LOG.write()  # what came in with the last moments, too
                MESSAGE_LOG.keep = False


def _key(data_dir: Path) -> bytes:
    """The installation's key. Where it was lost a new one has to do, and somebody should know: it opens nothing."""
    file, database = data_dir / KEY, data_dir / DATABASE
    if not file.exists() and database.exists() and has_secrets(database):
        event = "the key file is missing, and a new one opens no stored secret: stop, put back that of the last backup"
        log.error(event, file=str(file))
    return load_or_create(data_dir)


def _give_memory_back() -> None:
    """Keep the C library from hoarding what large messages used.

    Left to itself, glibc soon takes blocks of up to 32 MiB from its heaps, which then only ever grow. Twenty messages
    of 10 MiB at once took 400 MiB that way, half of them for good; so they take 190, and all of it comes back.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):  # musl and others have none, and no such habit
        c_library.mallopt(M_MMAP_THRESHOLD, SINGLE_BLOCK)
        if memory.is_address_space_limited():
            # Each further heap sets 64 MiB of addresses aside. Threads rarely meet in one: the interpreter has a lock.
            c_library.mallopt(M_ARENA_MAX, 1)


async def _run_all(
    config: Config,
    outside: Outside,
    store: Store,
    key: bytes,
    manager: ServiceManager,
    stopping: trio.Event,
    signals: AsyncIterator[int],
    on_ready: OnReady | None,
    shutdown: Shutdown,
) -> None:
    """Workers around listeners: the workers are cancelled once the listeners have ended."""
    live, ready = LiveSettings(config), trio.Event()
    inbox, wake_simulated = Inbox(), Wake()
    shared = services.build(config, outside, store, Deliveries(inbox, wake_simulated))
    webhooks = office.build(config, outside, store, key)
    edge = site.build(config, outside, store, key, stopping, shared, webhooks.poster.check)
    live.join(lambda new: partial(_adopt, new, shared, edge))
    async with trio.open_nursery() as workers:
        workers.start_soon(_heed_signals, signals, live, manager, ready, stopping)
        attempts = len(config.delivery.retry_delays) + 1
        workers.start_soon(sandbox.run_sandbox, store, outside, wake_simulated, attempts)
        delivery = build.build(config, outside, store, key, inbox, lambda: shutdown.until(DELIVERY_PART))
        workers.start_soon(delivery.run)
        workers.start_soon(webhooks.run)
        workers.start_soon(Janitor(store, outside, config.retention, shared.door.free_space).run)
        workers.start_soon(_keep_books, store, shared)
        workers.start_soon(MESSAGE_LOG.run)
        told = await workers.start(metrics.serve, config.metrics.bind, Readings(config.server.data_dir, outside))
        challenges = await workers.start(acme.serve, config, outside, live)
        async with trio.open_nursery() as listeners:
            new_id = partial(outside.identifier, "req")
            urls = await listeners.start(server.serve, edge, config, new_id, stopping, live, shared.known)
            smtp = await listeners.start(submission.serve, config, outside, shared, stopping, live)
            _announce(config, {"http": urls, "smtp": smtp, "acme": challenges, "metrics": told})
            manager.ready(SERVING)
            workers.start_soon(manager.beat)
            ready.set()
            if on_ready is not None:
                await on_ready(store, urls)
            await stopping.wait()
            shutdown.begin()
            # Each listener ends its connections then; this is for whatever else of it goes on.
            listeners.cancel_scope.deadline = shutdown.until((CONNECTIONS_PART + DELIVERY_PART) / 2)
        workers.cancel_scope.cancel()


def _announce(config: Config, urls: dict[str, list[str]]) -> None:
    where = {name: found for name, found in urls.items() if found or name in ("http", "smtp")}
    room = memory.for_messages(config.http.body_memory)
    if room < config.http.body_memory:
        log.info("less memory for messages than the settings allow", mebibytes=room // memory.MIB)
    log.info("ready", **where, delivery=config.delivery.mode.value, data_dir=str(config.server.data_dir))


def _adopt(config: Config, shared: services.Entrance, edge: Edge) -> None:
    set_level(config.server.log_level)
    shared.adopt(config.limits)
    edge.adopt(config.http)


async def _heed_signals(
    signals: AsyncIterator[int], live: LiveSettings, manager: ServiceManager, ready: trio.Event, stopping: trio.Event
) -> None:
    """Stop or reload. It goes on during a stop: a signal nobody takes would end the process where it stands."""
    async for number in signals:
        name = signal.Signals(number).name
        if stopping.is_set():
            log.info("stopping already", signal=name)
        elif number != signal.SIGHUP or live.config.embedded:
            # Without a file there is nothing to read again: SIGHUP is then the terminal's end.
            log.info("stopping", signal=name)
            manager.stopping("finishing what is in flight")
            stopping.set()
        elif ready.is_set():
            _reload(live, manager)
        # else: what is being started with was read a moment ago


def _reload(live: LiveSettings, manager: ServiceManager) -> None:
    """Read the settings and the certificates again; what cannot be used changes nothing."""
    manager.reloading()
    try:
        changes = live.take_over(load(live.config.source, {}, Path.cwd()))
    except (ConfigError, OSError) as error:  # a certificate's fault is an OSError
        log.error("not reloaded; the settings in force stay", reason=str(error))
        manager.ready(f"{SERVING}; the last reload failed: {error}")
        return
    log.info("reloaded", changed=changes.adopted)
    if changes.need_restart:
        log.warning("changed settings need a restart", settings=changes.need_restart)
    manager.ready(SERVING)


async def _keep_books(store: Store, shared: services.Entrance) -> None:
    """Add up what was sent, and note which credentials were used, behind the senders' backs."""
    while True:
        more = False
        try:
            await shared.credentials.record_uses()
            more = await store.statistics.count()
        except Refused as refused:
            log.warning("the books wait", reason=refused.text)
        await trio.sleep(SLICE_PAUSE if more else BOOKS_EVERY)
