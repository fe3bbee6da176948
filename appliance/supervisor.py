"""Runs every service in one process: start order, signals, reload and stop.

A failure of a service ends the process, because all state is in the database. On SIGTERM the listeners stop first, then
the workers, then the store.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from appliance import __version__
from appliance.acme import renewal as acme
from appliance.attention.mail import Mailer
from appliance.attention.problems import Problems
from appliance.attention.watch import AttentionWatch
from appliance.concurrency.wake import repeat
from appliance.config.load import LiveSettings, known_keys, load
from appliance.config.settings import Config, ConfigError
from appliance.config.values import MIB
from appliance.deliver import build, ramp
from appliance.deliver.domain_watch import DomainWatch
from appliance.deliver.due_schedule import release_scheduled
from appliance.deliver.sandbox import run_sandbox
from appliance.dns.resolver import DnsResolver
from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.feedback.return_path import ReturnPaths
from appliance.inbound import listener as inbound
from appliance.inbound.receiver import Receiver
from appliance.inbound.worker import FeedbackWorker, forwarding_rate
from appliance.intake.services import IntakeServices, build_services
from appliance.keys.dkim_keys import SigningKeys
from appliance.keys.installation_key import key_check, record_own_key, shared_key
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.keys.received_links import ReceivedLinks
from appliance.model.database import LastStart
from appliance.model.sources import node_name
from appliance.net.local_addresses import node_addresses
from appliance.retention import RetentionWorker
from appliance.shutdown import CONNECTIONS_PART, DELIVERY_PART, Shutdown
from appliance.store import FILE_NAME as DATABASE
from appliance.store import Store, has_secrets, open_store
from appliance.store.engine import OnFault
from appliance.submission import server as submission
from appliance.system import memory
from appliance.system.data_directory import only_server
from appliance.system.service import ServiceManager, service_manager
from appliance.telemetry import prometheus
from appliance.telemetry.log import MESSAGE_LOG, get_logger, set_level
from appliance.telemetry.log_lines import named_node
from appliance.web import server
from appliance.web.edge import Edge
from appliance.webhook import dispatcher as webhook

LAST_ANSWERS = 0.05  # seconds to return 503 to senders after a storage failure; no delivery can be recorded then
FAILURES_SHARED_EVERY = 1.0  # seconds
STATISTICS_EVERY = 10.0  # seconds between two updates of statistics and of the credentials' last use
INDEX_EVERY = 5.0  # seconds between two searches for messages to index
STATISTICS_PAUSE = 0.05  # seconds between slices of an update, so that senders have priority
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SERVING = "serving"  # shown by `systemctl status`

OnReady = Callable[[Store, list[str]], Awaitable[None]]  # called once every listener is open

log = get_logger("supervisor")


class StorageFailed(Exception):
    """The process stopped because the state on disk is unknown; a restart reads it."""


async def run(config: Config, env: Environment, *, on_ready: OnReady) -> None:
    """Run all services until SIGTERM or SIGINT; return after an orderly stop."""
    memory.set_up_malloc()
    shutdown = Shutdown(config.server.shutdown_timeout)
    failures: list[StorageFault] = []
    with only_server(config.server.data_dir):
        try:
            await _run_on_store(config, env, on_ready, failures, shutdown)
        except (Exception, BaseExceptionGroup):
            if not failures:
                raise
            # Other errors during the stop follow from the failed storage.
        finally:
            shutdown.done()
        if failures:
            raise StorageFailed(str(failures[0])) from failures[0]
        log.info("stopped")


async def _run_on_store(
    config: Config, env: Environment, on_ready: OnReady, failures: list[StorageFault], shutdown: Shutdown
) -> None:
    data_dir, shared = config.server.data_dir, bool(config.store.url)
    created = not (data_dir / KEY_FILE).exists()
    key = b"" if shared else _own_key(data_dir)
    manager = service_manager(os.environ)
    manager.status("opening the database")
    for number in SIGNALS:
        # Trio restores these handlers at the end: a late signal must not turn a clean stop into a crash.
        signal.signal(number, signal.SIG_IGN)
    # Before any listener opens: an early signal must not kill a half-started process.
    node = node_name(config)
    with (
        named_node(node if config.store.url else ""),
        trio.open_signal_receiver(*SIGNALS) as signals,
        trio.CancelScope() as everything,
    ):

        def storage_failed(error: StorageFault) -> None:
            failures.append(error)
            shutdown.begin()
            everything.deadline = trio.current_time() + LAST_ANSWERS

        async with open_store(
            data_dir,
            env,
            url=config.store.url,
            node=node,
            address=config.server.hostname,
            check_key=key_check(data_dir),
            on_failure=storage_failed,
        ) as store:
            if shared:
                key = await shared_key(data_dir, store)
            else:
                await record_own_key(data_dir, store, key, created=created)
            with suppress(StorageUnavailable):  # a full disk; the next start records it
                await store.installation.note_start(LastStart(__version__, known_keys()))
            MESSAGE_LOG.keep = config.log.messages
            try:
                await _run_all(
                    config,
                    env,
                    store,
                    key=key,
                    manager=manager,
                    signals=signals,
                    on_ready=on_ready,
                    shutdown=shutdown,
                    fenced=storage_failed,
                )
            finally:
                MESSAGE_LOG.write()
                MESSAGE_LOG.keep = False


def _own_key(data_dir: Path) -> bytes:
    """Load or create the key of an SQLite database. A new key cannot open existing secrets, so a lost one is logged."""
    file, database = data_dir / KEY_FILE, data_dir / DATABASE
    if not file.exists() and database.exists() and has_secrets(database):
        advice = "stop the server, and restore the key file from the last backup: a new one opens no stored secret"
        log.error("key file missing", file=str(file), advice=advice)
    return load_or_create(data_dir)


async def _run_all(
    config: Config,
    env: Environment,
    store: Store,
    *,
    key: bytes,
    manager: ServiceManager,
    signals: AsyncIterator[int],
    on_ready: OnReady,
    shutdown: Shutdown,
    fenced: OnFault,
) -> None:
    """Run the workers, and inside them the listeners; cancel the workers when the listeners have stopped."""
    live, ready, stopping = LiveSettings(config), trio.Event(), trio.Event()
    shared = build_services(config, env, store, key)
    webhooks = webhook.build(config, env, store, key)
    edge = server.build(config, env, store, key, stopping, shared, webhooks.poster.check)
    live.join(lambda new: partial(_adopt, new, shared, edge))
    async with trio.open_nursery() as workers:
        workers.start_soon(_handle_signals, signals, live, manager, ready, stopping)
        attempts = len(config.delivery.retry_delays) + 1
        workers.start_soon(run_sandbox, store, env, store.new_simulated_mail, attempts)
        await ramp.start(store, config)
        delivery = build.build(config, env, store, key, store.new_mail, stop_by=lambda: shutdown.until(DELIVERY_PART))
        workers.start_soon(delivery.run)
        workers.start_soon(release_scheduled, store)
        workers.start_soon(store.queue_control.answer_others)
        workers.start_soon(_share_failures, store, shared)
        workers.start_soon(_keep_lease, store, config, delivery.in_flight, stopping, fenced)
        workers.start_soon(store.engine.finish_upgrade)
        workers.start_soon(webhooks.run)
        workers.start_soon(RetentionWorker(store, env, config.retention, shared.intake.free_space).run)
        feedback_worker = FeedbackWorker(store, ReturnPaths(key), forwarding_rate(env), config.inbound.forward_to)
        workers.start_soon(feedback_worker.run)
        received_links = ReceivedLinks(key, config.http.base_url)
        workers.start_soon(Receiver(store, env, DnsResolver(config.dns.resolvers), received_links).run)
        count = partial(repeat, failure="statistics not written", pause=STATISTICS_PAUSE, every=STATISTICS_EVERY)
        for work in (partial(_update_statistics, store, shared), partial(_update_breakdown, store)):
            workers.start_soon(partial(count, work, log))
        index = store.search_index.index_some
        workers.start_soon(partial(repeat, index, log, "messages not indexed", pause=0, every=INDEX_EVERY))
        keys = SigningKeys(store, env, key)
        workers.start_soon(DomainWatch(config, keys, partial(DnsResolver, config.dns.resolvers)).run)
        problems = Problems(config, store, env, shared.intake.free_space)
        workers.start_soon(AttentionWatch(problems, Mailer(config, store, env)).run)
        workers.start_soon(MESSAGE_LOG.run)
        workers.start_soon(shared.requests.run)
        readings = prometheus.Readings(config.server.data_dir, store)
        async with trio.open_nursery() as listeners:
            with shutdown.begun_by_errors():
                metrics_urls = await workers.start(prometheus.serve, config.metrics.bind, readings)
                challenges = await workers.start(acme.serve, config, env, live, store, key)
                new_id, intake = partial(env.identifier, "req"), shared.intake
                urls = await listeners.start(server.serve, edge, config, new_id, stopping, live, shared.known)
                smtp = await listeners.start(submission.serve, config, env, shared, stopping, live)
                feedback = await listeners.start(inbound.serve, config, env, store, intake, key, stopping, live)
                _announce(config, http=urls, smtp=smtp, inbound=feedback, acme=challenges, metrics=metrics_urls)
                manager.ready(SERVING)
                workers.start_soon(manager.keep_alive)
                ready.set()
                await on_ready(store, urls)
                await stopping.wait()
            shutdown.begin()
            # Each listener closes its own connections; this cancels listeners that are still running.
            listeners.cancel_scope.deadline = shutdown.until((CONNECTIONS_PART + DELIVERY_PART) / 2)
        workers.cancel_scope.cancel()


def _announce(config: Config, **urls: list[str]) -> None:
    where = {name: addresses for name, addresses in urls.items() if addresses or name in ("http", "smtp")}
    room = memory.for_messages(config.http.body_memory)
    if room < config.http.body_memory:
        log.info("message memory reduced: the machine has less than the settings allow", mebibytes=room // MIB)
    log.info("ready", **where, delivery=config.delivery.mode.value, data_dir=str(config.server.data_dir))


def _adopt(config: Config, shared: IntakeServices, edge: Edge) -> None:
    set_level(config.server.log_level)
    shared.adopt(config.limits)
    edge.settings = config.http


async def _handle_signals(
    signals: AsyncIterator[int], live: LiveSettings, manager: ServiceManager, ready: trio.Event, stopping: trio.Event
) -> None:
    """Stop or reload. Keeps running during a stop: an unhandled signal would kill the process."""
    async for number in signals:
        name = signal.Signals(number).name
        if stopping.is_set():
            log.info("stopping already", signal=name)
        elif number != signal.SIGHUP or live.config.embedded:
            # Without a file there is nothing to reload: SIGHUP means that the terminal was closed.
            log.info("stopping", signal=name)
            manager.stopping("finishing work in flight")
            stopping.set()
        elif ready.is_set():
            _reload(live, manager)
        # else: the settings were read a moment ago


def _reload(live: LiveSettings, manager: ServiceManager) -> None:
    """Reload settings and certificates; if any is not valid, change nothing."""
    manager.reloading()
    try:
        changes = live.take_over(load(live.config.source, {}, Path.cwd()))
    except (ConfigError, OSError) as error:  # OSError: a certificate
        log.error("reload failed; the current settings stay", reason=str(error))
        manager.ready(f"{SERVING}; the last reload failed: {error}")
        return
    log.info("reloaded", changed=changes.adopted)
    if changes.need_restart:
        log.warning("changed settings need a restart", settings=changes.need_restart)
    manager.ready(SERVING)


async def _keep_lease(
    store: Store, config: Config, in_flight: Callable[[], int], stopping: trio.Event, fenced: OnFault
) -> None:
    """Keep the node's lease on a shared database; stop when another node has taken over, or on `nodes drain`."""

    def drain() -> None:
        if not stopping.is_set():
            log.info("stopping", reason="this node is drained")
            stopping.set()

    try:
        await store.engine.keep_lease(in_flight, drain, partial(node_addresses, config))
    except StorageFault as fault:
        fenced(fault)


async def _share_failures(store: Store, shared: IntakeServices) -> None:
    """Share failed logins with the other nodes, so that limits apply to the cluster."""
    while store.engine.is_shared:
        await trio.sleep(FAILURES_SHARED_EVERY)
        try:
            failures = await store.engine.share_failures(shared.guesses.take_unshared())
        except StorageUnavailable:
            continue  # without the database no login can succeed
        for failure in failures:
            shared.guesses.count_from_node(failure)


async def _update_statistics(store: Store, shared: IntakeServices) -> bool:
    """Update statistics and the credentials' last use, and log the end of refused logins; whether there is more."""
    shared.guesses.refusals.log_ended()
    await shared.credentials.record_uses()
    return await store.engine.has_chore("statistics") and await store.statistics.count()


async def _update_breakdown(store: Store) -> bool:
    return await store.engine.has_chore("statistics") and await store.breakdown.count()
