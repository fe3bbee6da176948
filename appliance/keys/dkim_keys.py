"""In charge of the keys a domain signs with: made when first needed, sealed in the store, replaced on rotation."""

from dataclasses import dataclass, field

import trio

from appliance.keys.keyfile import derive
from appliance.keys.sealing import seal, unseal
from appliance.message import dkim_keys
from appliance.message.dkim import Algorithm, SigningKey
from appliance.model.mail import StoredDkimKey
from appliance.outside import Outside
from appliance.store import Store
from appliance.times import SECOND

ALGORITHMS = (Algorithm.RSA, Algorithm.ED25519)
OPENED = 2_000  # keys held ready in memory
THREADS = 2  # in which keys are made and read


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The signing keys of all domains; `key` is the installation's."""

    store: Store
    outside: Outside
    key: bytes
    _opened: dict[bytes, SigningKey] = field(default_factory=dict, repr=False)
    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(THREADS), repr=False)

    async def in_use(self, account_id: str, domain: str) -> list[SigningKey]:
        """The keys that sign for a domain now; a domain without any gets its own first."""
        stored = [key for key in self.store.dkim_keys.of(account_id, domain) if key.retired_at is None]
        if not stored:
            stored = await self.rotate(account_id, domain)
        return [await self._open(account_id, domain, key) for key in stored]

    async def known(self, account_id: str, domain: str, *, rotate: bool = False) -> list[StoredDkimKey]:
        """All keys of a domain, retired ones too, of which some sign: new ones if it had none, or on rotation."""
        stored = self.store.dkim_keys.of(account_id, domain)
        if rotate or all(key.retired_at is not None for key in stored):
            await self.rotate(account_id, domain)
            stored = self.store.dkim_keys.of(account_id, domain)
        return stored

    async def rotate(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        """New keys for a domain. The old ones sign no more; their records must stay published for some days."""
        taken = self.store.dkim_keys.selectors(domain)  # of every account: in DNS they share the domain's names
        fresh = [await self._fresh(account_id, domain, algorithm, taken) for algorithm in ALGORITHMS]
        await self.store.dkim_keys.replace(account_id, domain, fresh)
        return fresh

    async def _fresh(self, account_id: str, domain: str, algorithm: Algorithm, taken: list[str]) -> StoredDkimKey:
        private = await trio.to_thread.run_sync(dkim_keys.generate, algorithm, limiter=self._threads)
        selector = dkim_keys.selector(algorithm, self.outside.now() // SECOND, taken)
        sealed = seal(_sealing_key(self.key), dkim_keys.to_der(private), _context(account_id, domain, selector))
        return StoredDkimKey(selector, algorithm.value, sealed, dkim_keys.record_value(private))

    async def _open(self, account_id: str, domain: str, stored: StoredDkimKey) -> SigningKey:
        context = _context(account_id, domain, stored.selector)
        if (opened := self._opened.get(context)) is None:
            der = open_sealed(self.key, account_id, domain, stored.selector, stored.private_key)
            # In a thread: an RSA key is checked while it is read, which takes a tenth of a second.
            private = await trio.to_thread.run_sync(dkim_keys.from_der, der, limiter=self._threads)
            opened = SigningKey(domain, stored.selector, Algorithm(stored.algorithm), private)
            if len(self._opened) >= OPENED:
                self._opened.clear()
            self._opened[context] = opened
        return opened


def open_sealed(key: bytes, account_id: str, domain: str, selector: str, sealed: bytes) -> bytes:
    """A signing key out of its seal, as DER; raises SealBroken when the installation's key is another."""
    return unseal(_sealing_key(key), sealed, _context(account_id, domain, selector))


def _sealing_key(key: bytes) -> bytes:
    return derive(key, "DKIM keys")


def _context(account_id: str, domain: str, selector: str) -> bytes:
    """What a sealed key belongs to, so that one cannot be put in the place of another."""
    return f"{account_id}\0{domain}\0{selector}".encode()
