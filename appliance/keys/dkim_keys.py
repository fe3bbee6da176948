"""The DKIM keys of all domains: created on first use, stored sealed, replaced by rotation.

A rotation has two steps. New keys are created as pending while the old keys sign. Once DNS shows the records of all new
keys, one transaction makes them sign and retires the old ones. So receivers can verify every signature.
`deliver/domain_watch.py` checks DNS every minute; verifying a domain checks as well.
"""

import binascii
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from math import inf

import trio
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.concurrency.ttl_cache import TtlCache
from appliance.dns.check import CheckedRecord
from appliance.environment import Environment
from appliance.keys.keyfile import UnsealError, derive, seal, unseal
from appliance.message.dkim import Algorithm, PrivateKey, SigningKey, algorithm_of
from appliance.model.accounts import RecordStatus, StoredDkimKey
from appliance.store import Store
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

RSA_BITS = 2048  # the minimum of RFC 8301 3.2; twice as many sign six times slower
ALGORITHMS = (Algorithm.RSA, Algorithm.ED25519)
DKIM_PURPOSE = "DKIM keys"  # purpose of the sealing key
OPEN_KEYS = 2_000  # unsealed keys in memory
KEY_THREADS = 2  # that generate and parse keys

log = get_logger("keys")


# ---- one key, without I/O


class KeyUnusable(Exception):
    """The bytes are not a private key that can sign mail."""


def generate(algorithm: Algorithm) -> PrivateKey:
    """Generate a key. RSA takes a tenth of a second of CPU or more: call it on a thread."""
    if algorithm is Algorithm.RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    return Ed25519PrivateKey.generate()


def to_der(key: PrivateKey) -> bytes:
    return key.private_bytes(form.Encoding.DER, form.PrivateFormat.PKCS8, form.NoEncryption())


def from_der(data: bytes) -> PrivateKey:
    """Load a key that `to_der` wrote. Raises KeyUnusable for other bytes and for keys that receivers reject."""
    try:
        key = form.load_der_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise KeyUnusable("the bytes are not an unencrypted private key") from cause
    if isinstance(key, Ed25519PrivateKey) or (isinstance(key, rsa.RSAPrivateKey) and key.key_size >= RSA_BITS):
        return key
    raise KeyUnusable(f"the key is neither Ed25519 nor RSA of at least {RSA_BITS} bits")


def record_value(key: PrivateKey) -> str:
    """The TXT record of the public key (RFC 6376 3.6.1); for Ed25519 the bare 32 octets (RFC 8463 4)."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        data = public.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    else:
        data = public.public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    encoded = binascii.b2a_base64(data, newline=False).decode("ascii")
    return f"v=DKIM1; k={algorithm_of(key)}; p={encoded}"


def new_selector(algorithm: Algorithm, now_seconds: int, taken: Collection[str] = ()) -> str:
    """A selector for a new key: `ma-rsa-20261115`, or `ma-rsa-20261115-2` for the second of a day (UTC).

    The date shows operators which key is old; `ma-` avoids the selectors of other senders.
    """
    base = f"ma-{algorithm}-{time.strftime('%Y%m%d', time.gmtime(now_seconds))}"
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)


# ---- the keys of all domains


@dataclass(frozen=True, slots=True)
class SigningKeys:
    store: Store
    env: Environment
    key: bytes
    _opened: TtlCache[bytes, SigningKey] = field(
        default_factory=lambda: TtlCache(OPEN_KEYS, inf, time.monotonic), repr=False
    )
    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(KEY_THREADS), repr=False)

    async def in_use(self, account_id: str, domain: str) -> list[SigningKey]:
        """The keys that sign for a domain. Creates keys for a domain without any."""
        signing: list[SigningKey] = []
        for key in [key for key in await self.known(account_id, domain) if key.signs]:
            context = _context(account_id, domain, key.selector)
            if (opened := self._opened.get(context)) is None:
                der = open_signing_key(self.key, account_id, domain, key.selector, key.private_key)
                # On a thread: loading an RSA key validates it, which takes a tenth of a second.
                private = await trio.to_thread.run_sync(from_der, der, limiter=self._threads)
                opened = SigningKey(domain, key.selector, Algorithm(key.algorithm), private)
                self._opened.put(context, opened)
            signing.append(opened)
        return signing

    async def known(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        """All keys of a domain, including pending and retired ones. Creates keys if none signs."""
        stored = await self.store.dkim_keys.of(account_id, domain)
        if not any(key.signs for key in stored):
            await self.rotate(account_id, domain, unless_there=True)
            stored = await self.store.dkim_keys.of(account_id, domain)
        return stored

    async def begin_rotation(self, account_id: str, domain: str, *, at_once: bool = False) -> list[StoredDkimKey]:
        """Start a rotation: create keys that are pending until DNS shows them. A running rotation continues. Return all
        keys.

        The new keys sign immediately with `at_once`, or if the old keys are unreadable because the key file was lost.
        """
        stored = await self.known(account_id, domain)
        pending = {key.selector for key in stored if key.pending}
        lost = not all(self._opens(account_id, domain, key) for key in stored if key.retired_at is None)
        if lost or (at_once and not pending):
            await self.rotate(account_id, domain)
        elif not pending:
            await self.store.dkim_keys.add_pending(account_id, domain, await self._made(account_id, domain))
        elif at_once:
            await self.store.dkim_keys.activate(account_id, domain, pending)
        return await self.store.dkim_keys.of(account_id, domain)

    async def switch(self, account_id: str, domain: str, checked: Iterable[CheckedRecord]) -> bool:
        pending = [record for record in checked if record.record.pending]
        if not pending or any(record.status is not RecordStatus.OK for record in pending):
            return False
        selectors = {record.record.name.partition(".")[0] for record in pending}
        if not await self.store.dkim_keys.activate(account_id, domain, selectors):
            return False
        log.info("DKIM keys activated: DNS shows their records", domain=domain, selectors=sorted(selectors))
        return True

    def _opens(self, account_id: str, domain: str, key: StoredDkimKey) -> bool:
        try:
            open_signing_key(self.key, account_id, domain, key.selector, key.private_key)
        except UnsealError:
            return False
        return True

    async def rotate(self, account_id: str, domain: str, *, unless_there: bool = False) -> None:
        """Create keys that sign immediately, and retire the old ones. The old records must stay for some days.

        With `unless_there`, do nothing if another node created keys in the meantime.
        """
        made = await self._made(account_id, domain)
        await self.store.dkim_keys.replace(account_id, domain, made, unless_there=unless_there)

    async def _made(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        taken = await self.store.dkim_keys.selectors(domain)  # of every account, because they share the domain in DNS
        fresh: list[StoredDkimKey] = []
        for algorithm in ALGORITHMS:
            private = await trio.to_thread.run_sync(generate, algorithm, limiter=self._threads)
            selector = new_selector(algorithm, self.env.now() // SECOND, taken)
            sealed = seal(derive(self.key, DKIM_PURPOSE), to_der(private), _context(account_id, domain, selector))
            fresh.append(StoredDkimKey(selector, algorithm.value, sealed, record_value(private)))
        return fresh


def open_signing_key(key: bytes, account_id: str, domain: str, selector: str, sealed: bytes) -> bytes:
    return unseal(derive(key, DKIM_PURPOSE), sealed, _context(account_id, domain, selector))


def _context(account_id: str, domain: str, selector: str) -> bytes:
    return f"{account_id}\0{domain}\0{selector}".encode()
