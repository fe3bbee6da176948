"""Puts the return path of a domain into use once DNS has its MX and SPF records, and out of use when they are gone.

The server (`domain_watch.py`) checks domains with an unused return path every minute, and those with one in use every
hour. Commands and requests that verify a domain put it into use as well. It goes out of use only after two checks, an
hour apart, that both find a record missing or wrong; a failed lookup does not count. A domain whose DNS did not answer
the domain watch is skipped here until it does, so that it delays no other domain.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from appliance.config.settings import Config
from appliance.dns.check import CheckedRecord, check, find_senders
from appliance.dns.records import RETURN_PATH_KINDS, DnsRecord, receiving_hosts, return_path_records
from appliance.dns.resolver import Resolver
from appliance.errors import PublicError
from appliance.model.accounts import Domain, RecordStatus
from appliance.store import Store
from appliance.telemetry.log import get_logger

RETURN_PATH_CHECK_EVERY = 60.0  # seconds between two rounds
RETURN_PATH_IN_USE_EVERY = 3_600.0  # seconds between two checks of a return path in use
DOMAINS_PER_ROUND = 200  # with and without one in use; the next round continues
RETURN_PATH_CHECKS = 10
RETURN_PATH_TIMEOUT = 12.0  # seconds for one domain

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
    log.info("return path in use: found in DNS", domain=domain.name, return_path=domain.return_path)
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
    """Puts return paths into and out of use; `resolver` returns a resolver without a cache."""

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
        resolver, limiter = self.resolver(), trio.CapacityLimiter(RETURN_PATH_CHECKS)
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
            with trio.move_on_after(RETURN_PATH_TIMEOUT):
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
