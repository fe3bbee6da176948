"""Decides which domains' mail leaves with a return path of its own: those whose DNS shows its MX and its SPF record.

The running server (`domain_watch.py`) looks at the domains without one in use every minute, and at those with one every
hour; commands and requests that verify a domain start its use as well. It ends only after two looks, an hour apart,
that both found a record missing or wrong: a lookup that failed says nothing. Domains whose DNS did not answer when the
watch of domains asked are left to it until it does, so that they do not hold up the others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from appliance.config.settings import Config
from appliance.dns.check import CheckedRecord, check
from appliance.dns.records import RETURN_PATH_KINDS, receiving_hosts, return_path_records, sending_host
from appliance.dns.resolver import Resolver
from appliance.errors import PublicError
from appliance.model.accounts import Domain, RecordStatus
from appliance.store import Store
from appliance.telemetry.log import get_logger

RETURN_PATH_LOOK_EVERY = 60.0  # seconds between two rounds
RETURN_PATH_IN_USE_EVERY = 3_600.0  # seconds between two looks at a domain whose return path is in use
DOMAINS_PER_ROUND = 200  # of either kind; the next round continues
LOOKS_AT_ONCE = 10
RETURN_PATH_TIMEOUT = 12.0  # seconds for one domain

log = get_logger("deliver")


def shown(checked: Iterable[CheckedRecord]) -> bool | None:
    """Whether DNS shows both records of a return path; None if it cannot be told, or they were not looked at."""
    statuses = {each.status for each in checked if each.record.kind in RETURN_PATH_KINDS}
    if not statuses or RecordStatus.UNKNOWN in statuses:
        return None
    return statuses == {RecordStatus.OK}


async def use_if_shown(store: Store, account_id: str, domain: Domain, checked: Iterable[CheckedRecord]) -> bool:
    """Let the mail of a domain leave with its return path if DNS shows it; whether that is new."""
    if domain.return_path_at is not None or not shown(checked):
        return False
    if not await store.domains.use_return_path(account_id, domain, in_use=True):
        return False
    log.info("mail leaves with a return path: DNS shows it", domain=domain.name, return_path=domain.return_path)
    return True


@dataclass(slots=True)
class _Sweep:
    """Goes through all domains of one kind, some in each round, and begins anew after a while."""

    in_use: bool
    every: float  # seconds from one beginning to the next
    _after: tuple[str, str] = ("", "")
    _begun_at: float = float("-inf")

    async def next(self, store: Store) -> list[tuple[str, Domain]]:
        begins, now = self._after == ("", ""), trio.current_time()
        if begins and now < self._begun_at + self.every:
            return []
        found = await store.domains.with_return_path(self._after, DOMAINS_PER_ROUND, in_use=self.in_use)
        if begins:
            self._begun_at = now
        more = len(found) == DOMAINS_PER_ROUND
        self._after = (found[-1][0], found[-1][1].name) if more else ("", "")
        return found


@dataclass(slots=True)
class ReturnPathWatch:
    """Starts and ends the use of return paths; `resolver` gives one that remembers nothing."""

    config: Config
    store: Store
    resolver: Callable[[], Resolver]
    _sweeps: tuple[_Sweep, ...] = field(
        default_factory=lambda: (_Sweep(False, RETURN_PATH_LOOK_EVERY), _Sweep(True, RETURN_PATH_IN_USE_EVERY))
    )
    _doubtful: set[tuple[str, str]] = field(default_factory=set)  # in use, and not shown at the last look

    async def round(self) -> None:
        """Look at some; at none where the settings name no listener that could take what comes back."""
        if not self.config.inbound.bind:
            return
        resolver, limiter = self.resolver(), trio.CapacityLimiter(LOOKS_AT_ONCE)
        for sweep in self._sweeps:
            found = await sweep.next(self.store)  # before the nursery, which would wrap what it raises in a group
            async with trio.open_nursery() as nursery:
                for account_id, domain in found:
                    if domain.dns is None or domain.dns.return_path is not RecordStatus.UNKNOWN:
                        nursery.start_soon(self._look, resolver, limiter, account_id, domain)

    async def _look(self, resolver: Resolver, limiter: trio.CapacityLimiter, account_id: str, domain: Domain) -> None:
        host = sending_host(self.config)
        receiving = receiving_hosts(self.config, self.store.engine.others().names)
        checked: list[CheckedRecord] = []
        async with limiter:
            with trio.move_on_after(RETURN_PATH_TIMEOUT):
                checked = await check(resolver, host, return_path_records(domain.return_path, host, receiving))
        try:
            if domain.return_path_at is None:
                await use_if_shown(self.store, account_id, domain, checked)
            else:
                await self._end_unless_shown(account_id, domain, checked)
        except PublicError as refused:
            log.warning("a return path waits for the storage", domain=domain.name, reason=refused.text)

    async def _end_unless_shown(self, account_id: str, domain: Domain, checked: list[CheckedRecord]) -> None:
        place, found = (account_id, domain.name), shown(checked)
        if found is None:
            return
        if found or place not in self._doubtful:
            (self._doubtful.discard if found else self._doubtful.add)(place)
            return
        self._doubtful.discard(place)
        if await self.store.domains.use_return_path(account_id, domain, in_use=False):
            text = "mail leaves without its return path: DNS does not show it any more"
            log.warning(text, domain=domain.name, return_path=domain.return_path)
