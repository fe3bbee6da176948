"""Checks the DNS of every domain: every ten minutes until all of its records are right, then once an hour.

The result is stored with the domain for the API, the dashboard and the command line. Like a check that the owner
starts, it verifies a pending domain, lets new keys sign and puts the return path into use. `Domains.record_dns` says
when a domain is checked again. Each round and each account in it have a limit, so that silent DNS delays no other
account. Of several nodes one checks; in the sandbox none does.

A return path goes out of use once all checks of an hour have found a record missing or wrong; a failed lookup does not
count.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from appliance.concurrency.wake import repeat
from appliance.config.settings import Config, DeliveryMode
from appliance.dns.check import CheckedRecord, check, find_senders, summary
from appliance.dns.records import RETURN_PATH_KINDS, records_for
from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.errors import PublicError
from appliance.keys.dkim_keys import SigningKeys
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.times import HOUR

ROUND_EVERY = 60.0  # seconds
RETURN_PATH_DOUBTED = HOUR  # from the first check that finds a return path in use missing or wrong until it ends
CHECKS_AT_ONCE, DOMAIN_TIMEOUT = 10, 12.0  # domains; seconds for one domain
DOMAIN_CHORE = "domains"
DOMAINS_CHECKED, DOMAINS_OF_AN_ACCOUNT = 100, 20  # in a round
WATCH = Actor("service", "domain watch")

log = get_logger("deliver")


def is_published(checked: Iterable[CheckedRecord]) -> bool | None:
    """Whether DNS has both records of a return path; None if unknown, or if they were not checked."""
    statuses = {record.status for record in checked if record.record.kind in RETURN_PATH_KINDS}
    if not statuses or RecordStatus.UNKNOWN in statuses:
        return None
    return statuses == {RecordStatus.OK}


async def use_if_published(store: Store, account_id: str, domain: Domain, checked: Iterable[CheckedRecord]) -> bool:
    """Put the return path of a domain into use if DNS has its records. Return whether that is new."""
    if domain.return_path_at is not None or not is_published(checked):
        return False
    if not await store.domains.use_return_path(account_id, domain, in_use=True):
        return False
    log.info("return path in use: published in DNS", domain=domain.name, return_path=domain.return_path)
    return True


@dataclass(slots=True)
class DomainWatch:
    """Checks until cancelled; `resolver` returns a resolver without a cache."""

    config: Config
    keys: SigningKeys
    resolver: Callable[[], Resolver]
    store: Store = field(init=False)
    env: Environment = field(init=False)
    _doubtful: dict[tuple[str, str], int] = field(default_factory=dict)  # return paths in use, since when

    def __post_init__(self) -> None:
        self.store, self.env = self.keys.store, self.keys.env

    async def run(self) -> None:
        if self.config.delivery.mode is not DeliveryMode.SANDBOX:
            await repeat(self._round_in_turn, log, "domains not checked", every=ROUND_EVERY)

    async def _round_in_turn(self) -> None:
        if await self.store.engine.has_chore(DOMAIN_CHORE):
            await self.round()

    async def round(self) -> None:
        resolver, limiter = self.resolver(), trio.CapacityLimiter(CHECKS_AT_ONCE)
        # Outside the nursery, which would wrap its exception in a group.
        due = await self.store.domains.due(DOMAINS_CHECKED, DOMAINS_OF_AN_ACCOUNT)
        async with trio.open_nursery() as nursery:
            for account_id, domain in due:
                nursery.start_soon(self._visit, resolver, limiter, account_id, domain)

    async def _visit(self, resolver: Resolver, limiter: trio.CapacityLimiter, account_id: str, domain: Domain) -> None:
        try:
            async with limiter:
                checked = await self._check(resolver, account_id, domain)
            await self.keys.switch(account_id, domain.name, checked)
            if not domain.usable and is_proven(checked):
                async with self.store.audit.noting(WATCH, "domain.verified", "server", (account_id,), domain.name):
                    domain = await self.store.domains.prove(account_id, domain.name)
                log.info("domain verified by DNS", domain=domain.name)
            await self.store.domains.record_dns(account_id, domain, summary(checked, self.env.now()))
            if domain.usable and domain.return_path_at is None:
                await use_if_published(self.store, account_id, domain, checked)
            elif domain.usable:
                await self._end_unless_published(account_id, domain, checked)
        except PublicError as error:  # an outage, or the domain was removed in the meantime
            log.warning("domain not checked", domain=domain.name, reason=error.text)

    async def _end_unless_published(self, account_id: str, domain: Domain, checked: list[CheckedRecord]) -> None:
        key, published, now = (account_id, domain.name), is_published(checked), self.env.now()
        if published:
            self._doubtful.pop(key, None)
        elif published is False and now >= self._doubtful.setdefault(key, now) + RETURN_PATH_DOUBTED:
            del self._doubtful[key]
            if await self.store.domains.use_return_path(account_id, domain, in_use=False):
                log.warning("return path out of use: not in DNS", domain=domain.name, return_path=domain.return_path)

    async def _check(self, resolver: Resolver, account_id: str, domain: Domain) -> list[CheckedRecord]:
        keys, now = await self.store.dkim_keys.of(account_id, domain.name), self.env.now()
        nodes = await self.store.engine.hosts()
        ramp, sources = (
            self.store.ramping.plan is not None,
            await self.store.sources.of_account(account_id, self.config),
        )
        sending = await find_senders(resolver, self.config, nodes, ramp=ramp, sources=sources)
        records = records_for(self.config, domain, keys, now, sending, nodes)
        with trio.move_on_after(DOMAIN_TIMEOUT):
            return await check(resolver, records)
        return [CheckedRecord(record, RecordStatus.UNKNOWN) for record in records]


def is_proven(checked: list[CheckedRecord]) -> bool:
    """Whether DNS has a key of the account, which only the owner of the domain can publish."""
    return any(record.record.proves and record.status is RecordStatus.OK for record in checked)
