"""Checks the DNS of every domain: every ten minutes until all of its records are right, then once an hour.

The result is stored with the domain for the API, the dashboard and the command line. Like a check that the owner
starts, it verifies a pending domain and puts its return path into use. A domain whose DNS does not answer is checked
ever more rarely (`Domains.record_dns`). Each round and each account in it have a limit, so that silent DNS delays no
other account. Of several nodes one checks; in the sandbox none does.

Return paths not in use are checked every minute, the others every hour. One goes out of use after two checks, an hour
apart, that both find a record missing or wrong; a failed lookup does not count.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import trio

from appliance.concurrency.wake import repeat
from appliance.config.settings import Config, DeliveryMode
from appliance.dns.check import CheckedRecord, check, find_senders, summary
from appliance.dns.records import RETURN_PATH_KINDS, DnsRecord, receiving_hosts, records_for, return_path_records
from appliance.dns.resolver import Resolver
from appliance.environment import Environment
from appliance.errors import PublicError
from appliance.model.accounts import Domain, RecordStatus
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.telemetry.log import get_logger

RETURN_PATH_CHECK_EVERY = 60.0  # seconds between two rounds
RETURN_PATH_IN_USE_EVERY = 3_600.0  # seconds between two checks of a return path in use
DOMAINS_PER_ROUND = 200  # with and without one in use; the next round continues
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
class _Sweep:
    """Passes over all domains with, or all without, a return path in use: a part per round, then again."""

    in_use: bool
    every: float  # seconds from one pass to the next
    _after: tuple[str, str] = ("", "")
    _started_at: float = float("-inf")

    async def next(self, store: Store) -> list[tuple[str, Domain]]:
        is_new_pass, now = self._after == ("", ""), trio.current_time()
        if is_new_pass and now < self._started_at + self.every:
            return []
        domains = await store.domains.with_return_path(self._after, DOMAINS_PER_ROUND, in_use=self.in_use)
        if is_new_pass:
            self._started_at = now
        has_more = len(domains) == DOMAINS_PER_ROUND
        self._after = (domains[-1][0], domains[-1][1].name) if has_more else ("", "")
        return domains


@dataclass(slots=True)
class ReturnPathWatch:
    config: Config
    store: Store
    resolver: Callable[[], Resolver]
    _sweeps: tuple[_Sweep, ...] = field(
        default_factory=lambda: (_Sweep(False, RETURN_PATH_CHECK_EVERY), _Sweep(True, RETURN_PATH_IN_USE_EVERY))
    )
    _doubtful: set[tuple[str, str]] = field(default_factory=set)  # in use, but missing at the last check

    async def round(self) -> None:
        """Check a part of the domains; none if no listener is configured that could receive bounces."""
        if not self.config.inbound.bind:
            return
        resolver, limiter = self.resolver(), trio.CapacityLimiter(CHECKS_AT_ONCE)
        nodes = await self.store.engine.hosts()
        sending, receiving = await find_senders(resolver, self.config, nodes), receiving_hosts(self.config, nodes)
        for sweep in self._sweeps:
            domains = await sweep.next(self.store)  # outside the nursery, which would wrap its exception in a group
            async with trio.open_nursery() as nursery:
                for account_id, domain in domains:
                    if domain.dns is None or domain.dns.return_path is not RecordStatus.UNKNOWN:
                        records = return_path_records(domain.return_path, sending, receiving)
                        nursery.start_soon(self._check, resolver, limiter, account_id, domain, records)

    async def _check(
        self,
        resolver: Resolver,
        limiter: trio.CapacityLimiter,
        account_id: str,
        domain: Domain,
        records: list[DnsRecord],
    ) -> None:
        checked: list[CheckedRecord] = []
        async with limiter:
            with trio.move_on_after(DOMAIN_TIMEOUT):
                checked = await check(resolver, records)
        try:
            if domain.return_path_at is None:
                await use_if_published(self.store, account_id, domain, checked)
            else:
                await self._end_unless_published(account_id, domain, checked)
        except PublicError as error:
            log.warning("return path not updated", domain=domain.name, reason=error.text)

    async def _end_unless_published(self, account_id: str, domain: Domain, checked: list[CheckedRecord]) -> None:
        key, published = (account_id, domain.name), is_published(checked)
        if published is None:
            return
        if published or key not in self._doubtful:
            (self._doubtful.discard if published else self._doubtful.add)(key)
            return
        self._doubtful.discard(key)
        if await self.store.domains.use_return_path(account_id, domain, in_use=False):
            log.warning("return path out of use: not in DNS", domain=domain.name, return_path=domain.return_path)


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
            for check_some in (self.round, self.return_paths.round):
                work = partial(self._in_turn, check_some)
                nursery.start_soon(partial(repeat, work, log, "domains not checked", every=RETURN_PATH_CHECK_EVERY))

    async def _in_turn(self, check_some: Callable[[], Awaitable[None]]) -> None:
        if await self.store.engine.has_chore(DOMAIN_CHORE):
            await check_some()

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
