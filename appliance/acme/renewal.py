"""Keeps the certificate valid: requests it, renews it in time, retries after failures, and logs the outcome.

`serve` runs all of ACME. A failure never stops the server: it keeps the certificate that it has.
"""

from collections.abc import Awaitable, Callable
from math import inf

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct, field

from appliance.acme import schedule
from appliance.acme.challenges import ChallengeServer
from appliance.acme.issuance import Client, Issuance
from appliance.acme.messages import NotIssued, format_time, new_key
from appliance.acme.records import AcmeState, AcmeView, FileRecords, read_certificate
from appliance.acme.shared import SharedChallenges, SharedRecords
from appliance.concurrency.wake import SLEEP_LIMIT, Wake
from appliance.config.load import LiveSettings
from appliance.config.settings import Config
from appliance.dns.resolver import DnsResolver
from appliance.environment import Environment
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.times import SECOND
from appliance.tls.certificate import acme_directory, https_context, private_pem

ATTEMPT_TIMEOUT = 600.0  # seconds
ERROR_FROM = 3  # consecutive failures, from which on they are logged as errors

log = get_logger("acme")

Issue = Callable[[Issuance, ec.EllipticCurvePrivateKey], Awaitable[bytes]]


class Renewer(Struct):
    """Renews one certificate; `issue` runs an issuance and returns the chain."""

    records: FileRecords | SharedRecords
    issue: Issue
    env: Environment
    wake: Wake = field(default_factory=Wake)
    _spread: float = 0.0  # from 0 to 1, per certificate
    _at_once: bool = False
    _state: AcmeState = field(default_factory=AcmeState)  # of the attempt

    async def run(self) -> None:
        self._spread = self.env.random()
        while True:
            try:
                wait = self._wait(await self.records.look())
                if wait > 0 or not await self.records.alone(self._attempt_if_due):
                    await self.wake.wait(min(wait if wait > 0 else inf, self.records.patience))
            except Exception:  # a certificate that the library cannot read, or a bug
                log.exception("certificate renewal failed")
                await trio.sleep(SLEEP_LIMIT)

    def try_now(self) -> None:
        """Retry now after a failure, whose cause may be fixed; the authority's Retry-After still applies."""
        self._at_once = True
        self.wake.set()

    def _wait(self, view: AcmeView | None) -> float:
        if view is None:
            return inf
        self._at_once = self._at_once and view.state.failures > 0
        state = msgspec.structs.replace(view.state, next_try=0) if self._at_once else view.state
        now = self._now()
        return schedule.due_at(view.settings, state, view.held, now, self._spread, at_least=view.at_least) - now

    async def _attempt_if_due(self) -> None:
        view = await self.records.look()  # again, because another node may just have finished an attempt
        if view is not None and self._wait(view) <= 0:
            self._at_once = False
            await self._attempt(view)

    async def _attempt(self, view: AcmeView) -> None:
        self._state = view.state
        try:
            with trio.fail_after(ATTEMPT_TIMEOUT):
                await self._renew(view)
        except NotIssued as failed:
            await self._failed(failed, view)
        except trio.TooSlowError:
            await self._failed(NotIssued(f"the authority took more than {ATTEMPT_TIMEOUT:g} s"), view)
        except Exception as error:
            log.exception("certificate request failed")
            await self._failed(NotIssued(f"internal error: {error!r}", "See the log."), view)

    async def _renew(self, view: AcmeView) -> None:
        settings, state = view.settings, view.state
        account_key, is_new = await self.records.account_key()
        known = not is_new and state.account_at == settings.directory
        account = state.account if known else ""
        issuance = Issuance(settings.directory, account_key, account, settings.email, settings.names)
        key = new_key()
        try:
            chain = await self.issue(issuance, key)
        finally:
            account, at = issuance.account, settings.directory
            self._state = msgspec.structs.replace(state, account=account, account_at=at)
        if issuance.terms:
            log.info("ACME account created; terms of service accepted", directory=at, terms=issuance.terms)
        issued_for, now = schedule.certificate_settings(settings), int(self._now())
        await self.records.issued(
            private_pem(key) + chain, AcmeState(account, at, issued_for=issued_for, issued_at=now)
        )
        self._spread = self.env.random()
        held = read_certificate(chain)
        until = format_time(held.not_after) if held else ""
        log.info("certificate issued", names=list(settings.names), until=until)

    async def _failed(self, failed: NotIssued, view: AcmeView) -> None:
        failures, now = self._state.failures + 1, self._now()
        wait = schedule.retry(failures, self.env.random())
        state = msgspec.structs.replace(
            self._state,
            failures=failures,
            error=str(failed),
            advice=failed.advice,
            tried_for=schedule.request_settings(view.settings),
            next_try=int(now + wait),
            not_before=int(now + failed.retry_after) if failed.retry_after else 0,
        )
        next_try = format_time(max(state.next_try, state.not_before))
        fields = {"reason": state.error, "advice": state.advice, "next_try": next_try}
        missing = view.held is None or view.held.self_signed
        event = "certificate not issued" if missing else "certificate not renewed"
        (log.warning if failures < ERROR_FROM else log.error)(event, names=list(view.settings.names), **fields)
        await self.records.save_state(state)

    def _now(self) -> float:
        return self.env.now() / SECOND


async def serve(
    config: Config,
    env: Environment,
    live: LiveSettings,
    store: Store,
    key: bytes,
    *,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Answer challenges and renew the certificate until cancelled; return at once if ACME is off."""
    if not config.acme.enabled:
        task_status.started([])
        return
    context = https_context(config, "acme.ca_file", config.acme.ca_file)
    client = Client(DnsResolver(config.dns.resolvers), context, env)
    base_url, directory = config.http.base_url, acme_directory(config)
    challenges = ChallengeServer(base_url if base_url.startswith("https:") else "")
    records: FileRecords | SharedRecords = FileRecords(config.acme, directory)
    if store.engine.is_shared:
        records = SharedRecords(config.acme, store, key, directory)
        challenges.look_up = SharedChallenges(store.shared_certificates.challenges).text_of
        await records.look()  # copies the shared certificate before the listeners start

    async def issue(issuance: Issuance, key: ec.EllipticCurvePrivateKey) -> bytes:
        try:
            return await client.run(issuance.certificate(key), challenges.tokens, records.publish)
        finally:
            await records.withdraw()

    renewer = Renewer(records, issue, env)
    live.join(lambda _: renewer.try_now)  # a reload may follow a fix, such as opening port 80
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(challenges.serve, config.acme.bind)
        nursery.start_soon(renewer.run)
        task_status.started(urls)
