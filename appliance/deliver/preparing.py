"""Prepares envelopes for their SMTP transaction: a route to the domain, and a signature of the message with DKIM.

The scheduler calls the steps, and each returns a value: `known` or `find` → `DeliveryPath`, `prepare` → `Ready`, or
`Routed` if it still has to be signed, and `signed` → a batch of `Ready`. What cannot be prepared is `NotPrepared`. A
path that was found a moment ago comes from memory, without a task. Unsigned messages are signed in threads with the
keys of their From domain, several per thread hop, by turns of the accounts, each message once.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from appliance.concurrency.ttl_cache import TtlCache
from appliance.deliver.due_mail import AccountQueue, Envelope
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.route import Route, RouteCache
from appliance.environment import Environment
from appliance.keys.dkim_keys import SigningKeys
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.model.mail import DueRecipient
from appliance.store import Store

# ---- signing

KEYS_KEPT = 1_000  # domains whose unsealed keys are held in memory
KEYS_FRESH = 1_000_000  # microseconds until a rotation from the shell is noticed, or the use of a return path
SIGNATURES_KEPT = 1_000  # of messages that go to several domains one after the other


class Signing(NamedTuple):
    """What a From domain adds to its messages."""

    keys: list[SigningKey]
    return_path: str | None = None  # the name that the envelope's sender is at, if one is in use


class Unsigned(NamedTuple):
    message_id: str
    mime: bytes
    keys: list[SigningKey]


@dataclass(slots=True)
class Signer:
    """Signs messages with the keys of their From domain, several per thread hop: a hop costs as much as one.

    It also knows the return path of that domain, unless `return_paths` says that none can be in use.
    """

    keys: SigningKeys
    env: Environment
    return_paths: bool = False
    # An RSA signature takes a core for milliseconds: as many at once as there are cores, and none waits for I/O.
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    _limiter: trio.CapacityLimiter = field(init=False)
    _making: trio.Lock = field(default_factory=trio.Lock)
    _known: TtlCache[tuple[str, str], Signing] = field(init=False)
    _made: OrderedDict[str, bytes] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(self.threads)
        self._known = TtlCache(KEYS_KEPT, KEYS_FRESH, self.env.now)

    def made(self, message_id: str) -> bytes | None:
        """The DKIM-Signature fields of a message that was signed not long ago."""
        return self._made.get(message_id)

    async def sign(self, messages: Sequence[Unsigned]) -> list[bytes | Exception]:
        """The DKIM-Signature fields of each message, to be written in front of it, or why there are none."""
        now = self.env.now() // 1_000_000
        results = await trio.to_thread.run_sync(_sign_all, messages, now, limiter=self._limiter)
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, bytes):
                self._made[message.message_id] = result
        while len(self._made) > SIGNATURES_KEPT:
            self._made.popitem(last=False)
        return results

    def known(self, account_id: str, domain: str) -> Signing | None:
        """What a domain adds to its messages, if it was read a moment ago."""
        return self._known.get((account_id, domain))

    async def find(self, account_id: str, domain: str) -> Signing:
        """The same, read; a domain that has no keys yet gets new ones, which takes a while."""
        if (signing := self.known(account_id, domain)) is not None:
            return signing
        async with self._making:  # a domain's first keys are made once, though a hundred messages may want them
            if (signing := self.known(account_id, domain)) is not None:
                return signing
            store, keys = self.keys.store, await self.keys.in_use(account_id, domain)
            signing = Signing(keys, await store.domains.return_path(account_id, domain) if self.return_paths else None)
        self._known.put((account_id, domain), signing)
        return signing


def _sign_all(messages: Sequence[Unsigned], now_seconds: int) -> list[bytes | Exception]:
    results: list[bytes | Exception] = []
    for message in messages:
        try:
            results.append(sign(message.mime, message.keys, now_seconds=now_seconds))
        except Exception as error:
            results.append(error)
    return results


# ---- preparing

SIGNED_TOGETHER = 16  # messages per thread hop: some fifty milliseconds of RSA signatures
PENDING_MESSAGE_BYTES = 32 * 1024  # of a message that is kept in memory while it waits; a longer one is read again
PENDING_BYTES = 16 * 1024 * 1024  # a message is kept if all that are pending would fit, were they of its size
LARGE_MESSAGE = 1024 * 1024  # bytes: such a message takes long, and is in memory for as long as its session lasts


class DeliveryPath(NamedTuple):
    """Where an envelope goes, the keys that sign its message, and the return path it leaves with, if any."""

    route: Route
    keys: list[SigningKey]
    return_path: str | None = None


class Routed(NamedTuple):
    """An envelope with its route, the limiter of its pool, and what its signature takes."""

    envelope: Envelope
    route: Route
    limiter: PoolLimiter
    keys: list[SigningKey]
    mime: bytes | None  # None: in the store
    since: float  # taken, on Trio's clock
    large: bool  # only few such transactions may run at once
    return_path: str | None = None  # the name of the sender's address, which is another for every recipient

    def of(self, recipients: tuple[DueRecipient, ...]) -> "Routed":
        return self._replace(envelope=self.envelope._replace(recipients=recipients))


class Ready(NamedTuple):
    routed: Routed
    signature: bytes


class NotPrepared(NamedTuple):
    """An envelope that cannot go now: no route, or an error of this machine."""

    envelope: Envelope
    pool: str  # under which it is pending
    reason: Exception


def worth_keeping(mime: bytes | None, pending: int) -> bytes | None:
    """A message, or None when it is to be read again later: what is pending must not fill the memory."""
    small = mime and len(mime) <= PENDING_MESSAGE_BYTES and len(mime) * pending <= PENDING_BYTES
    return mime if small else None


@dataclass(slots=True)
class Preparing:
    store: Store
    routes: RouteCache
    signer: Signer
    large_message: int = LARGE_MESSAGE
    _unsigned: AccountQueue[Routed] = field(default_factory=AccountQueue)
    _being_signed: set[str] = field(default_factory=set)  # messages
    _idle_signers: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    # ---- the route

    def known(self, envelope: Envelope) -> DeliveryPath | None:
        """The path of an envelope, if it was found a moment ago."""
        route, domain = self.routes.known(envelope.domain), envelope.sender_domain
        signing = self.signer.known(envelope.account_id, domain)
        return None if route is None or signing is None else _path(envelope, route, domain, signing)

    async def find(self, envelope: Envelope) -> DeliveryPath:
        """Look up the route and the keys. Raises `NoRoute`, or `Shortage` when this machine cannot look up anything."""
        route, domain = await self.routes.find(envelope.domain), envelope.sender_domain
        return _path(envelope, route, domain, await self.signer.find(envelope.account_id, domain))

    async def prepare(
        self,
        envelope: Envelope,
        path: DeliveryPath,
        limiter: PoolLimiter,
        *,
        mime: bytes | None,
        since: float,
        pending: int,
    ) -> Ready | Routed | NotPrepared:
        """An envelope ready to go if its message is signed already; else it is queued for `signed` to return it."""
        signature, size = self.signer.made(envelope.message_id), len(mime or b"")
        try:
            if mime is None:
                mime, stored, size = await self.store.messages.to_send(envelope.message_id)
                signature = stored or signature
        except Exception as error:
            return NotPrepared(envelope, limiter.pool, error)
        large, kept = size > self.large_message, worth_keeping(mime, pending)
        routed = Routed(envelope, path.route, limiter, path.keys, kept, since, large, path.return_path)
        if signature is not None:
            return Ready(routed, signature)
        self._unsigned.add(envelope.account_id, routed)
        self._wake_a_signer(routed)
        return routed

    # ---- the signature

    async def signed(self) -> list[Ready | NotPrepared]:
        """The next batch of signed envelopes; to be awaited by one task for each thread of the signer."""
        while True:
            done, batch = self._next_unsigned()
            if batch:
                break
            if done:
                return done
            await self._idle_signers.park()
        if self._unsigned:
            self._wake_a_signer(self._unsigned.peek())
        for routed, signature in zip(batch, await self._signatures(batch), strict=True):
            self._being_signed.discard(routed.envelope.message_id)
            if isinstance(signature, bytes):
                done.append(Ready(routed, signature))
            else:
                done.append(NotPrepared(routed.envelope, routed.limiter.pool, signature))
        return done

    async def _signatures(self, batch: list[Routed]) -> list[bytes | Exception]:
        """The signature of each message, or why there is none."""
        unsigned, failed, messages = [], {}, self.store.messages
        for routed in batch:
            message_id = routed.envelope.message_id
            try:
                known = routed.mime or (await messages.to_send(message_id)).mime
                unsigned.append(Unsigned(message_id, known or await messages.content(message_id), routed.keys))
            except Exception as error:
                failed[message_id] = error
        made = iter(await self.signer.sign(unsigned))
        return [failed.get(routed.envelope.message_id) or next(made) for routed in batch]

    def _next_unsigned(self) -> tuple[list[Ready | NotPrepared], list[Routed]]:
        """What needs no signing any more, and this signer's share of the messages that no other signer has.

        A large message ends a share, so that memory holds one for each signer.
        """
        done: list[Ready | NotPrepared] = []
        batch: list[Routed] = []
        later: list[Routed] = []
        share = len(self._unsigned)
        if share and _slow(self._unsigned.peek()):  # of RSA only so many that other threads get some, too
            share = -(-share // (1 + len(self._idle_signers)))
        while self._unsigned and len(batch) < min(share, SIGNED_TOGETHER) and not (batch and batch[-1].large):
            routed = self._unsigned.next()
            message_id = routed.envelope.message_id
            if message_id in self._being_signed:
                later.append(routed)
            elif (signature := self.signer.made(message_id)) is not None:
                done.append(Ready(routed, signature))
            else:
                self._being_signed.add(message_id)
                batch.append(routed)
        for routed in later:
            self._unsigned.add(routed.envelope.account_id, routed)
        return done, batch

    def _wake_a_signer(self, waiting: Routed) -> None:
        """Wake another thread if a hop is worth it: for an RSA signature it is.

        One by Ed25519 takes less than the hop, and waits for the next batch of the thread that is busy.
        """
        if len(self._idle_signers) == self.signer.threads or _slow(waiting):
            self._idle_signers.unpark()


def _path(envelope: Envelope, route: Route, domain: str, signing: Signing) -> DeliveryPath:
    """The path of an envelope whose From is of `domain`.

    Its return path takes the place of a sender of that domain only: one elsewhere was chosen by the client, and the
    empty one says that nothing is to come back.
    """
    own = signing.return_path is not None and envelope.recipients[0].envelope_from.rpartition("@")[2] == domain
    return DeliveryPath(route, signing.keys, signing.return_path if own else None)


def _slow(routed: Routed) -> bool:
    return any(key.algorithm is Algorithm.RSA for key in routed.keys)
