"""Prepares envelopes for their SMTP transaction: finds the route to the domain and signs the message with DKIM.

The scheduler calls the steps, and each returns a value: `known` or `find` → `DeliveryPath`, `prepare` → `Ready`, or
`Routed` if the message is unsigned, and `signed` → a batch of `Ready`. An envelope that fails is `NotPrepared`. A
message that arrives alone is signed at once, unless it is large or has an RSA key. Threads sign all others, several per
hop; accounts take turns. `Payloads` returns the bytes to send; a message in several sessions has one copy in memory.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple
from weakref import WeakValueDictionary

import trio

from appliance.concurrency.fair_share import PriorityQueue, TurnQueue
from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.deliver.pool_limiter import PoolLimiter
from appliance.deliver.ramp import Ramp
from appliance.deliver.route import Route, RouteCache
from appliance.deliver.smtp.sending import MailTransaction, Payload, prepare
from appliance.environment import Environment
from appliance.errors import Refused
from appliance.keys.dkim_keys import SigningKeys
from appliance.message.addresses import parse
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.message.seven_bit import CannotEncode, seven_bit
from appliance.model.mail import DueRecipient
from appliance.model.ramp import Via
from appliance.store import Store


class Flow(NamedTuple):
    """One account's mail of one priority and age. Flows share pending mail, sessions and reads of the store."""

    account: str
    low: int = 0
    new: int = 0


_flow = lru_cache(maxsize=1_000)(Flow)  # making it costs a call, and a message's is asked for eight times


class Envelope(NamedTuple):
    """One message and its recipients at one domain, to be delivered in one SMTP transaction."""

    message_id: str
    account_id: str
    domain: str
    recipients: tuple[DueRecipient, ...]
    low: int = 0  # 1: of a stream with low priority
    new: int = 0  # 1: just accepted; it may pass older mail
    via: Via | None = None  # its route under the ramp

    @property
    def flow(self) -> Flow:
        return _flow(self.account_id, self.low, self.new)

    @property
    def stream(self) -> str:
        return self.recipients[0].stream

    @property
    def is_retry(self) -> bool:
        return self.recipients[0].attempt_count > 0

    @property
    def sender_domain(self) -> str:
        """The domain of the From header, whose keys sign the message: DMARC checks From, not the envelope sender."""
        recipient = self.recipients[0]
        try:
            return parse(recipient.sender, "from").domain
        except (Refused, ValueError):  # stored by an older version; the mail still goes out
            return recipient.envelope_from.rpartition("@")[2]


RECIPIENTS_PER_VISIT = 50  # of one domain in one visit of an account; also the limit of one transaction


def envelopes(
    recipients: Iterable[DueRecipient], via_of: Callable[[DueRecipient], Via | None] = lambda _: None
) -> list[Envelope]:
    """Group recipients by message, domain and route, up to the limit of one transaction; accounts take turns."""
    groups, most = dict[tuple[str, str, Via | None], list[DueRecipient]](), RECIPIENTS_PER_VISIT
    for recipient in recipients:
        via = None if recipient.bucket is None else via_of(recipient)
        groups.setdefault((recipient.message_id, recipient.domain, via), []).append(recipient)
    ordered = [
        Envelope(message_id, group[0].account_id, domain, tuple(group[first : first + most]), group[0].low, 0, via)
        for (message_id, domain, via), group in groups.items()
        for first in range(0, len(group), most)
    ]
    if len({envelope.account_id for envelope in ordered}) < 2:
        return ordered
    queue = TurnQueue[str, Envelope]()
    for envelope in ordered:
        queue.add(envelope.account_id, envelope)
    return queue.drain()


# ---- signing

KEYS_KEPT = 1_000  # domains with unsealed keys in memory
KEYS_FRESH = 1_000_000  # microseconds until a key rotation or a new return path takes effect
SIGNATURES_KEPT = 1_000  # for messages with recipients at several domains


class Signing(NamedTuple):
    keys: list[SigningKey]
    return_path: str | None = None  # the domain of the envelope sender, if one is in use


class Unsigned(NamedTuple):
    message_id: str
    mime: bytes
    keys: list[SigningKey]


@dataclass(slots=True)
class Signer:
    """Signs messages, several per thread hop: a hop costs as much as a signature. Reads return paths if so set."""

    keys: SigningKeys
    env: Environment
    return_paths: bool = False
    # An RSA signature takes milliseconds of CPU time and waits for no I/O: one thread per core.
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    _limiter: trio.CapacityLimiter = field(init=False)
    _lock: trio.Lock = field(default_factory=trio.Lock)
    _known: TtlCache[tuple[str, str], Signing] = field(init=False)
    _signatures: OrderedDict[str, bytes] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(self.threads)
        self._known = TtlCache(KEYS_KEPT, KEYS_FRESH, self.env.now)

    def made(self, message_id: str) -> bytes | None:
        return self._signatures.get(message_id)

    async def sign(self, messages: Sequence[Unsigned]) -> list[bytes | Exception]:
        """The DKIM-Signature fields to prepend to each message, or the error."""
        now = self.env.now() // 1_000_000
        results = await trio.to_thread.run_sync(_sign_all, messages, now, limiter=self._limiter)
        for message, result in zip(messages, results, strict=True):
            self._keep(message, result)
        return results

    def sign_here(self, message: Unsigned) -> bytes | Exception:
        """The same for one small message with Ed25519 keys, without a thread."""
        (result,) = _sign_all([message], self.env.now() // 1_000_000)
        self._keep(message, result)
        return result

    def _keep(self, message: Unsigned, result: bytes | Exception) -> None:
        if isinstance(result, bytes):
            self._signatures[message.message_id] = result
        if len(self._signatures) > SIGNATURES_KEPT:
            self._signatures.popitem(last=False)

    def known(self, account_id: str, domain: str) -> Signing | None:
        return self._known.get((account_id, domain))

    async def find(self, account_id: str, domain: str) -> Signing:
        """Read the keys of a domain. A domain without keys gets new ones, which takes a while."""
        if (signing := self.known(account_id, domain)) is not None:
            return signing
        async with self._lock:  # a domain's first keys are made once, whichever of its messages needs them first
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

SIGNED_TOGETHER = 16  # messages per thread hop with Ed25519 keys alone: about a millisecond
SIGNED_HERE_EVERY = 0.004  # seconds between two signatures on the event loop, which cost less than a hop for one
RSA_TOGETHER = 3  # the same with RSA keys: about two milliseconds, for which a new message waits
PENDING_MESSAGE_BYTES = 32 * 1024  # of a pending message in memory; a longer one is read again
PENDING_BYTES = 16 * 1024 * 1024  # a message stays in memory if all pending ones would fit at its size
LARGE_MESSAGE = 1024 * 1024  # bytes; a larger message is in memory until its session ends


class DeliveryPath(NamedTuple):
    route: Route
    keys: list[SigningKey]
    return_path: str | None = None


class Routed(NamedTuple):
    """An envelope with its route, the limiter of its pool, and the data to sign."""

    envelope: Envelope
    route: Route
    limiter: PoolLimiter
    keys: list[SigningKey]
    mime: bytes | None  # None: in the store
    since: float  # Trio's clock: when it became pending
    large: bool  # few such transactions may run at once
    return_path: str | None = None  # the domain of the sender address, which differs for every recipient

    def of(self, recipients: tuple[DueRecipient, ...]) -> "Routed":
        return self._replace(envelope=self.envelope._replace(recipients=recipients))


class Ready(NamedTuple):
    routed: Routed
    signature: bytes


class NotPrepared(NamedTuple):
    """An envelope without a route, or whose preparation raised."""

    envelope: Envelope
    pool: str  # that counts it as pending
    reason: Exception


def worth_keeping(mime: bytes | None, pending: int) -> bytes | None:
    """The message if it may stay in memory while it is pending, else None."""
    is_small = mime and len(mime) <= PENDING_MESSAGE_BYTES and len(mime) * pending <= PENDING_BYTES
    return mime if is_small else None


@dataclass(slots=True)
class Preparing:
    store: Store
    routes: RouteCache
    signer: Signer
    ramp: Ramp
    large_message: int = LARGE_MESSAGE
    _unsigned: PriorityQueue[str, Routed] = field(default_factory=PriorityQueue)
    _being_signed: set[str] = field(default_factory=set)  # message ids
    _idle_signers: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)
    _signed_here_at: float = -inf  # Trio's clock

    # ---- the route

    def keep_new(self, message_id: str, mime: bytes) -> None:
        if len(mime) > PENDING_MESSAGE_BYTES:
            self.store.messages.recent.put(message_id, mime)

    def known(self, envelope: Envelope) -> DeliveryPath | None:
        if envelope.via is not None and not self.ramp.knows(envelope.domain):
            return None
        route, domain = self.routes.known(envelope.domain, envelope.via), envelope.sender_domain
        signing = self.signer.known(envelope.account_id, domain)
        return None if route is None or signing is None else _path(envelope, route, domain, signing)

    async def find(self, envelope: Envelope) -> DeliveryPath:
        """Look up the route and the keys. Raises `NoRoute`, or `Shortage` if this machine cannot look up anything."""
        via = envelope.via
        if via is not None:  # which may depend on the provider
            await self.ramp.learn(envelope.domain)
            via = self.ramp.via(envelope.recipients[0])
        route, domain = await self.routes.find(envelope.domain, via), envelope.sender_domain
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
        """Return a ready envelope if its message is signed; else queue it for `signed`."""
        signature, size = self.signer.made(envelope.message_id), len(mime or b"")
        try:
            if mime is None:
                mime, stored, size = await self.store.messages.to_send(envelope.message_id)
                signature = stored or signature
        except Exception as error:
            return NotPrepared(envelope, limiter.pool, error)
        large, kept = size > self.large_message, worth_keeping(mime, pending)
        routed = Routed(envelope, path.route, limiter, path.keys, kept, since, large, path.return_path)
        if signature is None and kept is not None and self._may_sign_here(routed):
            made = self.signer.sign_here(Unsigned(envelope.message_id, kept, path.keys))
            if isinstance(made, Exception):
                return NotPrepared(envelope, limiter.pool, made)
            signature = made
        if signature is not None:
            return Ready(routed, signature)
        self._unsigned.of(envelope.low).add(envelope.account_id, routed, envelope.new)
        self._wake_a_signer(routed)
        return routed

    # ---- the signature

    def _may_sign_here(self, routed: Routed) -> bool:
        """Whether a message arrives alone: then handing it to a thread would cost more than its signature."""
        if self._being_signed or self._unsigned or _slow(routed):
            return False
        now = trio.current_time()
        is_alone = now >= self._signed_here_at + SIGNED_HERE_EVERY
        self._signed_here_at = now
        return is_alone

    async def signed(self) -> list[Ready | NotPrepared]:
        """The next batch of signed envelopes; one task per thread of the signer awaits this."""
        while True:
            ready, batch = self._next_unsigned()
            if batch:
                break
            if ready:
                return ready
            await self._idle_signers.park()
        if self._unsigned:
            self._wake_a_signer(self._unsigned.heads()[0])
        for routed, signature in zip(batch, await self._sign_batch(batch), strict=True):
            self._being_signed.discard(routed.envelope.message_id)
            if isinstance(signature, bytes):
                ready.append(Ready(routed, signature))
            else:
                ready.append(NotPrepared(routed.envelope, routed.limiter.pool, signature))
        return ready

    async def _sign_batch(self, batch: list[Routed]) -> list[bytes | Exception]:
        unsigned, failed, messages = [], {}, self.store.messages
        for routed in batch:
            message_id = routed.envelope.message_id
            try:
                known = routed.mime or messages.recent.get(message_id) or (await messages.to_send(message_id)).mime
                unsigned.append(Unsigned(message_id, known or await messages.content(message_id), routed.keys))
            except Exception as error:
                failed[message_id] = error
        signatures = iter(await self.signer.sign(unsigned))
        return [failed.get(routed.envelope.message_id) or next(signatures) for routed in batch]

    def _next_unsigned(self) -> tuple[list[Ready | NotPrepared], list[Routed]]:
        """Envelopes signed in the meantime, and this signer's share of the others; a large message ends a share."""
        ready: list[Ready | NotPrepared] = []
        batch: list[Routed] = []
        later: list[Routed] = []
        most = min(len(self._unsigned), SIGNED_TOGETHER)
        if most and _slow(self._unsigned.heads()[0]):  # RSA: leave work for the idle threads
            most = min(-(-len(self._unsigned) // (1 + len(self._idle_signers))), RSA_TOGETHER)
        least_new = 0
        if self.store.new_mail.is_sparse():  # one thread signs older mail, one message at a time; the others stay free
            most, least_new = min(most, 1), int(bool(self._being_signed))
        while len(batch) < most and not (batch and batch[-1].large):
            routed = self._unsigned.next_that(lambda routed: routed.envelope.new >= least_new)
            if routed is None:
                break
            message_id = routed.envelope.message_id
            if message_id in self._being_signed:
                later.append(routed)
            elif (signature := self.signer.made(message_id)) is not None:
                ready.append(Ready(routed, signature))
            else:
                self._being_signed.add(message_id)
                batch.append(routed)
        for routed in later:
            envelope = routed.envelope
            self._unsigned.of(envelope.low).add(envelope.account_id, routed, envelope.new)
        return ready, batch

    def _wake_a_signer(self, waiting: Routed) -> None:
        """Wake another thread for an RSA signature. Ed25519 costs less than the hop: it joins the next batch."""
        if len(self._idle_signers) == self.signer.threads or _slow(waiting):
            self._idle_signers.unpark()


def _path(envelope: Envelope, route: Route, domain: str, signing: Signing) -> DeliveryPath:
    """The path of an envelope. The return path replaces only a sender at the From domain."""
    is_own = signing.return_path is not None and envelope.recipients[0].envelope_from.rpartition("@")[2] == domain
    return DeliveryPath(route, signing.keys, signing.return_path if is_own else None)


def _slow(routed: Routed) -> bool:
    return any(key.algorithm is Algorithm.RSA for key in routed.keys)


# ---- payloads

THREAD_BYTES = 256 * 1024  # size from which a payload is made on a thread


@dataclass(frozen=True, slots=True)
class Payloads:
    store: Store
    env: Environment
    _limiter: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, 1))
    _shared: WeakValueDictionary[str, Payload] = field(default_factory=WeakValueDictionary)  # by message
    _making: SingleFlight[str, Payload] = field(default_factory=SingleFlight)

    async def of(self, ready: Ready) -> Payload:
        """The payload of a message; one copy for all its recipients."""
        envelope = ready.routed.envelope
        if envelope.recipients[0].recipient_count == 1:
            return await self._make(ready)
        if (payload := self._shared.get(envelope.message_id)) is None:
            payload = await self._making.run(envelope.message_id, partial(self._make, ready))
            self._shared[envelope.message_id] = payload
        return payload

    async def seven_bit(self, ready: Ready, transaction: MailTransaction) -> MailTransaction:
        """Re-encode the message in seven bits and sign it again, for the rare server that needs it."""
        mime, keys, now = await self._stored(ready), ready.routed.keys, self.env.now() // 1_000_000

        def encode() -> Payload:
            encoded = seven_bit(mime)
            return prepare(encoded, sign(encoded, keys, now_seconds=now))

        try:
            payload = await trio.to_thread.run_sync(encode, limiter=self._limiter)
        except CannotEncode as cannot:
            return transaction._replace(unencodable=str(cannot))
        return transaction._replace(payload=payload, needs_smtputf8=False)

    async def _make(self, ready: Ready) -> Payload:
        envelope, recent_mail = ready.routed.envelope, self.store.messages.recent
        recent = recent_mail.get(envelope.message_id)
        if len(envelope.recipients) == envelope.recipients[0].recipient_count:  # no other session needs it
            recent_mail.discard(envelope.message_id)
        mime = recent or await self._stored(ready)
        if len(mime) < THREAD_BYTES:
            return prepare(mime, ready.signature)
        make = partial(prepare, mime, ready.signature, is_checked=recent is not None)
        return await trio.to_thread.run_sync(make, limiter=self._limiter)

    async def _stored(self, ready: Ready) -> bytes:
        messages, routed = self.store.messages, ready.routed
        message_id = routed.envelope.message_id
        return routed.mime or (await messages.to_send(message_id)).mime or await messages.content(message_id)
