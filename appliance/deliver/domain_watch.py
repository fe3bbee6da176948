"""Asks DNS about every domain: every ten minutes until all of its records are right, then once a day.

What DNS shows is kept with the domain, for the lists of the API, the dashboard and the command line. As when its owner
asks for a check, a domain that waits for its proof may be sent from once DNS shows that, and mail leaves with a return
path. DNS that does not answer is asked ever more rarely (`Domains.record_dns`). A round has a limit, and so has each
account in it, whose domains take turns with those of others: DNS that never answers holds up no other account. Return
paths have a round of their own. Of several nodes one asks; in the sandbox none does, since nothing leaves it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from appliance.config.settings import Config, DeliveryMode
from appliance.deliver.return_paths import RETURN_PATH_LOOK_EVERY, ReturnPathWatch, use_if_shown
from appliance.dns.check import CheckedRecord, check, summary
from appliance.dns.records import records_for, sending_host
from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.errors import PublicError, StorageUnavailable
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.telemetry.log import get_logger

DOMAIN_CHORE = "domains"
DOMAINS_ASKED_ABOUT, DOMAINS_OF_AN_ACCOUNT = 100, 20  # in a round
WATCHED_AT_ONCE = 10
WATCH = Actor("service", "domain watch")
DOMAIN_TIMEOUT = 12.0  # seconds for one domain

log = get_logger("deliver")


@dataclass(slots=True)
class DomainWatch:
    """Asks until cancelled; `resolver` gives one that remembers nothing."""

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

    async def _repeat(self, ask: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                if await self.store.engine.has_chore(DOMAIN_CHORE):
                    await ask()
            except StorageUnavailable as refused:
                log.warning("domains not checked: storage busy", reason=refused.text)
            await trio.sleep(RETURN_PATH_LOOK_EVERY)

    async def round(self) -> None:
        """Ask about those that are due."""
        resolver, limiter = self.resolver(), trio.CapacityLimiter(WATCHED_AT_ONCE)
        # before the nursery, which would wrap what it raises
        due = await self.store.domains.due(DOMAINS_ASKED_ABOUT, DOMAINS_OF_AN_ACCOUNT)
        async with trio.open_nursery() as nursery:
            for account_id, domain in due:
                nursery.start_soon(self._ask, resolver, limiter, account_id, domain)

    async def _ask(self, resolver: Resolver, limiter: trio.CapacityLimiter, account_id: str, domain: Domain) -> None:
        try:
            async with limiter:
                checked = await self._check(resolver, account_id, domain)
            await self.store.domains.record_dns(account_id, domain, summary(checked, self.env.now()))
            if not domain.usable and is_proven(checked):
                async with self.store.audit.noting(WATCH, "domain.verified", "server", (account_id,), domain.name):
                    domain = await self.store.domains.prove(account_id, domain.name)
                log.info("a domain may be sent from: DNS proves it", domain=domain.name)
            if domain.usable:
                await use_if_shown(self.store, account_id, domain, checked)
        except PublicError as refused:  # or it was removed meanwhile
            log.warning("a domain was not checked", domain=domain.name, reason=refused.text)

    async def _check(self, resolver: Resolver, account_id: str, domain: Domain) -> list[CheckedRecord]:
        keys, now = await self.store.dkim_keys.of(account_id, domain.name), self.env.now()
        wanted = records_for(self.config, domain, keys, now, self.store.engine.others().names)
        with trio.move_on_after(DOMAIN_TIMEOUT):
            return await check(resolver, sending_host(self.config), wanted)
        return [CheckedRecord(record, RecordStatus.UNKNOWN) for record in wanted]


def is_proven(checked: list[CheckedRecord]) -> bool:
    """Whether DNS shows a key of the account, which only the owner of the domain can publish."""
    return any(each.record.proves and each.status is RecordStatus.OK for each in checked)
