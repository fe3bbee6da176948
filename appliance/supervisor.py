"""In charge of the life of the process: what runs, in which order it starts and ends, and what ends it."""

import signal
from collections.abc import AsyncIterator, Callable

import trio

from appliance.accept import FrontDoor
from appliance.config import Config, Mode
from appliance.deliver import pool
from appliance.disk import FreeSpace
from appliance.guesses import Guesses
from appliance.keyfile import derive, load_or_create
from appliance.log import get_logger
from appliance.outside import SLEEP_LIMIT, Outside, Wake
from appliance.rates import RequestRate
from appliance.store import CommitUnknown, Store, open_store
from appliance.web import app, health, openapi, server, session, suppressions, templates
from appliance.web.auth import Authenticator
from appliance.web.edge import Edge
from appliance.web.tokens import Tokens

FORCED_AFTER = 5.0  # seconds past shutdown_timeout until workers are no longer waited for

SLICE_PAUSE = 0.05  # seconds between slices of the janitor's work, so that senders come first

log = get_logger("supervisor")


class StorageFailed(Exception):
    """The process ended because nobody could say whether a commit landed; a restart reads what is on disk."""


async def run(config: Config, outside: Outside, *, on_ready: Callable[[list[str]], None] | None = None) -> None:
    """Run everything until SIGTERM or SIGINT; returns when all of it has ended in order."""
    key = load_or_create(config.server.data_dir)
    failures: list[CommitUnknown] = []
    stopping = trio.Event()
    # Signals before anything listens: one that comes early must not kill a half-started process.
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as workers:

            def storage_failed(error: CommitUnknown) -> None:
                failures.append(error)
                workers.cancel_scope.cancel()

            async with open_store(config.server.data_dir, outside, on_failure=storage_failed) as store:
                await _run_all(config, outside, store, key, stopping, signals, on_ready)
            workers.cancel_scope.cancel()
    if failures:
        raise StorageFailed(str(failures[0])) from failures[0]
    log.info("stopped")


async def _run_all(
    config: Config,
    outside: Outside,
    store: Store,
    key: bytes,
    stopping: trio.Event,
    signals: AsyncIterator[int],
    on_ready: Callable[[list[str]], None] | None,
) -> None:
    """Workers around listeners: the workers are cancelled once the listeners have ended."""
    wake_delivery = Wake()
    edge = _edge(config, outside, store, key, stopping, wake_delivery)
    async with trio.open_nursery() as workers:
        workers.start_soon(pool.run_sandbox, store, outside, wake_delivery, len(config.delivery.retry_delays) + 1)
        workers.start_soon(_sweep, store)
        async with trio.open_nursery() as listeners:
            listeners.start_soon(_stop_on_signal, signals, stopping)
            urls = await listeners.start(
                server.serve,
                edge,
                config.http,
                lambda: outside.identifier("req"),
                stopping,
                config.server.shutdown_timeout,
            )
            _announce(config, urls, on_ready)
            await stopping.wait()
            listeners.cancel_scope.deadline = trio.current_time() + config.server.shutdown_timeout + FORCED_AFTER
        workers.cancel_scope.cancel()


def _edge(
    config: Config, outside: Outside, store: Store, key: bytes, stopping: trio.Event, wake_delivery: Wake
) -> Edge:
    guesses, tokens = Guesses(outside), Tokens(derive(key, "dashboard tokens"), outside)
    auth = Authenticator(store, outside, tokens, guesses)
    free_space = FreeSpace(
        config.server.data_dir, config.limits.min_free_disk, config.limits.min_free_disk_percent, outside
    )
    door = FrontDoor(store, outside, wake_delivery, free_space, sandbox=config.delivery.mode is Mode.SANDBOX)
    services = app.Services(store, outside, auth, stopping)
    pages = app.create_app(
        [
            health.blueprint(stopping, store.check_writable),
            openapi.blueprint(config.http.base_url),
            session.blueprint(services, tokens, guesses),
            templates.blueprint(services),
            suppressions.blueprint(services),
        ]
    )
    rate = RequestRate(config.limits.requests_per_second, outside)
    return Edge(door, store, outside, auth, rate, config.http, stopping, pages)


def _announce(config: Config, urls: list[str], on_ready: Callable[[list[str]], None] | None) -> None:
    log.info("ready", http=urls, delivery=config.delivery.mode.value, data_dir=str(config.server.data_dir))
    if config.delivery.mode is not Mode.SANDBOX:
        log.warning(
            "mail is accepted and kept, but not yet sent: this version delivers only in sandbox mode",
            delivery=config.delivery.mode.value,
        )
    if on_ready is not None:
        on_ready(urls)


async def _stop_on_signal(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    async for number in signals:
        log.info("stopping", signal=signal.Signals(number).name)
        stopping.set()
        return


async def _sweep(store: Store) -> None:
    """The janitor's round, once a minute, in slices."""
    while True:
        swept = await store.janitor.sweep()
        await trio.sleep(SLICE_PAUSE if swept else SLEEP_LIMIT)
