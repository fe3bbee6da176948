"""The ramp in delivery: chooses each recipient's route, stores it before the first attempt, and follows the plan.

Only recipients accepted while the ramp was on have a bucket; all others go as `delivery.mode` says. The provider of a
domain, for its percentage and the figures, is the pool of its best MX host.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.concurrency.wake import until_stored
from appliance.config.settings import Config, DeliveryMode
from appliance.deliver.providers import ProviderPools
from appliance.deliver.route import Relays, in_order, relay_for
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.errors import Refused, StorageUnavailable
from appliance.model.mail import DueRecipient
from appliance.model.ramp import OTHER_PROVIDERS, RampLane, RampPlan, Via, adjusted, in_force
from appliance.store import Store
from appliance.telemetry.log import get_logger

FOLLOW_EVERY = 0.5  # seconds between two reads of the stored plan
ADJUST_EVERY = 60.0  # seconds between two adjustments by `auto`
PROVIDERS_KEPT, PROVIDERS_FRESH = 50_000, 3_600.0  # domains whose provider is cached; seconds
LOOKUP = 2.0  # seconds; the relay's mail must not wait for a slow name server
FAULT_PAUSE = 10.0  # seconds after an error that is logged with its traceback and may repeat
UNKNOWN_FRESH = 60.0  # seconds until a failed lookup is repeated

log = get_logger("deliver")


async def follow(store: Store, config: Config) -> bool:
    """Read the plan that is in force; return whether it changed. A node of an older version turns the ramp off."""
    if config.delivery.mode is not DeliveryMode.RELAY:
        return False
    plan, before = in_force(await store.ramp.stored(), config), store.ramping.plan
    if plan is not None and before is None:
        try:
            await store.ramp.fence_older_nodes()
        except Refused as refused:
            if refused.text != store.ramping.refusal:
                log.warning("ramp not started", reason=refused.text)
            store.ramping.refusal = refused.text
            return False
    store.ramping.plan, store.ramping.refusal = plan, ""
    if plan != before:
        percent = {} if plan is None else {"percent": plan.percent, "providers": plan.providers}
        log.info("ramp off" if plan is None else "ramp changed", **percent)
    return plan != before


async def start(store: Store, config: Config) -> None:
    await until_stored(lambda: follow(store, config), log, "ramp not read")


@dataclass(slots=True)
class Ramp:
    store: Store
    config: Config
    resolver: Resolver
    pools: ProviderPools
    relays: Relays
    random: Callable[[], float]
    note_pool: Callable[[str, str], None]  # of a domain, for reports
    _providers: TtlCache[str, str] = field(default_factory=lambda: TtlCache(PROVIDERS_KEPT, PROVIDERS_FRESH))
    _finding: SingleFlight[str, None] = field(default_factory=SingleFlight)
    _named: set[str] = field(init=False)  # the providers with figures of their own

    def __post_init__(self) -> None:
        self._named = {pool.name for pool in self.pools.providers.values()}

    # ---- the route of a recipient

    def via(self, recipient: DueRecipient) -> Via | None:
        """The route of a recipient under the ramp; None: as the settings say."""
        if recipient.bucket is None:
            return None
        if recipient.route is not None:
            return Via(recipient.route)
        return Via.DIRECT if recipient.bucket < self.percent_of(recipient.domain) else Via.RELAY

    def percent_of(self, domain: str) -> int:
        """The percentage of a domain's recipients that go direct; none if the domain has a relay of its own."""
        if self.relays.by_domain and relay_for(domain, Relays(None, self.relays.by_domain)) is not None:
            return 0
        if (plan := self.store.ramping.plan) is None:
            return 0 if self.relays.only else 100
        return plan.of(self._providers.get(domain) or "")

    def lanes(self, domain: str) -> Sequence[RampLane | None]:
        """The mail for a domain by its route, so that mail queued for one route does not hide the other's."""
        if self.store.ramping.plan is None:
            return (None,)
        percent = self.percent_of(domain)
        return [RampLane(via, percent) for via in (None, Via.RELAY, Via.DIRECT)]

    def usual(self, domain: str) -> Via:
        """The route of mail that is not under the ramp."""
        return Via.RELAY if self.relays.only or relay_for(domain, self.relays) is not None else Via.DIRECT

    def is_relayed(self, domain: str, via: Via | None) -> bool:
        return (via or self.usual(domain)) is Via.RELAY

    # ---- the provider of a domain

    def knows(self, domain: str) -> bool:
        return domain in self._providers

    def provider_of(self, domain: str) -> str | None:
        """The provider whose figures count this domain's mail; None: the ramp is off."""
        if self.store.ramping.plan is None:
            return None
        name = self._providers.get(domain)
        return name if name in self._named else OTHER_PROVIDERS

    async def learn(self, domain: str) -> None:
        """Look up the provider of a domain, unless it is known."""
        if not self.knows(domain):
            await self._finding.run(domain, partial(self._find, domain))

    async def _find(self, domain: str) -> None:
        hosts: Iterable[str] = ()
        with trio.move_on_after(LOOKUP):
            try:
                hosts = [record.host for record in in_order((await self.resolver.mx(domain)).records, self.random)]
            except LookupFailed as failed:
                hosts = [domain] if failed.fault is DnsFault.NODATA else []
        for host in hosts:
            pool = self.pools.of(host).name
            self._providers.put(domain, pool)
            self.note_pool(domain, pool)
            return
        self._providers.put(domain, OTHER_PROVIDERS, UNKNOWN_FRESH)

    # ---- before an attempt

    def is_wrong(self, recipients: Iterable[DueRecipient], via: Via | None) -> bool:
        """Whether the plan changed the route of one of these recipients."""
        return via is not None and any(self.via(recipient) is not via for recipient in recipients)

    async def bind(self, recipients: tuple[DueRecipient, ...], via: Via) -> bool:
        """Store the route of recipients before their first attempt; False: one of them has another route now."""
        if self.is_wrong(recipients, via):
            return False
        if all(recipient.route is not None for recipient in recipients):
            return True
        return await self.store.ramp.bind(recipients, via)

    # ---- the plan

    async def run(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Follow the stored plan, and adjust it if `auto` is on."""
        if self.config.delivery.mode is not DeliveryMode.RELAY:
            return
        adjusted_at = trio.current_time()
        while True:
            await trio.sleep(FOLLOW_EVERY)
            try:
                if await follow(self.store, self.config):
                    await changed()
                plan = self.store.ramping.plan
                if plan is not None and plan.auto and trio.current_time() >= adjusted_at + ADJUST_EVERY:
                    adjusted_at = trio.current_time()
                    await self.adjust(plan)
            except StorageUnavailable:
                pass  # the plan in memory stays in force
            except Exception as error:
                log.exception("ramp not followed", error)
                await trio.sleep(FAULT_PAUSE)

    async def adjust(self, plan: RampPlan) -> None:
        """Change the percentages by the suggestions, unless a command or another node changed them meanwhile."""
        now = self.store.ramp.env.now()
        comparison = await self.store.ramp.comparison(plan, self.config.warmup)
        new = adjusted(plan, comparison.suggestions, now)
        if new == plan:
            return
        stored = await self.store.ramp.change(lambda current: new if current.changed_at == plan.changed_at else current)
        if stored == new:
            log.warning("ramp adjusted", percent=new.percent, providers=new.providers, reason=new.reason)
