"""Which provider a mail server belongs to, by what it can prove and not by what an MX record calls it.

An address is a provider's if a server answered there and
- showed a certificate that verifies for its MX host name (by the trust store, or by DANE), and that name is one of the
  provider's mail hosts; or
- the address has a reverse name (PTR) of the provider's, and that name leads back to the address.

Reverse names are looked up beside delivery, which never waits for them: until the answer is there, nothing is proved.
What was proved counts for some hours, and ends when no server answers at the address any more.
"""

from dataclasses import dataclass, field
from ipaddress import ip_address

import trio

from appliance.deliver.providers import Pool, ProviderPools
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver, host_addresses, records_of

PROVED_FOR = 6 * 3600.0  # seconds
ASKED_EVERY = 3600.0  # seconds until an address without a proof is looked up again
TROUBLED_EVERY = 60.0  # the same when the DNS could not tell
LOOKUP_LIMIT = 20.0  # seconds that one look-up may take in all
PROOF_LOOKUPS = 8  # at once
PROOFS_WAITING = 1_000  # addresses that wait to be looked up; more are looked up when they answer again
NAMES = 3  # reverse names of one address that are read
ADDRESSES_KEPT = 20_000
HOSTS_KEPT = 10_000


@dataclass(slots=True)
class Proofs:
    resolver: Resolver
    pools: ProviderPools
    named: dict[str, Pool] = field(init=False)  # of the providers
    _known: dict[str, tuple[str | None, float]] = field(default_factory=dict)  # provider, and until when (Trio's clock)
    _claims: dict[str, Pool] = field(default_factory=dict)  # by host, since many suffixes have to be tried
    _wanted: "trio.MemorySendChannel[tuple[str, str]]" = field(init=False)
    _to_look_up: "trio.MemoryReceiveChannel[tuple[str, str]]" = field(init=False)

    def __post_init__(self) -> None:
        self.named = {pool.name: pool for pool in self.pools.providers.values()}
        self._wanted, self._to_look_up = trio.open_memory_channel[tuple[str, str]](PROOFS_WAITING)

    def claim(self, host: str) -> Pool:
        if (pool := self._claims.get(host)) is None:
            if len(self._claims) >= HOSTS_KEPT:
                self._claims.clear()
            pool = self._claims[host] = self.pools.of(host)
        return pool

    def known_as(self, pool: str) -> str:
        """The pool as operators know it: of a limiter under the name of a host that claims to be a provider's."""
        return pool if pool in self.named or not pool else self.claim(pool).name

    def provider_at(self, address: str) -> str | None:
        """The provider whose server answers at an address, as far as that is proved."""
        provider, until = self._known.get(address, (None, 0.0))
        return provider if trio.current_time() < until else None

    def answered(self, host: str, address: str, *, verified: bool) -> None:
        """A server took a connection; `verified`: its certificate is good for the name of the host."""
        claim, now = self.claim(host), trio.current_time()
        if verified and claim.proof:
            self._remember(address, claim.name, now + PROVED_FOR)
            return
        provider, until = self._known.get(address, (None, 0.0))
        if now < until - (PROVED_FOR / 2 if provider else 0.0):
            return
        self._remember(address, provider, max(until, now + ASKED_EVERY))  # asked once, and not by all who come next
        if verified:
            return  # its name is its own organisation's: no reverse name need say more
        try:
            self._wanted.send_nowait((host, address))
        except trio.WouldBlock:
            self._remember(address, provider, until)

    def silent(self, address: str) -> None:
        self._known.pop(address, None)

    async def run(self) -> None:
        """Look up reverse names until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(PROOF_LOOKUPS):
                nursery.start_soon(self._look_up_all)

    async def _look_up_all(self) -> None:
        async for host, address in self._to_look_up:
            try:
                with trio.fail_after(LOOKUP_LIMIT):
                    provider, lasts = await self._by_reverse_name(host, address), PROVED_FOR
            except (trio.TooSlowError, LookupFailed):
                provider, lasts = None, TROUBLED_EVERY
            if provider is None:
                lasts = min(lasts, ASKED_EVERY)
            self._remember(address, provider, trio.current_time() + lasts)

    async def _by_reverse_name(self, host: str, address: str) -> str | None:
        """The provider that both the address's reverse name and that name's addresses speak for."""
        for name in (await records_of(self.resolver.ptr, ip_address(address).reverse_pointer))[:NAMES]:
            provider = self.pools.by_reverse_name(name, self.claim(host).name)
            if provider is None:
                continue
            try:
                if ip_address(address) in (await host_addresses(self.resolver, name))[0]:
                    return provider
            except LookupFailed as failed:
                if failed.fault is DnsFault.TEMPORARY:
                    raise
        return None

    def _remember(self, address: str, provider: str | None, until: float) -> None:
        if len(self._known) >= ADDRESSES_KEPT and address not in self._known:
            del self._known[next(iter(self._known))]
        self._known[address] = provider, until
