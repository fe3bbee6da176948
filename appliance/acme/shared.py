"""ACME for a cluster: one node at a time requests the certificate, and all nodes use it.

- The certificate, its key, the account's key and the state are in the database, sealed with the key file. Every node
  reads them every LOOK_EVERY, and copies a new certificate to its own file, which its listeners watch.
- The certificate covers the names in the settings of all live nodes. One with more names stays valid, so a node that
  is down for a while causes no request. An order omits the name of such a node: the authority could not reach it.
- If `acme.directory` or `acme.email` differ between nodes, the settings of the node that started last apply, and only
  nodes with the same settings request a certificate.
- A challenge is in the database before the authority learns of it, so any node can answer it.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.messages import NotIssued, new_key, read_key
from appliance.acme.records import ACCOUNT_KEY, STATE, AcmeState, AcmeView, read_certificate, read_state, state_content
from appliance.acme.schedule import RETRY_DELAYS
from appliance.config.settings import AcmeSettings
from appliance.errors import StorageUnavailable
from appliance.keys.keyfile import UnsealError, derive, seal, unseal
from appliance.store import Store
from appliance.store.installation import ACME_CHORE
from appliance.system.data_directory import write_private_file
from appliance.telemetry.log import get_logger
from appliance.tls.certificate import ACME_FILE, private_pem

ACME_PURPOSE = "ACME"  # of the derived key that seals the records
LOOK_EVERY = 2.0  # seconds
SETTLED = 5.0  # seconds without a change of the names: nodes that start together need one certificate
TURN_RENEWED = 5.0  # seconds
TURN = 20.0  # seconds without a lease renewal after which an order is aborted; after 30 another node takes the chore
CHALLENGE_READ_PAUSE = 0.25  # seconds between the starts of two reads

_THREADS = trio.CapacityLimiter(1)

log = get_logger("acme")


class WantedCertificate(msgspec.Struct, frozen=True):
    """The certificate settings that a node announces to the others."""

    directory: str
    email: str
    names: tuple[str, ...]


def announced(settings: AcmeSettings) -> str:
    return msgspec.json.encode(WantedCertificate(settings.directory, settings.email, settings.names)).decode()


def wanted_by_all(announcements: Sequence[str], settings: AcmeSettings) -> AcmeSettings | None:
    """Return the settings with all nodes' names; None if the first node, which started last, has other settings."""
    certificates = [msgspec.json.decode(text, type=WantedCertificate) for text in announcements]
    if not certificates or (certificates[0].directory, certificates[0].email) != (settings.directory, settings.email):
        return None
    return replace(settings, names=tuple(sorted({name for one in certificates for name in one.names})))


@dataclass(slots=True)
class SharedRecords:
    """The records in the database, with copies for this node's listeners and `doctor`; `key` is the installation's."""

    settings: AcmeSettings
    store: Store
    key: bytes = field(repr=False)
    directory: Path
    patience: float = LOOK_EVERY  # seconds between two calls of `look`
    settled: float = SETTLED
    _announced: bool = False
    _account_key: bytes = field(default=b"", repr=False)
    _copies: dict[str, bytes] = field(default_factory=dict, repr=False)
    _uncopied: bool = False
    _names: tuple[str, ...] = ()
    _names_since: float = math.inf
    _rests_until: float = -math.inf

    async def look(self) -> AcmeView | None:
        """Return None if nothing is to be requested now."""
        try:
            if not self._announced:
                await self.store.shared_certificates.announce(announced(self.settings))
                self._announced = True
            shared = await self.store.shared_certificates.look()
        except StorageUnavailable:
            return None
        records = {name: self._unsealed(name, sealed) for name, sealed in shared.records.items()}
        certificate, state = records.get(ACME_FILE, b""), records.get(STATE, b"")
        self._account_key = records.get(ACCOUNT_KEY, b"")
        await self._copy({ACME_FILE: certificate, STATE: state})
        settings = wanted_by_all(shared.wanted, self.settings)
        if settings is None or not self._is_settled(settings.names) or trio.current_time() < self._rests_until:
            return None
        return AcmeView(settings, read_state(state), read_certificate(certificate), at_least=True)

    async def alone(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run `work` unless another node runs it; return whether it ran."""
        try:
            if not await self.store.engine.has_chore(ACME_CHORE):
                return False
        except StorageUnavailable:
            return False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_turn, nursery.cancel_scope)
            await work()
            nursery.cancel_scope.cancel()
        return True

    async def account_key(self) -> tuple[ec.EllipticCurvePrivateKey, bool]:
        try:
            return read_key(self._account_key), False
        except ValueError:
            key = new_key()
            await self._keep({ACCOUNT_KEY: private_pem(key)})
            return key, True

    async def issued(self, pem: bytes, state: AcmeState) -> None:
        await self._keep({ACME_FILE: pem, STATE: state_content(state)})
        await self._copy({ACME_FILE: pem, STATE: state_content(state)})

    async def save_state(self, state: AcmeState) -> None:
        try:
            await self._keep({STATE: state_content(state)})
            await self._copy({STATE: state_content(state)})
        except NotIssued as failed:
            self._rests_until = trio.current_time() + RETRY_DELAYS[0]
            log.warning("ACME state not saved", reason=str(failed))

    async def publish(self, token: str, text: str) -> None:
        """Let every node answer a challenge. Raises NotIssued."""
        await _written(self.store.shared_certificates.publish(token, text))

    async def withdraw(self) -> None:
        with trio.CancelScope(shield=True), suppress(StorageUnavailable):
            await self.store.shared_certificates.withdraw()

    async def _keep_turn(self, order: trio.CancelScope) -> None:
        """Renew the lease of the chore; cancel the order if another node may have taken it."""
        renewed = trio.current_time()
        while trio.current_time() < renewed + TURN:
            await trio.sleep(TURN_RENEWED)
            requested_at = trio.current_time()
            with suppress(StorageUnavailable):
                if not await self.store.engine.has_chore(ACME_CHORE):
                    break
                renewed = requested_at
        log.warning("certificate request aborted: another node takes over")
        order.cancel()

    def _is_settled(self, names: tuple[str, ...]) -> bool:
        now = trio.current_time()
        if names != self._names:
            self._names, self._names_since = names, now
        return now >= self._names_since + self.settled

    async def _keep(self, records: dict[str, bytes]) -> None:
        key = derive(self.key, ACME_PURPOSE)
        sealed = {name: seal(key, content, _context(name)) for name, content in records.items()}
        await _written(self.store.shared_certificates.keep(sealed))

    def _unsealed(self, name: str, sealed: bytes) -> bytes:
        """Return a record; empty, as if it were lost, if it cannot be opened."""
        try:
            return unseal(derive(self.key, ACME_PURPOSE), sealed, _context(name))
        except UnsealError:
            return b""

    async def _copy(self, records: dict[str, bytes]) -> None:
        """Write changed records to files; files without a record stay."""
        new = {name: content for name, content in records.items() if content and self._copies.get(name) != content}
        try:
            if new:
                await trio.to_thread.run_sync(partial(_write, self.directory, new), limiter=_THREADS)
        except OSError as error:
            if not self._uncopied:
                log.error("certificate not copied from the database", reason=str(error))
            self._uncopied = True
        else:
            self._copies |= new
            self._uncopied = False


@dataclass(slots=True)
class SharedChallenges:
    """Looks up the challenges of other nodes, in a read that starts after the request, so none is missed.

    All requests share the reads, at most one per CHALLENGE_READ_PAUSE: unknown tokens cost the database no more.
    """

    read: Callable[[], Awaitable[dict[str, str]]]
    _known: dict[str, str] = field(default_factory=dict)
    _read_at: float = -math.inf
    _reading: trio.Lock = field(default_factory=trio.Lock)

    async def text_of(self, token: str) -> str | None:
        if token not in self._known:
            requested_at = trio.current_time()
            async with self._reading:
                if self._read_at <= requested_at:
                    await trio.sleep_until(max(requested_at, self._read_at + CHALLENGE_READ_PAUSE))
                    self._read_at = trio.current_time()
                    with suppress(StorageUnavailable):
                        self._known = await self.read()
        return self._known.get(token)


async def _written(write: Awaitable[bool]) -> None:
    try:
        ours = await write
    except StorageUnavailable as refused:
        raise NotIssued(f"the database cannot be written: {refused.text}", "None: the server retries.") from refused
    if not ours:
        raise NotIssued("another node requests the certificate now", "None: that node continues.")


def _write(directory: Path, records: dict[str, bytes]) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in records.items():
        path = directory / name
        if not path.exists() or path.read_bytes() != content:
            write_private_file(path, content)


def _context(name: str) -> bytes:
    """Bind a sealed record to its row, so that it cannot be moved to another."""
    return f"acme_records\0{name}".encode()
