"""ACME for all nodes of a shared database: one of them at a time requests the certificate, all of them show it.

- The certificate, its key, the account's key and the state are in the database, sealed with the key file. Every node
  looks every LOOK_EVERY, and copies a new certificate to its own file, which its listeners watch.
- The certificate is for the names that the settings of all live nodes ask for. One with more names will do, so that a
  node that is away for a while is not missed. An order leaves out its name: the authority could not reach it there.
- Where the authority or the address for it differ between nodes, the settings of the node that started last count, and
  only nodes that have the same request a certificate.
- A challenge is in the database before the authority is told. Any node that is asked for it finds it there.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.crypto import new_key, read_key
from appliance.acme.files import ACCOUNT_KEY, STATE, AcmeFiles, AcmeState, read_certificate, read_state, state_content
from appliance.acme.problems import NotIssued
from appliance.acme.records import AcmeView
from appliance.acme.schedule import RETRY_DELAYS
from appliance.config.settings import AcmeSettings
from appliance.errors import StorageUnavailable
from appliance.keys.keyfile import UnsealError, derive, seal, unseal
from appliance.store import Store
from appliance.store.shared_certificates import ACME_CHORE
from appliance.system.private_file import write_private_file
from appliance.telemetry.log import get_logger
from appliance.tls.certificate_files import ACME_FILE
from appliance.tls.self_signed import private_pem

ACME_PURPOSE = "ACME"  # of the key that its records are sealed with
LOOK_EVERY = 2.0  # seconds
SETTLED = 5.0  # seconds for which the names must have been the same: nodes that start together need one certificate
TURN_RENEWED = 5.0  # seconds
TURN = 20.0  # seconds without a renewal after which an order is given up; the chore is another's after 30
CHALLENGE_READ_PAUSE = 0.25  # seconds between the beginnings of two reads

_THREADS = trio.CapacityLimiter(1)

log = get_logger("acme")


class WantedCertificate(msgspec.Struct, frozen=True):
    """What a node announces to the others."""

    directory: str
    email: str
    names: tuple[str, ...]


def announced(settings: AcmeSettings) -> str:
    return msgspec.json.encode(WantedCertificate(settings.directory, settings.email, settings.names)).decode()


def wanted_by_all(wanted: Sequence[str], settings: AcmeSettings) -> AcmeSettings | None:
    """The settings with the names of all nodes; None when the settings of another node count. No I/O.

    `wanted` is what the nodes have announced, that of the last one started first.
    """
    found = [msgspec.json.decode(each, type=WantedCertificate) for each in wanted]
    if not found or (found[0].directory, found[0].email) != (settings.directory, settings.email):
        return None
    return replace(settings, names=tuple(sorted({name for each in found for name in each.names})))


@dataclass(slots=True)
class SharedRecords:
    """The records in the database, with copies for this node's listeners and `doctor`; `key` is the installation's."""

    settings: AcmeSettings
    store: Store
    key: bytes = field(repr=False)
    files: AcmeFiles
    patience: float = LOOK_EVERY
    settled: float = SETTLED
    _announced: bool = False
    _account_key: bytes = field(default=b"", repr=False)
    _copies: dict[str, bytes] = field(default_factory=dict, repr=False)
    _uncopied: bool = False
    _names: tuple[str, ...] = ()
    _names_since: float = math.inf
    _rests_until: float = -math.inf

    async def look(self) -> AcmeView | None:
        try:
            if not self._announced:
                await self.store.shared_certificates.announce(announced(self.settings))
                self._announced = True
            found = await self.store.shared_certificates.look()
        except StorageUnavailable:  # the database is away
            return None
        records = {name: self._unsealed(name, sealed) for name, sealed in found.records.items()}
        certificate, state = records.get(ACME_FILE, b""), records.get(STATE, b"")
        self._account_key = records.get(ACCOUNT_KEY, b"")
        await self._copy({ACME_FILE: certificate, STATE: state})
        settings = wanted_by_all(found.wanted, self.settings)
        if settings is None or not self._is_settled(settings.names) or trio.current_time() < self._rests_until:
            return None
        return AcmeView(settings, read_state(state), read_certificate(certificate), at_least=True)

    async def alone(self, work: Callable[[], Awaitable[None]]) -> bool:
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
            log.warning("the state of ACME cannot be kept", reason=str(failed))

    async def publish(self, token: str, text: str) -> None:
        """Let every node answer a challenge. Raises NotIssued."""
        await _written(self.store.shared_certificates.publish(token, text))

    async def withdraw(self) -> None:
        """End that."""
        with trio.CancelScope(shield=True), suppress(StorageUnavailable):
            await self.store.shared_certificates.withdraw()

    async def _keep_turn(self, order: trio.CancelScope) -> None:
        """Renew the lease of the chore; cancel the order when another node may have it."""
        renewed = trio.current_time()
        while trio.current_time() < renewed + TURN:
            await trio.sleep(TURN_RENEWED)
            asked = trio.current_time()
            with suppress(StorageUnavailable):
                if not await self.store.engine.has_chore(ACME_CHORE):
                    break
                renewed = asked
        log.warning("the request for a certificate is left to another node")
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
        """A record; empty, as if it were lost, when it cannot be read."""
        try:
            return unseal(derive(self.key, ACME_PURPOSE), sealed, _context(name))
        except UnsealError:
            return b""

    async def _copy(self, records: dict[str, bytes]) -> None:
        """Write the records to files unless that was done; with none in the database the files stay as they are."""
        new = {name: content for name, content in records.items() if content and self._copies.get(name) != content}
        try:
            if new:
                await trio.to_thread.run_sync(partial(_write, self.files, new), limiter=_THREADS)
        except OSError as error:
            if not self._uncopied:
                log.error("the certificate cannot be copied from the database", reason=str(error))
            self._uncopied = True
        else:
            self._copies |= new
            self._uncopied = False


@dataclass(slots=True)
class SharedChallenges:
    """Looks up the challenges of other nodes.

    A token that is not known is looked for in a read that begins after it was asked for, so no challenge that the
    authority was told of is missed. All that wait share one read of all challenges, and there are only so many in a
    second: requests for tokens that do not exist cost the database no more than that.
    """

    read: Callable[[], Awaitable[dict[str, str]]]
    _known: dict[str, str] = field(default_factory=dict)
    _read_at: float = -math.inf
    _reading: trio.Lock = field(default_factory=trio.Lock)

    async def text_of(self, token: str) -> str | None:
        if token not in self._known:
            asked = trio.current_time()
            async with self._reading:
                if self._read_at <= asked:
                    await trio.sleep_until(max(asked, self._read_at + CHALLENGE_READ_PAUSE))
                    self._read_at = trio.current_time()
                    with suppress(StorageUnavailable):  # the database is away
                        self._known = await self.read()
        return self._known.get(token)


async def _written(write: Awaitable[bool]) -> None:
    try:
        ours = await write
    except StorageUnavailable as refused:
        raise NotIssued(f"the database does not take it: {refused.text}", "Nothing: it is tried again.") from refused
    if not ours:
        raise NotIssued("another node requests the certificate by now", "Nothing: it does what is needed.")


def _write(files: AcmeFiles, records: dict[str, bytes]) -> None:
    files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in records.items():
        path = files.directory / name
        if not path.exists() or path.read_bytes() != content:
            write_private_file(path, content)


def _context(name: str) -> bytes:
    """What a sealed record belongs to: it cannot be moved to another row."""
    return f"acme_records\0{name}".encode()
