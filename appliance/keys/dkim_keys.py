"""The DKIM keys of all domains: generated when first needed, stored sealed, replaced on rotation."""

import time
from dataclasses import dataclass, field
from math import inf

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.keys.keyfile import derive, seal, unseal
from appliance.message import dkim_keys
from appliance.message.dkim import Algorithm, SigningKey
from appliance.model.mail import StoredDkimKey
from appliance.outside import Outside
from appliance.store import Store
from appliance.times import SECOND

ALGORITHMS = (Algorithm.RSA, Algorithm.ED25519)
DKIM_PURPOSE = "DKIM keys"  # of the key they are sealed with
OPEN_KEYS = 2_000  # unsealed keys in memory
KEY_THREADS = 2  # in which keys are generated and parsed


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The DKIM keys of all domains; `key` is the installation's."""

    store: Store
    outside: Outside
    key: bytes
    _opened: TtlCache[bytes, SigningKey] = field(
        default_factory=lambda: TtlCache(OPEN_KEYS, inf, time.monotonic), repr=False
    )
    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(KEY_THREADS), repr=False)

    async def in_use(self, account_id: str, domain: str) -> list[SigningKey]:
        """The keys that sign for a domain; a domain without any gets new ones."""
        if not (stored := await self._unretired(account_id, domain)):
            await self.rotate(account_id, domain, unless_there=True)
            stored = await self._unretired(account_id, domain)
        signing: list[SigningKey] = []
        for each in stored:
            context = _context(account_id, domain, each.selector)
            if (opened := self._opened.get(context)) is None:
                der = open_sealed(self.key, account_id, domain, each.selector, each.private_key)
                # In a thread: parsing an RSA key checks it, which takes a tenth of a second.
                private = await trio.to_thread.run_sync(dkim_keys.from_der, der, limiter=self._threads)
                opened = SigningKey(domain, each.selector, Algorithm(each.algorithm), private)
                self._opened.put(context, opened)
            signing.append(opened)
        return signing

    async def known(self, account_id: str, domain: str, *, rotate: bool = False) -> list[StoredDkimKey]:
        """All keys of a domain, retired ones included; new ones are made if none signs, or on rotation."""
        stored = await self.store.dkim_keys.of(account_id, domain)
        if rotate or all(key.retired_at is not None for key in stored):
            await self.rotate(account_id, domain, unless_there=not rotate)
            stored = await self.store.dkim_keys.of(account_id, domain)
        return stored

    async def _unretired(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        return [key for key in await self.store.dkim_keys.of(account_id, domain) if key.retired_at is None]

    async def rotate(self, account_id: str, domain: str, *, unless_there: bool = False) -> None:
        """New keys for a domain. The old ones are retired; their records must stay published for some days.

        With `unless_there` only the first: another node may have made them meanwhile.
        """
        taken = await self.store.dkim_keys.selectors(domain)  # of every account, as they share the domain in DNS
        fresh: list[StoredDkimKey] = []
        for algorithm in ALGORITHMS:
            private = await trio.to_thread.run_sync(dkim_keys.generate, algorithm, limiter=self._threads)
            selector = dkim_keys.selector(algorithm, self.outside.now() // SECOND, taken)
            sealed = seal(
                derive(self.key, DKIM_PURPOSE), dkim_keys.to_der(private), _context(account_id, domain, selector)
            )
            fresh.append(StoredDkimKey(selector, algorithm.value, sealed, dkim_keys.record_value(private)))
        await self.store.dkim_keys.replace(account_id, domain, fresh, unless_there=unless_there)


def open_sealed(key: bytes, account_id: str, domain: str, selector: str, sealed: bytes) -> bytes:
    """An unsealed signing key, as DER; raises UnsealError when the installation's key is another."""
    return unseal(derive(key, DKIM_PURPOSE), sealed, _context(account_id, domain, selector))


def _context(account_id: str, domain: str, selector: str) -> bytes:
    """What a sealed key belongs to: it cannot be moved to another row."""
    return f"{account_id}\0{domain}\0{selector}".encode()
