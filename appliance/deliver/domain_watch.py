"""Checks the DNS of every domain: every ten minutes until all of its records are right, then once a day.

The result is stored with the domain for the API, the dashboard and the command line. Like a check that the owner
starts, it verifies a pending domain and puts its return path into use. A domain whose DNS does not answer is checked
ever more rarely (`Domains.record_dns`). Each round and each account in it have a limit, so that silent DNS delays no
other account. Of several nodes one checks; in the sandbox none does.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from appliance.config.settings import Config, DeliveryMode
from appliance.deliver.return_paths import RETURN_PATH_CHECK_EVERY, ReturnPathWatch, use_if_published
from appliance.dns.check import CheckedRecord, check, find_senders, summary
from appliance.dns.records import records_for
from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.errors import PublicError, StorageUnavailable
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.telemetry.log import get_logger

DOMAIN_CHORE = "domains"
DOMAINS_CHECKED, DOMAINS_OF_AN_ACCOUNT = 100, 20  # in a round
WATCHED_AT_ONCE = 10  # domains
WATCH = Actor("service", "domain watch")
DOMAIN_TIMEOUT = 12.0  # seconds for one domain

log = get_logger("deliver")


@dataclass(slots=True)
class DomainWatch:
    """Checks until cancelled; `resolver` returns a resolver without a cache."""

    config: Config
    store: Store
    env: Environment
    resolver: Callable[[], Resolver]
    return_paths: ReturnPathWatch = field(init=False)

    def __post_init__(self) -> None:
        self.return_paths = ReturnPathWatch(self.config, self.store, self.resolver)

    async def run(self) -> None:
        if self.config.delivery.mode is DeliveryMode.SANDBOX:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._repeat, self.round)
            nursery.start_soon(self._repeat, self.return_paths.round)

    async def _repeat(self, check_some: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                if await self.store.engine.has_chore(DOMAIN_CHORE):
                    await check_some()
            except StorageUnavailable as outage:
                log.warning("domains not checked: storage unavailable", reason=outage.text)
            await trio.sleep(RETURN_PATH_CHECK_EVERY)

    async def round(self) -> None:
        """Check the domains that are due."""
        resolver, limiter = self.resolver(), trio.CapacityLimiter(WATCHED_AT_ONCE)
        # Outside the nursery, which would wrap its exception in a group.
        due = await self.store.domains.due(DOMAINS_CHECKED, DOMAINS_OF_AN_ACCOUNT)
        async with trio.open_nursery() as nursery:
            for account_id, domain in due:
                nursery.start_soon(self._visit, resolver, limiter, account_id, domain)

    async def _visit(self, resolver: Resolver, limiter: trio.CapacityLimiter, account_id: str, domain: Domain) -> None:
        try:
            async with limiter:
                checked = await self._check(resolver, account_id, domain)
            await self.store.domains.record_dns(account_id, domain, summary(checked, self.env.now()))
            if not domain.usable and is_proven(checked):
                async with self.store.audit.noting(WATCH, "domain.verified", "server", (account_id,), domain.name):
                    domain = await self.store.domains.prove(account_id, domain.name)
                log.info("domain verified by DNS", domain=domain.name)
            if domain.usable:
                await use_if_published(self.store, account_id, domain, checked)
        except PublicError as error:  # an outage, or the domain was removed in the meantime
            log.warning("domain not checked", domain=domain.name, reason=error.text)

    async def _check(self, resolver: Resolver, account_id: str, domain: Domain) -> list[CheckedRecord]:
        keys, now = await self.store.dkim_keys.of(account_id, domain.name), self.env.now()
        nodes = await self.store.engine.hosts()
        sending = await find_senders(resolver, self.config, nodes)
        records = records_for(self.config, domain, keys, now, sending, nodes)
        with trio.move_on_after(DOMAIN_TIMEOUT):
            return await check(resolver, records)
        return [CheckedRecord(record, RecordStatus.UNKNOWN) for record in records]


def is_proven(checked: list[CheckedRecord]) -> bool:
    """Whether DNS has a key of the account, which only the owner of the domain can publish."""
    return any(record.record.proves and record.status is RecordStatus.OK for record in checked)
