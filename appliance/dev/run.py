"""Composes `appliance dev` from the services of `appliance serve`, with open access and without outgoing connections.

Mail is simulated as in the sandbox. Webhooks go to this machine only: every other address is refused when the URL is
saved and again when it is dialled.
"""

import errno
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec.structs
import trio

from appliance.concurrency.wake import repeat
from appliance.config.settings import Config, ConfigError
from appliance.deliver.due_schedule import release_scheduled
from appliance.deliver.observation import observe
from appliance.deliver.sandbox import run_sandbox
from appliance.dev.access import OpenAuthenticator, OpenCredentials, everyone
from appliance.dev.console import Console, PrintedRequests
from appliance.dev.guard import Guard
from appliance.dev.inbox import Inbox
from appliance.dev.routes import dev_routes
from appliance.dev.settings import check_loopback, is_loopback
from appliance.dns.resolver import DnsResolver
from appliance.environment import Environment
from appliance.errors import PublicError, StorageFault
from appliance.feedback.return_path import UnsubscribeLinks
from appliance.intake.services import IntakeServices, build_services
from appliance.keys.keyfile import derive, load_or_create
from appliance.message.addresses import SINGLE_LABELS, parse
from appliance.model.accounts import Caller, Role, User
from appliance.model.mail import NewMessage, Outcome
from appliance.retention import RetentionWorker
from appliance.shutdown import CONNECTIONS_PART, Shutdown
from appliance.store import Store, open_store, use_little_memory
from appliance.submission import server as submission
from appliance.submission.dialogue import Login
from appliance.system import memory
from appliance.system.data_directory import only_server
from appliance.telemetry.log import get_logger
from appliance.web import server as web
from appliance.web.auth import Tokens
from appliance.webhook.dispatcher import Dispatcher, WebhookService, build_attempts
from appliance.webhook.post import Poster

DEV_ACCOUNT, DEV_EMAIL, DEV_DOMAIN = "dev", "developer@example.com", "example.com"
NO_PASSWORD = "!"  # noqa: S105 - no hash: no password matches it
LOCALHOST = "localhost"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
COUNT_EVERY, COUNT_PAUSE, REINDEX_EVERY = 2.0, 0.05, 2.0  # seconds

OnReady = Callable[[list[str], list[str]], Awaitable[None]]  # gets the URLs of HTTP and of SMTP

log = get_logger("dev")


async def run(config: Config, env: Environment, write: Callable[[str], None], on_ready: OnReady) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; `write` prints lines. Raises StorageFault if the disk fails."""
    check_loopback(config)
    SINGLE_LABELS.add(LOCALHOST)
    memory.set_up_malloc(one_arena=True)
    use_little_memory()
    data_dir, stopping = config.server.data_dir, trio.Event()
    shutdown, faults = Shutdown(config.server.shutdown_timeout), list[StorageFault]()

    def failed(fault: StorageFault) -> None:
        faults.append(fault)
        stopping.set()

    try:
        with only_server(data_dir), trio.open_signal_receiver(*STOP_SIGNALS) as signals:
            async with open_store(data_dir, env, on_failure=failed) as store, trio.open_nursery() as nursery:
                nursery.start_soon(_stop_by_signal, signals, stopping)
                await _serve(config, env, store, stopping, shutdown, write, on_ready)
                nursery.cancel_scope.cancel()
    finally:
        shutdown.done()
    if faults:
        raise faults[0]


async def _stop_by_signal(signals: AsyncIterator[int], stopping: trio.Event) -> None:
    async for _ in signals:
        stopping.set()


async def _serve(
    config: Config,
    env: Environment,
    store: Store,
    stopping: trio.Event,
    shutdown: Shutdown,
    write: Callable[[str], None],
    on_ready: OnReady,
) -> None:
    key, developer = load_or_create(config.server.data_dir), await _developer(config, store)
    account = await store.access.caller_by_account(developer.account_id)
    assert account is not None  # noqa: S101 - it exists
    caller = everyone(account)
    inbox, console = Inbox(store, developer.account_id), Console(store, developer.account_id, write)
    shared = _open_services(config, env, store, key, caller, console)
    webhooks = _local_webhooks(config, env, store, key)
    edge = web.build(
        config,
        env,
        store,
        key,
        stopping,
        shared,
        webhooks.poster.check,
        auth=OpenAuthenticator(
            store,
            env,
            Tokens(derive(key, "dashboard tokens"), env),
            shared.credentials,
            shared.known,
            everyone=caller,
            developer=developer,
        ),
        more_routes=dev_routes(inbox),
        inbox=True,
    )

    def notify(outcomes: Sequence[Outcome]) -> None:
        observe(outcomes)
        console.changed([outcome.recipient.message_id for outcome in outcomes])

    async with trio.open_nursery() as workers:

        def accepted(new: NewMessage) -> None:
            inbox.accepted(new)
            console.accepted(new)
            if new.scheduled_at is not None:
                workers.start_soon(_register_domains, store, new)

        shared.intake.notify = accepted
        attempts = len(config.delivery.retry_delays) + 1
        workers.start_soon(run_sandbox, store, env, store.new_simulated_mail, attempts, notify)
        workers.start_soon(release_scheduled, store)
        workers.start_soon(store.engine.finish_upgrade)
        workers.start_soon(webhooks.run)
        workers.start_soon(RetentionWorker(store, env, config.retention, shared.intake.free_space).run)
        workers.start_soon(shared.requests.run)
        workers.start_soon(inbox.trim)
        workers.start_soon(console.run)
        for work, pause in ((store.statistics.count, COUNT_PAUSE), (store.breakdown.count, COUNT_PAUSE)):
            workers.start_soon(partial(repeat, work, log, "statistics not written", pause=pause, every=COUNT_EVERY))
        index = store.search_index.index_some
        workers.start_soon(partial(repeat, index, log, "messages not indexed", pause=0, every=REINDEX_EVERY))
        async with trio.open_nursery() as listeners:
            with shutdown.begun_by_errors():
                new_id = partial(env.identifier, "req")
                urls = await listeners.start(web.serve, Guard(edge), config, new_id, stopping, None, shared.known)
                serve_smtp = partial(submission.serve, anonymous=Login("", b""))
                smtp = await listeners.start(serve_smtp, config, env, shared, stopping)
                await on_ready(urls, smtp)
                await stopping.wait()
            inbox.stop()
            shutdown.begin()
            listeners.cancel_scope.deadline = shutdown.until(CONNECTIONS_PART)
        workers.cancel_scope.cancel()


async def _developer(config: Config, store: Store) -> User:
    """The only user of the only account; created at the first start."""
    await store.first_start.create(name=DEV_ACCOUNT, email=DEV_EMAIL, password_hash=NO_PASSWORD, domain=DEV_DOMAIN)
    accounts, user = await store.accounts.page("", 2), await store.accounts.user_by_email(DEV_EMAIL)
    if [account.name for account in accounts] != [DEV_ACCOUNT] or user is None:
        reason = f"{config.server.data_dir} has the data of another server. Choose an empty directory"
        raise ConfigError("appliance dev", "--data", reason)
    return msgspec.structs.replace(user, role=Role.CUSTOMER)


async def _register_domains(store: Store, new: NewMessage) -> None:
    """Scheduled mail is checked again when it is due: by then, its domains must be the account's."""
    for address in (new.sender, new.envelope_from):
        with suppress(PublicError):
            await store.access.add_domain(new.account_id, parse(address, "from").domain, usable=True)


def _open_services(
    config: Config, env: Environment, store: Store, key: bytes, caller: Caller, console: Console
) -> IntakeServices:
    shared = build_services(config, env, store, key)
    shared.intake.links = UnsubscribeLinks(key, config.http.base_url, plain=True)
    return msgspec.structs.replace(
        shared,
        credentials=OpenCredentials(store, env, shared.guesses, everyone=caller),
        requests=PrintedRequests(store, env, shared.intake.free_space, console=console),
    )


def _local_webhooks(config: Config, env: Environment, store: Store, key: bytes) -> WebhookService:
    async def dial(address: str, port: int) -> trio.abc.Stream:
        if not is_loopback(address):
            raise OSError(errno.ENETUNREACH, "only this machine is reachable from appliance dev")
        return await env.dial(address, port)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of no connection: reading the authorities would take time
    poster = Poster(DnsResolver(config.dns.resolvers), dial, context, ports=(), plain_loopback=True)
    return WebhookService(poster, Dispatcher(store, env, build_attempts(config, env, store, key, poster)))
