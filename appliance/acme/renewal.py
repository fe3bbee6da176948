"""Keeps a valid certificate: requests it, renews it in time, retries after failures, and logs the outcome.

`serve` runs all of ACME. A failure never ends it: the server goes on with the certificate it has.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme import schedule
from appliance.acme.challenges import ChallengeServer
from appliance.acme.client import Client
from appliance.acme.crypto import new_key
from appliance.acme.files import AcmeFiles, AcmeState, HeldCertificate
from appliance.acme.issuance import Issuance
from appliance.acme.messages import format_time
from appliance.acme.problems import NotIssued
from appliance.concurrency.wake import SLEEP_LIMIT, Wake
from appliance.config.reload import LiveSettings
from appliance.config.settings import AcmeSettings, Config
from appliance.dns.resolver import DnsResolver
from appliance.outside import Outside
from appliance.telemetry.log import get_logger
from appliance.times import SECOND
from appliance.tls.certificate import https_context
from appliance.tls.certificate_files import acme_directory

ATTEMPT_TIMEOUT = 600.0  # seconds
ERROR_FROM = 3  # failures in a row from which on they are logged as errors

log = get_logger("acme")


@dataclass(slots=True)
class Renewer:
    """Renews one certificate; `issue` runs an issuance and returns the chain."""

    settings: AcmeSettings
    files: AcmeFiles
    issue: Callable[[Issuance, ec.EllipticCurvePrivateKey], Awaitable[bytes]]
    outside: Outside
    in_thread: Callable[..., Awaitable[None]] = trio.to_thread.run_sync  # for writing to disk
    wake: Wake = field(default_factory=Wake)
    _spread: float = 0.0  # from 0 to 1, for each certificate
    _state: AcmeState = field(default_factory=AcmeState)

    async def run(self) -> None:
        self._spread, self._state = self.outside.random(), self.files.state()
        while True:
            try:
                held, now = self.files.held(), self._now()
                due = schedule.due_at(self.settings, self._state, held, now, self._spread)
                if due > now:
                    await self.wake.wait(due - now)
                else:
                    await self._attempt(held)
            except Exception:  # a certificate that the library cannot read, or a bug
                log.exception("renewing the certificate failed")
                await trio.sleep(SLEEP_LIMIT)

    def try_now(self) -> None:
        """Retry at once after a failure, whose cause may be repaired; the authority's Retry-After still counts."""
        if self._state.failures:
            self._state = msgspec.structs.replace(self._state, next_try=0)
            self.wake.set()

    async def _attempt(self, held: HeldCertificate | None) -> None:
        try:
            with trio.fail_after(ATTEMPT_TIMEOUT):
                await self._renew()
        except NotIssued as failed:
            await self._failed(failed, held)
        except trio.TooSlowError:
            await self._failed(NotIssued(f"the authority took over {ATTEMPT_TIMEOUT:g} s"), held)
        except OSError as error:
            reason = f"{self.files.directory} cannot be written: {error}"
            await self._failed(NotIssued(reason, "Look at the disk."), held)
        except Exception as error:
            log.exception("requesting a certificate failed")
            await self._failed(NotIssued(f"an error of this program: {error!r}", "Look at the log."), held)

    async def _renew(self) -> None:
        settings, state = self.settings, self._state
        self.files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        account_key, is_new = self.files.account_key()
        known = not is_new and state.account_at == settings.directory
        account = state.account if known else ""
        issuance = Issuance(settings.directory, account_key, account, settings.email, settings.names)
        key = new_key()
        try:
            chain = await self.issue(issuance, key)
        finally:
            account, at = issuance.account, settings.directory
            self._state = state = msgspec.structs.replace(state, account=account, account_at=at)
        if issuance.terms:
            log.info("an account was made; its terms are agreed to", directory=at, terms=issuance.terms)
        await self.in_thread(self.files.save_certificate, key, chain)
        self._spread = self.outside.random()
        issued_for = schedule.certificate_wanted(settings)
        await self._save(AcmeState(state.account, at, issued_for=issued_for, issued_at=int(self._now())))
        held = self.files.held()
        until = format_time(held.not_after) if held else ""
        log.info("a certificate has come", names=list(self.settings.names), until=until)

    async def _failed(self, failed: NotIssued, held: HeldCertificate | None) -> None:
        failures, now = self._state.failures + 1, self._now()
        wait = schedule.retry(failures, self.outside.random())
        state = msgspec.structs.replace(
            self._state,
            failures=failures,
            error=str(failed),
            advice=failed.advice,
            tried_for=schedule.wanted(self.settings),
            tried_at=int(now),
            next_try=int(now + wait),
            not_before=int(now + failed.retry_after) if failed.retry_after else 0,
        )
        next_try = format_time(max(state.next_try, state.not_before))
        fields = {"reason": state.error, "advice": state.advice, "next_try": next_try}
        missing = held is None or held.self_signed
        event = "there is no certificate yet" if missing else "the certificate could not be renewed"
        (log.warning if failures < ERROR_FROM else log.error)(event, names=list(self.settings.names), **fields)
        await self._save(state)

    async def _save(self, state: AcmeState) -> None:
        """Remember the state, on disk if possible: the next start should not send a request too soon."""
        self._state = state
        try:
            await self.in_thread(self.files.save_state, state)
        except OSError as error:
            log.warning("the state of ACME cannot be kept", reason=str(error))

    def _now(self) -> float:
        return self.outside.now() / SECOND


async def serve(
    config: Config, outside: Outside, live: LiveSettings, *, task_status: trio.TaskStatus[list[str]]
) -> None:
    """Answer challenges and renew the certificate until cancelled; returns at once where ACME is off."""
    if not config.acme.enabled:
        task_status.started([])
        return
    context = https_context(config, "acme.ca_file", config.acme.ca_file)
    client = Client(DnsResolver(config.dns.resolvers), context, outside)
    base_url = config.http.base_url
    challenges = ChallengeServer(base_url if base_url.startswith("https:") else "")

    async def issue(issuance: Issuance, key: ec.EllipticCurvePrivateKey) -> bytes:
        return await client.run(issuance.certificate(key), challenges.tokens)

    renewer = Renewer(config.acme, AcmeFiles(acme_directory(config)), issue, outside)
    live.join(lambda _: renewer.try_now)  # a reload may follow a repair, such as opening port 80
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(challenges.serve, config.acme.bind)
        nursery.start_soon(renewer.run)
        task_status.started(urls)
